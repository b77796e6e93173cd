"""Search the fastest plans within the dense model's noise-seed spread, on calls of closed-loop episodes.

python bench/fastest.py --model heads --out studies/fastest-same/heads
python bench/fastest.py --model joint --frames drop_middle,keep_ends --out studies/fastest-same/joint

Writes search.json (every candidate with fidelity, time and ratios, raw samples, environment) and the plans
that come out first as plan files, ready for `leanwam rollouts run --plan FILE`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def main(
    *,
    model: str = "heads",
    calls: int = 56,
    seeds: int = 3,
    frames: str = "",
    allowed: float = 1.0,
    rounds: int = 20,
    timed: int = 24,
    batches: str = "1,8",
    written: int = 6,
    threads: int = 1,
    random_observations: bool = False,
    out: Path = Path("fastest"),
) -> None:
    """Search, time, write.

    Args:
        model: a checkpoint, or random:PRESET.
        calls: dense calls along closed-loop episodes whose observations are used.
        seeds: noise seeds of the dense model's spread.
        frames: frame plans to combine with, separated by commas.
        allowed: largest error of a candidate, in units of the spread.
        rounds: timed rounds.
        timed: so many candidates are timed at most, besides the plain samplers.
        batches: batch sizes that are timed; the first one orders the candidates.
        written: so many plan files are written.
        threads: CPU threads.
        random_observations: no simulator: made-up observations (for trying it out).
        out: the folder.
    """
    os.environ.setdefault("MUJOCO_GL", "egl")
    import torch
    from rich.console import Console
    from rich.progress import Progress

    from leanwam.bench.environment import environment
    from leanwam.bench.search import candidates, search, write_plans
    from leanwam.bench.subjects import load_subject

    torch.set_num_threads(threads)
    subject = load_subject(model)
    sizes = [int(size) for size in batches.split(",")]
    kinds = [kind for kind in frames.split(",") if kind]
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as bar:
        walk = bar.add_task("calls", total=calls)
        queries = _queries(subject, calls, random=random_observations, progress=lambda: bar.advance(walk))
        task = bar.add_task(
            "searching", total=len(candidates(subject, frames=kinds)) + len(sizes) * (rounds + 2)
        )
        found = search(
            subject,
            queries,
            frames=kinds,
            allowed=allowed,
            n_seeds=seeds,
            n_rounds=rounds,
            n_timed=timed,
            timed_batches=sizes,
            progress=lambda n: bar.advance(task, n),
        )
    found |= {"model": model, "n_steps": dict(subject.n_steps), "environment": environment()}
    out.mkdir(parents=True, exist_ok=True)
    (out / "search.json").write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    chosen = [*found["fastest"][:written], *([found["fastest_plain"]] if found["fastest_plain"] else [])]
    write_plans(subject, chosen, out / "plans", frames=kinds)
    _print(found)


def _queries(model: Any, n: int, *, random: bool, progress: Any) -> list[Any]:
    from leanwam.bench.search import Query
    from leanwam.bench.subjects import random_observation

    if random:
        return [Query(random_observation(model.config, 1, seed=k), k) for k in range(n)]
    from leanwam.rollouts import select_tasks
    from leanwam.rollouts.calls import walk_calls

    queries: list[Any] = []

    def make(call: Any) -> Any:
        queries.append(Query(call.observation, call.seed))
        progress()
        return model.generate(call.observation, [call.seed], until=("action",)).action[0]

    walk_calls(make, select_tasks(list(model.config.tasks)), n, observation=model.config.observation)
    return queries


def _print(found: dict[str, Any]) -> None:
    print(f"dense spread over noise seeds: {found['spread']:.4f} (mean absolute action difference)")
    print(f"fastest plain sampler within it: {found['fastest_plain']}")
    head = f"{'plan':<26}{'noise units':>12}{'batch':>7}{'ms':>9}{'untouched':>11}"
    print(f"{head}{'fastest plain':>15}{'asked only':>12}{'with caches':>13}")
    rows = {item["plan"]: item for item in found["candidates"]}
    kinds = ("untouched", "fastest_plain", "fastest_plain_asked_only", "fastest_plain_with_caches")
    for name in found["fastest"]:
        for size, item in rows[name]["by_batch"].items():
            ratios = [item[f"ratio_to_{kind}"] for kind in kinds]
            shown = ["—" if ratio is None else f"{ratio['cpu_ratio']:.2f}×" for ratio in ratios]
            told = f"{name:<26}{rows[name]['in_noise_units']:>12.3f}{size:>7}{item['ms']:>9.2f}{shown[0]:>11}"
            print(f"{told}{shown[1]:>15}{shown[2]:>12}{shown[3]:>13}")
    print("ratios of CPU time, median over rounds; the wall clock's and all intervals are in search.json")


if __name__ == "__main__":
    import tyro

    tyro.cli(main)
