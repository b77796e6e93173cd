"""One arm of a comparison on Ray: the reference WAM under a plan, summed up as the serial runner does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanwam.plans import PlanSpec, refuse_cache
from leanwam.rollouts.cluster.driver import ClusterSummary, Layout, run_episodes_on_ray
from leanwam.rollouts.cluster.replica import OpenPolicy
from leanwam.rollouts.policy import NO_CACHES
from leanwam.rollouts.schedule import Shard, plan_episodes
from leanwam.rollouts.tasks import Task


@dataclass(frozen=True)
class PlanSource:
    """The reference WAM under a plan, opened in a replica's process.

    Attributes:
        checkpoint: a shipped checkpoint's name or a folder that every node sees.
        plan: the plan's spec.
        threads: CPU threads of the model; the same as in a serial run for the same last bits.
        device: ``cpu``, ``cuda``, or ``auto``: the GPU that Ray gave, if it gave one.
    """

    checkpoint: str
    plan: PlanSpec
    threads: int = 1
    device: str = "auto"

    @contextmanager
    def open(self) -> Iterator[OpenPolicy]:
        """Load the weights and set them to run under the plan."""
        import torch

        from leanwam.models.reference import load_reference
        from leanwam.models.reference.identity import checkpoint_id
        from leanwam.rollouts.policy import reference_policy

        torch.set_num_threads(self.threads)
        model = load_reference(self.checkpoint)
        name = checkpoint_id(model)
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        model.to(device)
        with reference_policy(model, self.plan) as (policy, counts):
            yield OpenPolicy(policy, name, model.config.observation, lambda: {"n_calls": counts.n_calls})


def run_plan_on_ray(
    ray: Any,
    checkpoint: str,
    plan: PlanSpec,
    tasks: list[Task],
    table: Path,
    *,
    arm: str,
    n_episodes: int,
    first_episode: int = 0,
    noise_stream: int = 0,
    n_lanes: int = 16,
    threads: int = 1,
    shard: Shard | None = None,
    layout: Layout | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run one arm's episodes on Ray and sum them up: the keys of ``arms.run_plan``, and ``ray``."""
    refuse_cache(plan, NO_CACHES)
    planned = plan_episodes(tasks, n_episodes, first=first_episode, noise_stream=noise_stream)
    done = run_episodes_on_ray(
        ray,
        PlanSource(checkpoint, plan, threads),
        planned,
        arm=arm,
        table=table,
        layout=layout,
        n_lanes=n_lanes,
        plan=plan.name,
        shard=shard,
        progress=progress,
    )
    return {
        "arm": arm,
        "plan": plan.name,
        "table": str(table),
        "n_episodes": done.tally.n_done,
        "n_planned": len(planned),
        "n_success": done.tally.n_success,
        "n_crashed": done.tally.n_crashed,
        "n_run": done.n_run,
        "n_found": done.n_found,
        "tasks": {name: (item.n_success, item.n_done) for name, item in done.tasks.items()},
        "policy_calls_now": done.counts.get("n_calls", 0),
        "policy_s_now": round(done.policy_s, 3),
        "wall_s_now": round(done.wall_s, 3),
        "ray": ray_block(done),
    }


def ray_block(done: ClusterSummary) -> dict[str, Any]:
    """How a run on Ray was laid out, and what bounds it (plain data)."""
    bound = done.bound
    return {
        "n_workers": done.n_workers,
        "n_replicas": done.n_replicas,
        "worker_lanes": done.worker_lanes,
        "n_workers_lost": done.n_workers_lost,
        "startup_s": round(done.startup_s, 3),
        "episodes_per_s": round(done.n_run / done.wall_s, 4) if done.n_run and done.wall_s > 0 else None,
        "bound": None
        if bound is None
        else {
            "side": bound.side,
            "policy_busy": round(bound.policy_busy, 3),
            "simulator_busy": round(bound.simulator_busy, 3),
            "batch_fill": round(bound.batch_fill, 3),
            "advice": bound.advice,
        },
        **({"why": "nothing was left to run"} if bound is None else {}),
    }
