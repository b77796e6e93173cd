"""A study from its preregistration to its cards: run it, go on with it, see what is left."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from leanwam.cli.output import console, print_json, progress_console

if TYPE_CHECKING:
    from leanwam.rollouts.cluster import Layout
    from leanwam.studies import Study
    from leanwam.studies.spec import Arm

StudyFile = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY.toml")]


def run(
    study: StudyFile,
    /,
    *,
    ray: tuple[str, ...] | None = None,
    workers: int | None = None,
    replicas: int = 1,
    worker_lanes: int | None = None,
    gpus_per_replica: float = 0.0,
    json: bool = False,
) -> int:
    """Lock, run, judge, card: what is done and unchanged is not done again; run again after a kill to go on.

    Exit code 0 if every comparison's claim holds, 1 if one does not.

    Example: leanwam study run studies/heads/study.toml

    Args:
        study: the study's file; it names the arms and the preregistrations.
        ray: run the episodes on Ray: --ray starts one here, --ray ADDRESS (or auto) connects to one.
        workers: simulator workers on Ray; by default what CPUs the replicas leave.
        replicas: policy replicas on Ray.
        worker_lanes: environments of each worker; by default two batches per replica are in flight.
        gpus_per_replica: GPUs of each replica, fractions allowed.
        json: print one JSON object on stdout.
    """
    from datetime import UTC, datetime

    from leanwam.cli.rollouts import cluster_layout
    from leanwam.studies import load_study, run_study

    loaded = load_study(study)
    layout = cluster_layout(ray, workers, replicas, worker_lanes, gpus_per_replica)
    out = progress_console()

    def say(stage: str, what: str, how: str) -> None:
        out.print(f"{stage:<9} {what}: {how}", markup=False)

    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with ExitStack() as stack:
        runner = _Runner(loaded, None if ray is None else (ray[0] if ray else None, layout), stack)
        outcomes = run_study(loaded, runner, now_utc=now, say=say)
    code = 0 if all(item.claim_holds for item in outcomes) else 1
    if json:
        print_json(
            {
                "study": str(study),
                "table": str(loaded.table),
                "comparisons": [
                    {
                        "card": str(item.card),
                        "word": item.word,
                        "state": item.state,
                        "claim_holds": item.claim_holds,
                        "look": item.look,
                        "fraction": item.fraction,
                        "judged_now": item.new,
                    }
                    for item in outcomes
                ],
                "exit_code": code,
            }
        )
        return code
    text = console()
    for item in outcomes:
        end = "" if item.fraction == 1 else f" (ended at look {item.look}, {item.fraction:.0%})"
        text.print(f"  {item.word:<10} {item.card}{end}", markup=False)
    return code


def status(study: StudyFile, /, *, json: bool = False) -> None:
    """What is left of a study, and the time it will take at the pace measured so far.

    Example: leanwam study status studies/heads/study.toml

    Args:
        study: the study's file.
        json: print one JSON object on stdout.
    """
    from leanwam.studies import load_study, study_status

    found = study_status(load_study(study))
    if json:
        print_json(found)
        return
    out = console()
    for name, arm in found["arms"].items():
        time = f"{_span(arm['left_s'])} left" if arm["left_s"] is not None else arm["why"]
        pace = (
            f" ({arm['s_per_episode']} s an episode, {arm['measured_from']})" if arm["measured_from"] else ""
        )
        done = arm["n_planned"] - arm["n_left"]
        out.print(
            f"  {name:<18} {done} of {arm['n_planned']} episodes"
            + (f"; {time}{pace}" if arm["n_left"] else ""),
            markup=False,
        )
    for item in found["comparisons"]:
        n = sum(look["judged"] for look in item["looks"])
        state = item["word"] if item["decided"] else f"{n} of {len(item['looks'])} looks judged"
        locked = f"locked {item['locked_at_utc']}" if item["locked_at_utc"] else "not locked"
        out.print(f"  {item['card']}: {state}; {locked}", markup=False)
    for run_ in found["runs"]:
        if run_["state"] != "done":
            why = f" ({run_['why']})" if run_["why"] else ""
            job = f", job {run_['job']['job_id']}" if run_["job"] and "job_id" in run_["job"] else ""
            out.print(
                f"  run of {run_['arm']} on {run_['host']}{job}, {run_['time_utc']}: {run_['state']}{why}",
                markup=False,
            )
    total = found["why"] if found["left_s"] is None else _span(found["left_s"])
    out.print(f"{found['n_left']} episodes left: {total}" if found["n_left"] else "no episode left")


class _Runner:
    """Runs an arm's episodes in this process or on Ray, and records where (``studies.RunArm``)."""

    def __init__(self, study: Study, ray: tuple[str | None, Layout] | None, stack: ExitStack) -> None:
        self._study, self._ray, self._stack = study, ray, stack
        self._connected: Any = None

    def __call__(self, arm: Arm, planned: dict[str, int], table: Path) -> None:
        """Run what is missing, tasks with the same number of episodes together."""
        from leanwam.cli.rollouts import say_frames
        from leanwam.rollouts.manifest import manifest_path, recorded_run
        from leanwam.studies.pipeline import checkpoint_folder, episodes_of, n_missing

        n_left = n_missing(table, arm, planned)
        if n_left == 0 and checkpoint_folder(arm.checkpoint) is None:
            line = f"{arm.checkpoint} is not here; the table holds every planned episode of arm {arm.name}"
            progress_console().print(line, markup=False, soft_wrap=True)
            return
        say_frames(arm.checkpoint, arm.plan)
        where = "one process" if self._ray is None else "Ray"
        with recorded_run(
            manifest_path(table), arm=arm.name, plan=arm.plan.name, n_to_run=n_left, ray=where
        ) as end:
            end["n_run"] = 0
            for tasks, n in episodes_of(arm, planned):
                end["n_run"] += self._run(arm, tasks, n, table)["n_run"]
            if self._connected is not None:
                from leanwam.rollouts.manifest import ray_nodes

                end["ray_nodes"] = ray_nodes(self._connected)

    def _run(self, arm: Arm, tasks: list[Any], n: int, table: Path) -> dict[str, Any]:
        common: dict[str, Any] = {
            "arm": arm.name,
            "n_episodes": n,
            "first_episode": arm.first_episode,
            "noise_stream": arm.noise_stream,
            "n_lanes": self._study.lanes,
        }
        if self._ray is None:
            import torch

            from leanwam.models.reference import load_reference
            from leanwam.rollouts.arms import run_plan

            torch.set_num_threads(self._study.threads)
            return run_plan(load_reference(arm.checkpoint), arm.plan, tasks, table, **common)
        from leanwam.rollouts.cluster import ray_session
        from leanwam.rollouts.cluster.arms import run_plan_on_ray

        address, layout = self._ray
        if self._connected is None:  # once, and only if there is something to run
            self._connected = self._stack.enter_context(ray_session(address))
        return run_plan_on_ray(
            self._connected,
            arm.checkpoint,
            arm.plan,
            tasks,
            table,
            threads=self._study.threads,
            layout=layout,
            **common,
        )


def _span(seconds: float) -> str:
    """``75`` → ``1 min 15 s``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


COMMANDS = {"run": run, "status": status}
