"""The training variants of the joint preset: one config each, masks, gradients, losses."""

from __future__ import annotations

import msgspec
import pytest
import torch

from leanwam.models.reference.config import load_preset
from leanwam.models.reference.training_frames import TrainingFrames

MIDDLE = range(32, 64)  # of 3 × 32 video tokens
VARIANTS = {
    "joint": {},
    "joint-drop-middle": {"frames": "drop_middle"},
    "joint-mae25": {"frames": "mae25:seed=0"},
    "joint-loss-only": {"loss_frames": "drop_middle"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_differs_from_the_anchor_in_its_name_and_one_line(name):
    anchor, variant = load_preset("joint"), load_preset(name)
    training = msgspec.structs.replace(anchor.training, **VARIANTS[name])
    assert variant == msgspec.structs.replace(anchor, name=name, training=training)


def frames(name, **changes):
    config = load_preset(name)
    return TrainingFrames(
        msgspec.structs.replace(config, training=msgspec.structs.replace(config.training, **changes))
    )


def test_masks():
    assert frames("joint").at(3) == (None, None)
    keep, counted = frames("joint-drop-middle").at(3)
    assert keep.tolist() == [*range(32), *range(64, 96)]
    assert counted is None
    keep, counted = frames("joint-loss-only").at(3)
    assert keep is None
    assert counted.tolist() == list(range(32, 64))  # of the 64 noisy ones: the last frame


def test_mae25_draws_a_new_mask_of_the_same_size_for_every_update():
    drawn = [frames("joint-mae25").at(update)[0] for update in range(60)]
    again = [frames("joint-mae25").at(update)[0] for update in range(60)]
    assert all(torch.equal(a, b) for a, b in zip(drawn, again))
    assert {len(keep) for keep in drawn} == {72}
    assert all(set(range(32)) | set(range(64, 96)) <= set(keep.tolist()) for keep in drawn)
    assert len({tuple(keep.tolist()) for keep in drawn}) > 55
    assert set().union(*(keep.tolist() for keep in drawn)) == set(range(96))
    for other in ({"seed": 1}, {"frames": "mae25:seed=1"}):
        assert not torch.equal(frames("joint-mae25", **other).at(0)[0], drawn[0])
