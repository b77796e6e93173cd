"""The search's best plans, found from a trace alone, executed on the model that made the trace."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from torch import Tensor, nn

import leanwam
from leanwam.replay import HeadSketch, best_plans, head_problem, sketch_trace
from leanwam.traces import open_trace

N_STEPS, SHAPE, SEEDS = 7, (6, 4), (3, 4, 5, 6, 7)
SOLVERS = {
    "euler": lambda: FlowMatchEulerDiscreteScheduler(shift=3.0),
    "unipc": lambda: UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    ),
    "ddim": lambda: DDIMScheduler(clip_sample=False, timestep_spacing="trailing"),
}


class Head(nn.Module):
    """A random network of the time and of a call's features; of the sample too where it ``looks``."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.looks = looks
        size = SHAPE[0] * SHAPE[1]
        self.layers = nn.Sequential(nn.Linear(size + 8 + 6, 48), nn.Tanh(), nn.Linear(48, size))

    def forward(self, x: Tensor, timestep: Tensor, features: Tensor) -> Tensor:
        time = timestep.reshape(1, 1).float() / 1000
        waves = torch.cat([torch.sin(3 * 2**k * time + k) for k in range(6)], dim=1)
        seen = x.flatten(1) if self.looks else torch.zeros_like(x).flatten(1)
        inputs = torch.cat([seen, features, waves.expand(len(x), -1)], dim=1)
        return (3 * self.layers(inputs)).reshape(x.shape)


class Loop:
    """A sampling loop of a user's own: a head, a scheduler of diffusers, noise by the call's seed."""

    def __init__(self, solver: str, looks: bool) -> None:
        torch.manual_seed(1)
        self.head = Head(looks).eval()
        self.scheduler: Any = SOLVERS[solver]()

    def __call__(self, seed: int) -> np.ndarray:
        noise = torch.Generator().manual_seed(seed)
        x, features = torch.randn(1, *SHAPE, generator=noise), torch.randn(1, 8, generator=noise)
        self.scheduler.set_timesteps(N_STEPS)
        with torch.no_grad():
            for t in self.scheduler.timesteps:
                x = self.scheduler.step(self.head(x, t, features), t, x, return_dict=False)[0]
        return x[0].numpy().astype(np.float64)


def searched(loop: Loop, path: Path) -> HeadSketch:
    """The head's sketch, from a trace of the dense calls."""
    with leanwam.record(
        loop,
        {"action": loop.head},
        out=path,
        schedulers={"action": loop.scheduler},
        n_steps=N_STEPS,
        meta={"model": "loop"},
    ) as recorder:
        for seed in SEEDS:
            with recorder.call(episode=seed, index=0, seed=seed, task="t"):
                loop(seed)
    return sketch_trace(open_trace(path)).heads["action"]


def executed(loop: Loop, computed: tuple[int, ...]) -> np.ndarray:
    """Finals [call, *shape] of the same calls under a plan."""
    finals = []
    for seed in SEEDS:
        plan = "action=at:" + ",".join(map(str, computed))
        with leanwam.execute(loop, plan, {"action": loop.head}, n_steps=N_STEPS) as running:
            finals.append(loop(seed))
        assert running.executions["action"] == len(computed)
    return np.array(finals)


def plans_of(budget: int) -> list[tuple[int, ...]]:
    return [(0, *rest) for rest in itertools.combinations(range(1, N_STEPS), budget - 1)]


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_head_that_reads_no_sample_does_what_replay_says(solver: str, tmp_path: Path) -> None:
    """Its outputs do not depend on what was skipped, so replay is exact: no plan of the budget does better live."""
    loop = Loop(solver, looks=False)
    best = best_plans(head_problem(searched(loop, tmp_path / "loop.trace.zarr")))
    dense = np.array([loop(seed) for seed in SEEDS])
    scale = float((dense**2).mean())
    for budget in range(1, N_STEPS):
        costs = {plan: float(((executed(loop, plan) - dense) ** 2).mean()) for plan in plans_of(budget)}
        found = best[budget - 1]
        assert len(found.computed) == budget
        assert found.optimal
        assert costs[found.computed] == pytest.approx(found.cost, rel=1e-4, abs=1e-11 * scale)
        assert costs[found.computed] <= min(costs.values()) * (1 + 1e-4) + 1e-11 * scale
    assert best[0].cost > 1e-3 * scale


def test_the_final_of_the_best_plan_is_the_replayed_one(tmp_path: Path) -> None:
    """Not the error alone: every value of the final, from the trace's weights and outputs."""
    loop = Loop("unipc", looks=False)
    head = searched(loop, tmp_path / "loop.trace.zarr")
    trace = open_trace(tmp_path / "loop.trace.zarr")
    outputs = trace.read("action", "model_output").astype(np.float64)
    first = trace.read("action", "sample")[:, 0].astype(np.float64)
    weights = head.weights()
    for found in best_plans(head_problem(head)):
        last = [max(step for step in found.computed if step <= i) for i in range(N_STEPS)]
        replayed = weights[0] * first + np.einsum("i,ci...->c...", weights[1:], outputs[:, last])
        assert np.abs(executed(loop, found.computed) - replayed).max() < 2e-5


def test_a_head_that_reads_the_sample_departs_from_replay(tmp_path: Path) -> None:
    """Skipped steps change what later ones see: replay is then a prediction, and only the dense plan is exact."""
    loop = Loop("euler", looks=True)
    best = best_plans(head_problem(searched(loop, tmp_path / "loop.trace.zarr")))
    dense = np.array([loop(seed) for seed in SEEDS])
    assert np.abs(executed(loop, best[-1].computed) - dense).max() == 0.0
    live = float(((executed(loop, best[2].computed) - dense) ** 2).mean())
    assert abs(live / best[2].cost - 1) > 1e-3
