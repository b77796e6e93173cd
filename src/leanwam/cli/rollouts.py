"""Closed-loop episodes of the reference WAM under a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanwam.cli.output import console, print_json
from leanwam.errors import InputError

if TYPE_CHECKING:
    from leanwam.plans import PlanSpec
    from leanwam.rollouts.cluster import Layout


def run(
    *,
    plan: str = "dense",
    out: Path,
    tasks: str = "trained",
    episodes: int = 10,
    first_episode: int = 0,
    noise_stream: int = 0,
    arm: str | None = None,
    lanes: int = 16,
    shard: str | None = None,
    checkpoint: str = "heads",
    threads: int = 1,
    ray: tuple[str, ...] | None = None,
    workers: int | None = None,
    replicas: int = 1,
    worker_lanes: int | None = None,
    gpus_per_replica: float = 0.0,
    json: bool = False,
) -> None:
    """Run planned episodes under a plan; run again after a kill to go on, nothing lost and nothing twice.

    A checkpoint that was trained under a frame plan is not run under it unless --plan says so (frames=…); one
    line says where the two differ.

    Example: leanwam rollouts run --plan sparse_10 --tasks push,door-open --episodes 50 --out episodes.jsonl

    Args:
        plan: a plan's text or file (sparse_10, plain_4, action=tail_heavy_8/linear, frames=drop_middle, …).
        out: the episode table, NAME.jsonl; several arms may share it.
        tasks: names separated by commas, a family (PnP, articulated), or trained for all the model knows.
        episodes: of each task. Starts and noise depend on task and episode alone: arms are paired.
        first_episode: number of the first one.
        noise_stream: another number gives other policy noise from the same starts (anchor against anchor).
        arm: the name in the table; by default the plan's.
        lanes: environments side by side, one batch of the policy.
        shard: i/k, this process's part of the episodes; each writes its own file, read as one table.
        checkpoint: a shipped checkpoint's name or a run's folder.
        threads: CPU threads of the model.
        ray: run on Ray: --ray starts one on this machine, --ray ADDRESS (or auto) connects to one. The rows are
            those of a run without it.
        workers: simulator workers on Ray; by default what CPUs the replicas leave.
        replicas: policy replicas on Ray; each batches the requests of its share of the workers.
        worker_lanes: environments of each worker; by default two batches per replica are in flight.
        gpus_per_replica: GPUs of each replica, fractions allowed.
        json: print one JSON object on stdout.
    """
    from leanwam.plans import parse_plan
    from leanwam.rollouts import Shard
    from leanwam.rollouts.manifest import manifest_path, recorded_run

    if threads < 1 or lanes < 1:
        raise InputError("must be at least 1", field="--threads, --lanes", value=(threads, lanes))
    spec = parse_plan(plan)
    layout = cluster_layout(ray, workers, replicas, worker_lanes, gpus_per_replica)
    say_frames(checkpoint, spec)
    common: dict[str, Any] = {
        "arm": arm or spec.name,
        "n_episodes": episodes,
        "first_episode": first_episode,
        "noise_stream": noise_stream,
        "n_lanes": lanes,
        "shard": None if shard is None else Shard.parse(shard),
    }
    where = "one process" if ray is None else "Ray"
    with recorded_run(
        manifest_path(out), arm=common["arm"], plan=spec.name, shard=shard, n_episodes=episodes, ray=where
    ) as end:
        if ray is None:
            summary = _run_here(checkpoint, spec, tasks, out, threads, common)
        else:
            summary = _run_on_ray(
                ray[0] if ray else None, layout, checkpoint, spec, tasks, out, threads, common
            )
            end["ray_nodes"] = summary.pop("nodes")
        end["n_run"] = summary["n_run"]
    if json:
        print_json(summary)
        return
    text = console()
    for name, (good, n) in summary["tasks"].items():
        text.print(f"  {name:<18} {good} of {n}", markup=False)
    text.print(
        f"{summary['arm']}: {summary['n_success']} of {summary['n_episodes']} succeeded"
        f" ({summary['n_crashed']} crashed); {summary['n_run']} run now, {summary['n_found']} found in {out}",
        markup=False,
    )
    if summary.get("ray"):
        text.print(_bound_line(summary["ray"]), markup=False)


def say_frames(checkpoint: str, spec: PlanSpec) -> None:
    """One line on stderr where the checkpoint was trained under other frames than the plan runs it with."""
    from leanwam.cli.output import progress_console
    from leanwam.models.reference.checkpoint import load_config
    from leanwam.models.reference.training_frames import frames_note

    note = frames_note(load_config(checkpoint), spec.frames)
    if note is not None:
        progress_console().print(note, markup=False, soft_wrap=True)


def cluster_layout(
    ray: tuple[str, ...] | None,
    workers: int | None,
    replicas: int,
    worker_lanes: int | None,
    gpus_per_replica: float,
) -> Layout:
    """The layout on Ray that the options say.

    Raises:
        InputError: more than one address, or options of Ray without --ray.
    """
    from leanwam.rollouts.cluster import Layout

    if ray is not None and len(ray) > 1:
        raise InputError("names one address", field="--ray", value=" ".join(ray))
    given = (workers, replicas, worker_lanes, gpus_per_replica)
    if ray is None and given != (None, 1, None, 0.0):
        raise InputError(
            "want --ray", field="--workers, --replicas, --worker-lanes, --gpus-per-replica", value=given
        )
    return Layout(workers, replicas, worker_lanes, replica_gpus=gpus_per_replica)


def _run_here(
    checkpoint: str, spec: PlanSpec, tasks: str, out: Path, threads: int, common: dict[str, Any]
) -> dict[str, Any]:
    import torch

    from leanwam.models.reference import load_reference
    from leanwam.rollouts import select_tasks
    from leanwam.rollouts.arms import run_plan

    torch.set_num_threads(threads)
    model = load_reference(checkpoint)
    chosen = select_tasks(tasks, model.config.tasks)
    return run_plan(model, spec, chosen, out, **common)


def _run_on_ray(
    address: str | None,
    layout: Layout,
    checkpoint: str,
    spec: PlanSpec,
    tasks: str,
    out: Path,
    threads: int,
    common: dict[str, Any],
) -> dict[str, Any]:
    from leanwam.models.reference import load_reference
    from leanwam.rollouts import select_tasks
    from leanwam.rollouts.cluster import ray_session
    from leanwam.rollouts.cluster.arms import run_plan_on_ray
    from leanwam.rollouts.manifest import ray_nodes

    chosen = select_tasks(tasks, load_reference(checkpoint).config.tasks)
    with ray_session(address) as connected:
        summary = run_plan_on_ray(
            connected, checkpoint, spec, chosen, out, threads=threads, layout=layout, **common
        )
        return {**summary, "nodes": ray_nodes(connected)}


def _bound_line(ray: dict[str, Any]) -> str:
    """What bounds the throughput, in words."""
    shape = f"{ray['n_workers']} workers of {ray['worker_lanes']} lanes, {ray['n_replicas']} replicas"
    bound = ray["bound"]
    if bound is None:
        return f"Ray: {shape}; {ray['why']}"
    return (
        f"Ray: {shape}; {ray['episodes_per_s']} episodes/s; bound: {bound['side']} (policy busy"
        f" {bound['policy_busy']:.0%}, simulators {bound['simulator_busy']:.0%}, batches"
        f" {bound['batch_fill']:.0%} full): {bound['advice']}"
    )


COMMANDS = {"run": run}
