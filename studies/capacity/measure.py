"""Measure what docs/capacity.md quotes: cost of a call and of an episode, overhead of Ray, scaling with workers.

python studies/capacity/measure.py costs|overhead|standin|scaling|driver

Costs are CPU seconds of this process, so that other work on the machine hardly counts. The scaling table runs a
stand-in whose simulator and policy sleep as long as real ones would compute: it shows the layout, not a model.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leanwam.rollouts import EpisodePlan, MetaWorldEnv, Observation, PolicyInput, select_tasks
from leanwam.rollouts.cluster import Layout, OpenPolicy, ray_session, run_episodes_on_ray
from leanwam.rollouts.cluster.driver import ClusterSummary

LANES = 16


def costs() -> None:
    """CPU milliseconds per row of a call at batch 16, per simulator step, and per row written."""
    import torch

    from leanwam.models.reference import load_reference
    from leanwam.rollouts.policy import reference_policy

    torch.set_num_threads(1)
    model = load_reference("heads")
    task = select_tasks("door-open")[0]
    env = MetaWorldEnv(task, "keypoints", 250)
    seen = env.reset(0)
    assert seen.world is not None
    batch = PolicyInput(
        (task.name,) * LANES,
        np.stack([seen.proprio] * LANES),
        np.stack([seen.world] * LANES),
        None,
        tuple(range(LANES)),
    )
    found: dict[str, float] = {}
    for plan in ("dense", "sparse_10", "sparse_5", "tail_only_4", "plain_10", "plain_4"):
        with reference_policy(model, plan) as (policy, _):
            policy(batch)
            spent = []
            for _ in range(3):
                began = time.process_time()
                policy(batch)
                spent.append(time.process_time() - began)
        found[f"policy, {plan}, ms per row"] = 1e3 * min(spent) / LANES
    began = time.process_time()
    for _ in range(200):
        env.advance(np.zeros(4))
    found["simulator, keypoints, ms per step"] = 1e3 * (time.process_time() - began) / 200
    env.close()
    began = time.process_time()
    for _ in range(5):
        fresh = MetaWorldEnv(task, "keypoints", 250)
        fresh.reset(0)
        fresh.close()
    found["simulator, make and first reset, ms"] = 1e3 * (time.process_time() - began) / 5
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=1))


@dataclass(frozen=True)
class _SleepSource:
    call_s: float

    @contextmanager
    def open(self) -> Iterator[OpenPolicy]:
        def policy(batch: PolicyInput) -> np.ndarray:
            time.sleep(self.call_s)
            return np.zeros((len(batch.seeds), 16, 4))

        yield OpenPolicy(policy, "sleeps", "keypoints")


class _SleepEnv:
    def __init__(self, step_s: float) -> None:
        self.step_s, self.start_state = step_s, ""

    def reset(self, seed: int) -> Observation:
        self.n_steps = 0
        return self.observe()

    def advance(self, action: np.ndarray) -> bool:
        self.n_steps += 1
        if self.n_steps % 8 == 0:
            time.sleep(8 * self.step_s)
        return False

    def observe(self) -> Observation:
        return Observation(np.zeros(4, dtype=np.float32), world=np.zeros((3, 7), dtype=np.float32))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _MakeSleepEnv:
    step_s: float

    def __call__(self, task: str) -> _SleepEnv:
        return _SleepEnv(self.step_s)


def scaling() -> None:
    """Episodes per second against workers of 4 environments: 8 steps of 12.5 ms each, then a batch of 16 in 400 ms;
    5 calls an episode. From the middle of each run, so that the start of the processes is left out."""
    with ray_session(n_cpus=2) as ray, tempfile.TemporaryDirectory() as folder:
        for n_workers, n_replicas in ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2)):
            table = Path(folder) / f"{n_workers}-{n_replicas}.jsonl"
            seen: list[tuple[float, int]] = []
            with _watched(table, seen):
                done: ClusterSummary = run_episodes_on_ray(
                    ray,
                    _SleepSource(0.4),
                    [EpisodePlan("t", e, e, e) for e in range(4 * 6 * n_workers)],
                    arm="x",
                    table=table,
                    layout=Layout(n_workers, n_replicas, 4, 0.05, 0.05),
                    n_lanes=LANES,
                    horizon=40,
                    progress=False,
                    make_env=_MakeSleepEnv(0.0125),
                )
            assert done.bound is not None
            row = {
                "workers": n_workers,
                "replicas": n_replicas,
                "episodes_per_s": round(_middle_rate(seen, done.n_run), 2),
                "bound": done.bound.side,
                "policy_busy": round(done.bound.policy_busy, 2),
                "simulator_busy": round(done.bound.simulator_busy, 2),
                "batch_fill": round(done.bound.batch_fill, 2),
            }
            print(json.dumps(row), flush=True)


@contextmanager
def _watched(table: Path, seen: list[tuple[float, int]]) -> Iterator[None]:
    """Note when the table had how many rows."""
    end = threading.Event()

    def look() -> None:
        while not end.wait(0.1):
            seen.append((time.monotonic(), table.read_bytes().count(b"\n") if table.exists() else 0))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _middle_rate(seen: list[tuple[float, int]], n: int) -> float:
    """Rows per second between a third and nine tenths of the rows."""
    first = next(item for item in seen if item[1] >= n / 3)
    last = next(item for item in seen if item[1] >= 0.9 * n)
    return (last[1] - first[1]) / (last[0] - first[0])


def driver(n: int = 2048) -> None:
    """Rows per second that the driver writes and syncs, by the number of rows that come together."""
    import msgspec

    from leanwam.rollouts import EpisodeRow
    from leanwam.rollouts.ledger import Ledger

    fields: dict[str, object] = dict.fromkeys(
        ("family", "start_state", "observation", "checkpoint", "plan", "time_utc", "versions"), "0" * 24
    )
    numbers = ("start_seed", "noise_seed", "n_steps", "n_calls", "n_executed", "n_lanes", "horizon")
    fields |= dict.fromkeys(numbers, 100) | {
        "success": True,
        "status": "ok",
        "error": None,
        "duration_s": 1.0,
    }
    first = msgspec.convert({**fields, "arm": "x", "task": "t", "episode": 0}, EpisodeRow)
    with tempfile.TemporaryDirectory() as folder:
        for size in (1, 16, 256):
            rows = [msgspec.structs.replace(first, episode=e) for e in range(min(n, 200 * size))]
            with Ledger(Path(folder) / f"{size}.jsonl") as ledger:
                began = time.monotonic()
                for start in range(0, len(rows), size):
                    ledger.append_all(rows[start : start + size])
                print(
                    json.dumps(
                        {"together": size, "rows_per_s": round(len(rows) / (time.monotonic() - began))}
                    )
                )


def standin(sizes: tuple[int, int] = (16, 80)) -> None:
    """As ``overhead``, with a policy and a simulator that sleep 500 ms a batch and 0.4 ms a step, in two sizes:
    the difference of the sizes leaves out the start of the processes. What remains is Ray's own."""
    from leanwam.rollouts import run_episodes

    seconds: dict[str, list[float]] = {"serial": [], "ray": []}
    with ray_session(n_cpus=2) as ray, tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            plans = [EpisodePlan("t", e, e, e) for e in range(n)]
            began = time.monotonic()
            with _SleepSource(0.5).open() as opened:
                run_episodes(
                    opened.policy,
                    plans,
                    arm="x",
                    table=Path(folder) / f"here{n}.jsonl",
                    n_lanes=LANES,
                    horizon=80,
                    progress=False,
                    make_env=_MakeSleepEnv(0.0004),
                )
            seconds["serial"].append(time.monotonic() - began)
            done = run_episodes_on_ray(
                ray,
                _SleepSource(0.5),
                plans,
                arm="x",
                table=Path(folder) / f"ray{n}.jsonl",
                layout=Layout(n_workers=1),
                n_lanes=LANES,
                horizon=80,
                progress=False,
                make_env=_MakeSleepEnv(0.0004),
            )
            seconds["ray"].append(done.wall_s)
            print(
                json.dumps({"n": n, **{name: round(values[-1], 2) for name, values in seconds.items()}}),
                flush=True,
            )
    serial, on_ray = (values[1] - values[0] for values in seconds.values())
    print(
        json.dumps(
            {"serial_s": round(serial, 2), "ray_s": round(on_ray, 2), "ratio": round(on_ray / serial, 3)}
        )
    )


