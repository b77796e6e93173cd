"""The invariants of the design, on the reference model under ``execute``."""

from __future__ import annotations

import pytest
import torch

from leanwam.errors import InputError
from leanwam.models import execute
from leanwam.models.protocol import WorldActionModel
from leanwam.rollouts.policy import planned_model, reference_policy

HEAD_PLANS = ["sparse_4", "tail_only_2", "action=sparse_2/linear,proprio=dense", "prefix:3"]


def test_fits_the_protocol(preset, wam):
    model = wam.random_model(preset)
    assert isinstance(model, WorldActionModel)
    assert set(model.heads()) == set(model.n_steps) == set(model.schedulers) == {"video", "action", "proprio"}


def test_a_dense_plan_is_bit_identical(preset, wam):
    model, given = wam.random_model(preset), wam.observation(preset)
    names, keys = list(model.heads()), list(model.state_dict())
    model.set_steps(6)
    plain = model.generate(given, [1, 2, 3])
    with execute(model, ",".join(f"{name}=dense" for name in names)) as run:
        gated = model.generate(given, [1, 2, 3])
    after = model.generate(given, [1, 2, 3])
    assert run.executions == dict.fromkeys(names, 6)
    assert list(model.state_dict()) == keys
    for name in names:
        assert torch.equal(plain.samples[name], gated.samples[name])
        assert torch.equal(plain.samples[name], after.samples[name])


@pytest.mark.parametrize("plan", HEAD_PLANS)
def test_video_is_bit_identical_under_every_head_plan(plan, wam):
    model, given = wam.random_model("heads"), wam.observation("heads")
    model.set_steps(8)
    plain = model.generate(given, [1, 2, 3])
    with execute(model, plan) as run:
        lean = model.generate(given, [1, 2, 3])
    assert torch.equal(plain.samples["video"], lean.samples["video"])
    assert not torch.equal(plain.samples["action"], lean.samples["action"])
    assert run.executions["action"] < 8


def test_in_joint_the_video_feels_held_heads(wam):
    """The counterpart: where streams read each other, a held action does change the video."""
    model, given = wam.random_model("joint"), wam.observation("joint")
    model.set_steps(8)
    plain = model.generate(given, [1, 2, 3])
    with execute(model, "sparse_2"):
        lean = model.generate(given, [1, 2, 3])
    assert not torch.equal(plain.samples["video"], lean.samples["video"])


def test_heads_reads_one_way_and_joint_both(wam):
    """Another action noise moves the video in ``joint`` only; another video noise moves the action in both."""
    for preset, moves in (("heads", False), ("joint", True)):
        model, given = wam.random_model(preset), wam.observation(preset)
        outputs = wam.one_step(model, given, {})
        other = wam.one_step(model, given, {"action": 1.0})
        assert torch.equal(outputs["video"], other["video"]) is not moves
        assert torch.equal(outputs["proprio"], other["proprio"]) is not moves
        moved = wam.one_step(model, given, {"video": 1.0})
        assert not torch.equal(outputs["action"], moved["action"])


def test_held_video_features_are_those_of_the_computed_step(wam):
    """With the video held after step 0, the heads read step 0's features at every step."""
    model, given = wam.random_model("heads"), wam.observation("heads")
    model.set_steps(5)
    plain = model.generate(given, [1, 2, 3])
    seen = []
    inner = model.group(("action",)).register_forward_hook(lambda _m, args, _o: seen.append(args[1][0][0][0]))
    with execute(model, "video=prefix:1,action=dense,proprio=dense") as run:
        lean = model.generate(given, [1, 2, 3])
    inner.remove()
    assert run.executions == {"video": 1, "action": 5, "proprio": 5}
    assert all(torch.equal(seen[0], other) for other in seen[1:])
    assert not torch.equal(plain.samples["action"], lean.samples["action"])


def test_a_cache_plan_is_refused_in_one_line(wam):
    model = wam.random_model("heads")
    plan = "cache:first_block:threshold=0.1"
    for opened in (execute(model, plan), planned_model(model, plan), reference_policy(model, plan)):
        with (
            pytest.raises(InputError, match=r"caches? .*runs on a host model.*cache:first_block") as refused,
            opened,
        ):
            pass
        assert "\n" not in str(refused.value)
