"""The linear skip of a flow stream: the best linear guess, nothing else, and only where it is asked for."""

from __future__ import annotations

import pytest
import torch

from leanwam.models.reference import load_reference
from leanwam.models.reference.config import load_preset
from leanwam.models.reference.identity import checkpoint_id
from leanwam.models.reference.observation import task_indices
from leanwam.models.reference.sampling import present_tokens
from leanwam.models.reference.towers import linear_flow


@pytest.mark.parametrize("t", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_linear_flow_is_the_regression_of_the_flow_on_the_sample(t):
    generator = torch.Generator().manual_seed(1)
    data, noise = torch.randn(2, 200_000, generator=generator, dtype=torch.float64)
    x = (1 - t) * data + t * noise
    slope = float((x * (noise - data)).mean() / x.square().mean())
    assert float(linear_flow(torch.tensor(t))) == pytest.approx(slope, abs=0.01)


def a_step(wam, keep=None):
    """A small joint model whose video expert says nothing by itself; its step's video output, sample and time."""
    model = wam.random_model("joint")
    torch.nn.init.zeros_(model.expert("video").out.weight)
    given = wam.observation("joint")
    made, samples = wam.conditions(model, given)
    if keep is not None:
        made = model.conditions(task_indices(model.config, given.task), present_tokens(model, given), keep)
    times = {name: torch.full((len(given.task),), 0.7) for name in model.config.streams}
    return model.step(made, samples, times)["video"], samples["video"]


def test_a_silent_expert_predicts_the_linear_guess(wam):
    output, sample = a_step(wam)
    torch.testing.assert_close(output, linear_flow(torch.tensor(0.7)) * sample)


def test_dropped_tokens_stay_exactly_zero_under_the_skip(wam):
    output, sample = a_step(wam, torch.tensor([token for token in range(96) if not 32 <= token < 64]))
    assert bool((output[:, 0] == 0).all())
    torch.testing.assert_close(output[:, 1], linear_flow(torch.tensor(0.7)) * sample[:, 1])


def test_only_the_joint_video_has_it_and_the_shipped_identity_stands():
    assert [n for n, s in load_preset("joint").streams.items() if s.skip] == ["video"]
    assert not any(stream.skip for stream in load_preset("heads").streams.values())
    assert checkpoint_id(load_reference("heads")) == "leanwam reference heads sha256:a23b51e2f9eac1f2"