def overhead(plan: str = "dense", n_episodes: int = 16, repeats: int = 5) -> None:
    """Seconds of a run in one process and on Ray with one worker, taking turns; the reference WAM."""
    import torch

    from leanwam.models.reference import load_reference
    from leanwam.plans import parse_plan
    from leanwam.rollouts.arms import run_plan
    from leanwam.rollouts.cluster.arms import run_plan_on_ray

    torch.set_num_threads(1)
    model, spec, tasks = load_reference("heads"), parse_plan(plan), select_tasks("drawer-open")
    options = {"arm": "x", "n_episodes": n_episodes, "n_lanes": LANES, "progress": False}
    turns = []
    with ray_session(n_cpus=2) as ray, tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            here = run_plan(model, spec, tasks, Path(folder) / f"here{repeat}.jsonl", **options)  # type: ignore[arg-type]
            there = run_plan_on_ray(
                ray,
                "heads",
                spec,
                tasks,
                Path(folder) / f"ray{repeat}.jsonl",
                layout=Layout(n_workers=1),
                **options,  # type: ignore[arg-type]
            )
            ratio = there["wall_s_now"] / here["wall_s_now"]
            running = (there["wall_s_now"] - there["ray"]["startup_s"]) / here["wall_s_now"]
            turns.append(
                {
                    "serial_s": here["wall_s_now"],
                    "serial_policy_s": here["policy_s_now"],
                    "ray_s": there["wall_s_now"],
                    "ray_policy_s": there["policy_s_now"],
                    "ray_startup_s": there["ray"]["startup_s"],
                    "ratio": round(ratio, 3),
                    "ratio_without_startup": round(running, 3),
                }
            )
    # after the session: while it is open, stdout is Ray's too and goes to stderr
    medians = {f"median_{key}": float(np.median([turn[key] for turn in turns])) for key in turns[0]}
    print(json.dumps({"turns": turns, **medians}))


if __name__ == "__main__":
    {"costs": costs, "overhead": overhead, "standin": standin, "driver": driver, "scaling": scaling}[
        sys.argv[1]
    ]()
