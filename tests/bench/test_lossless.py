"""What is computed once stays the same to the bit, and every reuse is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leanwam.models.reference import ObservationBatch, ReferenceWAM
from leanwam.models.reference.cached_solvers import patched_solver
from leanwam.models.reference.caching import LosslessCache, asked_only, lossless
from leanwam.rollouts.policy import planned_model

SEEDS = (5, 6)


@pytest.mark.parametrize("preset", ["heads", "joint"])
@pytest.mark.parametrize(
    "plan", ["dense", "sparse_2/linear", "plain_3", "video=prefix:2", "frames=drop_middle"]
)
def test_samples_are_the_same_to_the_bit(
    request: pytest.FixtureRequest, preset: str, plan: str, seen: ObservationBatch
) -> None:
    model: ReferenceWAM = request.getfixturevalue(preset)
    with planned_model(model, plan) as (_, _, options):
        expected = [model.generate(seen, seeds, **options) for seeds in (SEEDS, (7, 8))]
    cache = LosslessCache(model)
    with planned_model(model, plan) as (_, _, options), cache.active():
        found = [model.generate(seen, seeds, **options) for seeds in (SEEDS, (7, 8))]
    for before, after in zip(expected, found):
        for name, sample in before.samples.items():
            assert torch.equal(sample, after.samples[name]), name
        assert np.array_equal(before.action, after.action)
    assert cache.reuse.n_reused["times"] > 0
    assert cache.reuse.n_reused["coefficients"] > 0
    with cache.active():
        again = model.generate(seen, SEEDS)
    assert torch.equal(again.samples["action"], model.generate(seen, SEEDS).samples["action"])


def test_every_reuse_is_counted(heads: ReferenceWAM, seen: ObservationBatch) -> None:
    with lossless(heads) as reuse:
        for _ in range(3):
            heads.generate(seen, SEEDS)
    # three streams of six steps, three calls: each embedding and each coefficient is made once
    assert reuse.n_made == {"tokens": 1, "times": 18, "coefficients": 12}
    assert reuse.n_reused["times"] == 2 * 18
    assert reuse.n_reused["tokens"] == 2
    # action and proprio share a schedule, so their coefficients are the same six
    assert reuse.n_reused["coefficients"] == 3 * 18 - 12
    assert reuse.n_streams_skipped == 0


def test_the_time_network_runs_once_per_time(heads: ReferenceWAM, seen: ObservationBatch) -> None:
    calls = {"n": 0}
    heads.expert("action").time.register_forward_hook(lambda *_: calls.update(n=calls["n"] + 1))
    with lossless(heads):
        heads.generate(seen, SEEDS)
        heads.generate(seen, SEEDS)
    assert calls["n"] == 6
    heads.generate(seen, SEEDS)
    assert calls["n"] == 12


def test_nobody_asked_for_the_proprio_stream(heads: ReferenceWAM, seen: ObservationBatch) -> None:
    expected = heads.generate(seen, SEEDS)
    runs = dict.fromkeys(heads.heads(), 0)
    for name, head in heads.heads().items():
        head.register_forward_hook(lambda *_, name=name: runs.update({name: runs[name] + 1}))
    with lossless(heads) as reuse:
        found = heads.generate(seen, SEEDS, until=("action",))
    assert np.array_equal(found.action, expected.action)
    assert runs == {"video": 6, "action": 6, "proprio": 0}
    assert reuse.n_streams_skipped == 1


@pytest.mark.parametrize("plan", ["plain_3", "sparse_2", "video=prefix:1"])
def test_the_streams_nobody_asked_for_can_be_left_out_alone(
    heads: ReferenceWAM, seen: ObservationBatch, plan: str
) -> None:
    with planned_model(heads, plan) as (_, all_counts, options):
        expected = heads.generate(seen, SEEDS, until=("action",), **options)
    with planned_model(heads, plan) as (_, counts, options), asked_only(heads) as reuse:
        found = heads.generate(seen, SEEDS, until=("action",), **options)
    assert np.array_equal(found.action, expected.action)
    assert counts.executions == {**all_counts.executions, "proprio": 0}
    assert all_counts.executions["proprio"] > 0
    assert reuse.n_streams_skipped == 1
    assert reuse.n_made == {}
    assert "conditions" not in heads.__dict__


def test_whoever_asks_for_everything_gets_everything(heads: ReferenceWAM, seen: ObservationBatch) -> None:
    expected = heads.generate(seen, SEEDS)
    with asked_only(heads) as reuse:
        found = heads.generate(seen, SEEDS)
    assert all(torch.equal(x, found.samples[name]) for name, x in expected.samples.items())
    assert reuse.n_streams_skipped == 0


def test_a_held_stream_that_nobody_asked_for_is_not_stepped(
    heads: ReferenceWAM, seen: ObservationBatch
) -> None:
    with planned_model(heads, "video=at:0,2") as (_, _, options):
        expected = heads.generate(seen, SEEDS, until=("action",), **options)
    with planned_model(heads, "video=at:0,2") as (spec, counts, options):
        plan = spec.resolve(heads.n_steps, heads.heads())
        steps = {"n": 0}
        scheduler = heads.schedulers["video"]
        original = scheduler.step
        scheduler.step = lambda *a, **k: (steps.update(n=steps["n"] + 1), original(*a, **k))[1]
        with LosslessCache(heads).active(plan):
            found = [heads.generate(seen, SEEDS, until=("action",), **options) for _ in range(2)]
    assert all(np.array_equal(item.action, expected.action) for item in found)
    assert counts.executions == {"video": 4, "action": 12, "proprio": 0}
    assert steps["n"] == 2 * 3  # not 2 * 6: video steps to the last one that computes


def test_the_model_is_as_before(heads: ReferenceWAM, seen: ObservationBatch) -> None:
    def interrupted() -> None:
        with lossless(heads):
            heads.generate(seen, SEEDS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "conditions" not in heads.__dict__
    assert all("step" not in scheduler.__dict__ for scheduler in heads.schedulers.values())


@pytest.mark.parametrize("n_steps", [1, 2, 3, 10, 50])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_unipc_with_kept_coefficients_is_unipc(n_steps: int, shift: float) -> None:
    from diffusers import UniPCMultistepScheduler

    options = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": shift}
    table: dict[object, object] = {}

    def kept(kind: str, key: tuple[object, ...], make):  # type: ignore[no-untyped-def]
        return table.setdefault(key, make()) if key not in table else table[key]

    def run(*, patched: bool) -> list[torch.Tensor]:
        scheduler = UniPCMultistepScheduler(**options)
        scheduler.set_timesteps(n_steps)
        patch = patched_solver(scheduler, kept) if patched else None
        assert (patch is not None) == patched
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(2, 5, 4, generator=generator)
        found = []
        for time in scheduler.timesteps:
            x = scheduler.step(torch.randn(x.shape, generator=generator), time, x).prev_sample
            found.append(x)
        return found

    expected = run(patched=False)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(expected, run(patched=True), strict=True))
