"""The training variants of the joint preset: one config each, masks, gradients, losses."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from leanwam.cli.rollouts import say_frames
from leanwam.errors import InputError
from leanwam.models.reference import training
from leanwam.models.reference.checkpoint import build_model, load_reference, save_reference
from leanwam.models.reference.codec import PatchCodec
from leanwam.models.reference.config import Affine, Codec, decode_config, identity_bytes, load_preset
from leanwam.models.reference.dataset import Batch
from leanwam.models.reference.identity import checkpoint_id
from leanwam.models.reference.objective import NoiseSchedules, stream_losses
from leanwam.models.reference.training import Run, train
from leanwam.models.reference.training_frames import TrainingFrames, frames_note
from leanwam.plans import parse_plan

STUDIES = Path(__file__).parents[3] / "studies"
VARIANTS = {
    "joint": {},
    "joint-drop-middle": {"frames": "drop_middle"},
    "joint-mae25": {"frames": "mae25:seed=0"},
    "joint-loss-only": {"loss_frames": "drop_middle"},
}
#: computed and counted video tokens of 96, the first 32 of them clean
N_TOKENS = {
    "joint": (96, 64),
    "joint-drop-middle": (64, 32),
    "joint-mae25": (72, 40),
    "joint-loss-only": (96, 32),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_differs_from_the_anchor_in_its_name_and_one_line(name):
    anchor, variant = load_preset("joint"), load_preset(name)
    settings = msgspec.structs.replace(anchor.training, **VARIANTS[name])
    assert variant == msgspec.structs.replace(anchor, name=name, training=settings)


def frames(name, **changes):
    config = load_preset(name)
    return TrainingFrames(
        msgspec.structs.replace(config, training=msgspec.structs.replace(config.training, **changes))
    )


def test_masks():
    assert frames("joint").at(3) == (None, None)
    assert frames("joint", frames="keep_all").at(3) == (None, None)
    keep, counted = frames("joint-drop-middle").at(3)
    assert keep.tolist() == [*range(32), *range(64, 96)]
    assert counted is None
    keep, counted = frames("joint-loss-only").at(3)
    assert keep is None
    assert counted.tolist() == list(range(32, 64))  # of the 64 noisy ones: the last frame
    keep, counted = frames("joint-loss-only", frames="drop_view:0").at(0)
    assert keep.tolist() == [*range(32), *range(48, 64), *range(80, 96)]
    assert counted.tolist() == list(range(48, 64))


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


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("frames", "drop_midle", "did you mean 'drop_middle'"),
        ("loss_frames", "tokens:0-31", "leaves no video token to learn"),
        ("held_out_episodes", -1, "must not be negative"),
    ],
)
def test_bad_plans_are_refused(field, text, message):
    with pytest.raises(InputError, match=message):
        frames("joint", **{field: text})


def losses_of(wam, name, *, update=0, change=None):
    """The losses of an update of a fresh variant, its model's outputs, and the gradient that reaches the
    data of the video [batch, entry, view, row, column, width]."""
    model = wam.random_model("joint")
    plans = frames(name)
    _, data, _ = wam.prepared("joint")
    batch = data.at(np.arange(8) * 3)
    video = batch.target["video"].clone()
    if change is not None:
        change(video)
    video.requires_grad_(True)
    outputs = {}
    honest = model.step
    model.step = lambda *args, **kwargs: outputs.update(honest(*args, **kwargs)) or outputs
    losses = stream_losses(
        model,
        NoiseSchedules(model),
        Batch(batch.task, batch.present, {**batch.target, "video": video}),
        torch.Generator().manual_seed(5),
        *plans.at(update),
    )
    return losses, outputs, video


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("update", [0, 7])
def test_no_gradient_passes_through_dropped_tokens(wam, name, update):
    losses, outputs, video = losses_of(wam, name, update=update)
    keep, _ = frames(name).at(update)
    kept = torch.ones(64, dtype=torch.bool)
    if keep is not None:
        kept = torch.isin(torch.arange(32, 96), keep)
    for stream, loss in losses.items():
        assert torch.isfinite(loss)
        (gradient,) = torch.autograd.grad(loss, video, retain_graph=True)
        of_token = gradient.reshape(8, 64, -1).abs().sum(dim=(0, 2))
        assert bool((of_token[~kept] == 0.0).all()), stream
        assert bool((of_token[kept] > 0.0).all()), stream  # by the loss, or by attention
    assert bool((outputs["video"].reshape(8, 64, -1)[:, ~kept] == 0.0).all())


def test_dropped_tokens_change_no_loss(wam):
    def spoil(video):
        video[:, 0] += 3.0

    for name, is_equal in (("joint", False), ("joint-drop-middle", True), ("joint-loss-only", False)):
        before, _, _ = losses_of(wam, name)
        after, _, _ = losses_of(wam, name, change=spoil)
        for stream in before:
            assert torch.equal(before[stream], after[stream]) == is_equal, (name, stream)


def test_loss_only_is_the_dense_network_without_the_middle_frame_in_the_loss(wam):
    dense, dense_outputs, video = losses_of(wam, "joint")
    control, outputs, _ = losses_of(wam, "joint-loss-only")
    for stream in outputs:
        assert torch.equal(outputs[stream], dense_outputs[stream])
    for stream in ("action", "proprio"):
        assert torch.equal(control[stream], dense[stream])
    assert not torch.equal(control["video"], dense["video"])
    # what the loss says to the network's outputs: nothing about the middle frame
    (direct,) = torch.autograd.grad(control["video"], outputs["video"], retain_graph=True)
    assert bool((direct[:, 0] == 0.0).all())
    assert bool((direct[:, 1] != 0.0).any())
    # and yet the middle frame is read: by attention, from video and action losses
    for stream in ("video", "action"):
        again, _, video = losses_of(wam, "joint-loss-only")
        (gradient,) = torch.autograd.grad(again[stream], video)
        assert bool((gradient[:, 0].abs() > 0.0).any())


def test_the_video_losses_of_the_frames_add_up(wam):
    """Dense = the mean of the loss over the middle frame and the loss over the last one."""
    dense, _, _ = losses_of(wam, "joint")
    last, _, _ = losses_of(wam, "joint-loss-only")
    model = wam.random_model("joint")
    _, data, _ = wam.prepared("joint")
    middle = stream_losses(
        model,
        NoiseSchedules(model),
        data.at(np.arange(8) * 3),
        torch.Generator().manual_seed(5),
        None,
        torch.arange(32),
    )
    assert dense["video"].item() == pytest.approx((last["video"] + middle["video"]).item() / 2, rel=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_trains_and_its_checkpoint_says_how(wam, name, tmp_path, monkeypatch):
    config, data, codec = wam.prepared(name, n_updates=3)
    seen = []
    honest = training.stream_losses

    def watched(model, schedules, batch, generator, keep, counted, *rest):
        losses = honest(model, schedules, batch, generator, keep, counted, *rest)
        seen.append((keep, batch, {key: loss.item() for key, loss in losses.items()}))
        return losses

    monkeypatch.setattr(training, "stream_losses", watched)
    train(config, data, Run(tmp_path, "c", "d", progress=False), codec.state_dict())
    assert len(seen) == 3
    assert all(np.isfinite(list(losses.values())).all() for _, _, losses in seen)
    if name == "joint-mae25":
        assert not torch.equal(seen[0][0], seen[1][0])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["frames"] == VARIANTS[name].get("frames")
    assert manifest["loss_frames"] == VARIANTS[name].get("loss_frames")
    computed, counted = N_TOKENS[name]
    assert manifest["n_video_tokens"] == {"all": 96, "computed": computed, "with_loss": counted}
    loaded = load_reference(tmp_path).config
    assert (loaded.name, loaded.training.frames) == (name, VARIANTS[name].get("frames"))
    # data and noise are those of the anchor, whatever is left out
    anchor, anchor_data, _ = wam.prepared("joint", n_updates=3)
    number = np.random.default_rng([anchor.training.seed, 0])
    number.integers(2**62)
    same = anchor_data.batch(number, anchor.training.batch_size)
    assert torch.equal(same.target["video"], seen[0][1].target["video"])


def test_variants_begin_from_one_policy_that_saw_no_future_frame(wam, tmp_path):
    config, data, codec = wam.prepared("joint-policy", n_updates=3)
    policy = train(config, data, Run(tmp_path / "policy", "c", "d", progress=False), codec.state_dict())
    manifest = json.loads((tmp_path / "policy" / "manifest.json").read_text())
    assert manifest["n_video_tokens"] == {"all": 96, "computed": 32, "with_loss": 0}
    assert manifest["final_loss"]["video"] == 0.0
    assert manifest["init"] is None
    # no video output was ever asked for, so what makes it was never touched but by weight decay
    head = "trunks.video+action+proprio.experts.video.out.bias"
    torch.manual_seed(config.training.seed)
    before = build_model(config).state_dict()[head]
    torch.testing.assert_close(policy.state_dict()[head], before, rtol=1e-3, atol=0.0)
    for name in ("joint", "joint-drop-middle"):
        of, its_data, _ = wam.prepared(name, n_updates=1, learning_rate=1e-12)
        out = tmp_path / name
        begun = train(of, its_data, Run(out, "c", "d", progress=False), codec.state_dict(), policy)
        for key, value in begun.state_dict().items():
            torch.testing.assert_close(value, policy.state_dict()[key])
        assert json.loads((out / "manifest.json").read_text())["init"] == checkpoint_id(policy)
        assert load_reference(out).config.training.init == checkpoint_id(policy)
    with pytest.raises(InputError, match="another value was begun here"):  # from scratch, in the same folder
        train(of, its_data, Run(out, "c", "d", progress=False), codec.state_dict())


RUNS = [
    file
    for study in ("frames", "frames-2", "frames-3")
    for file in sorted((STUDIES / study / "training").rglob("config.json"))
]


@pytest.mark.parametrize("run", RUNS, ids=lambda file: file.parent.relative_to(STUDIES).as_posix())
def test_the_presets_make_the_checkpoints_of_the_frames_studies_again(run):
    """train.sh trains what was trained: a preset that is changed later would silently make others."""
    trained = decode_config(run.read_bytes(), file=run)
    study, _, name = run.parent.relative_to(STUDIES).as_posix().partition("/training/")
    preset = {"joint-policy-2": "joint-policy"}.get(name, name)
    if study in ("frames-2", "frames-3"):
        preset = str(STUDIES / "frames-2" / "presets" / f"{name}.toml")
    elif preset.startswith("first/"):
        preset = str(STUDIES / study / f"{preset}.toml")
    config = load_preset(preset)
    more = {"seed": 1, "n_updates": 7000} if name == "joint-policy-2" else {}
    if study == "frames-3":
        more = {"seed": 1}
    settings = msgspec.structs.replace(config.training, init=trained.training.init, **more)
    assert trained == msgspec.structs.replace(
        config, training=settings, tasks=trained.tasks, normalization=trained.normalization
    )


def test_a_model_of_other_tasks_lends_what_it_knows(wam, tmp_path):
    config, data, codec = wam.prepared("joint", n_updates=1, learning_rate=1e-12)
    known = config.tasks[0]
    policy = build_model(msgspec.structs.replace(config, tasks=("hammer", known, "lever-pull")))
    policy.codec.load_state_dict(codec.state_dict())
    fresh = build_model(config).state_dict()
    begun = train(config, data, Run(tmp_path, "c", "d", progress=False), codec.state_dict(), policy)
    assert begun.config.tasks == config.tasks
    for key, value in begun.state_dict().items():
        lent = policy.state_dict()[key]
        if key.endswith(".task.weight"):
            torch.testing.assert_close(value[0], lent[1])
            assert value.shape == fresh[key].shape != lent.shape
            assert not any(torch.allclose(row, other) for row in value for other in (lent[0], lent[2]))
        else:
            torch.testing.assert_close(value, lent)


def test_a_model_of_other_data_is_no_beginning(wam, tmp_path):
    config, data, codec = wam.prepared("joint", n_updates=1)
    good = wam.random_model("joint")
    others = {
        "shapes of its tensors": msgspec.structs.replace(good.config, width=64),
        "normalization": msgspec.structs.replace(
            good.config, normalization={**good.config.normalization, "action": Affine((2.0,) * 4, (0.0,) * 4)}
        ),
        "codec": good.config,
    }
    for what, other in others.items():
        model = build_model(other)
        if what != "codec":
            model.codec.load_state_dict(codec.state_dict())
        with pytest.raises(InputError, match=f"init: has (other|another) {what}"):
            train(config, data, Run(tmp_path, "c", "d", progress=False), codec.state_dict(), model)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize(
    ("name", "plan", "note"),
    [
        ("joint", None, None),
        ("joint", "keep_all", None),
        ("joint-loss-only", None, None),
        ("joint-drop-middle", "drop_middle", None),
        ("joint-drop-middle", "keep_ends", None),  # the same mask
        ("joint-mae25", "keep:0.25:seed=9", None),  # any mask of the plan it was trained under
        ("joint-drop-middle", None, "was trained under frames=drop_middle, run with frames=keep_all"),
        ("joint-mae25", "drop_middle", "was trained under frames=mae25:seed=0, run with frames=drop_middle"),
        ("joint", "drop_middle", "was trained under frames=keep_all, run with frames=drop_middle"),
    ],
)
def test_a_checkpoint_run_with_other_frames_is_said(name, plan, note):
    assert frames_note(load_preset(name), plan) == (None if note is None else f"{name} {note}")


def test_rollouts_say_so_in_one_line(wam, tmp_path, capsys):
    config, _, codec = wam.prepared("joint-drop-middle")
    model = build_model(config)
    model.codec.load_state_dict(codec.state_dict())
    save_reference(tmp_path, config, model.state_dict())
    say_frames(str(tmp_path), parse_plan("dense"))
    said = capsys.readouterr().err
    assert said == "joint-drop-middle was trained under frames=drop_middle, run with frames=keep_all\n"
    say_frames(str(tmp_path), parse_plan("frames=drop_middle"))
    assert capsys.readouterr().err == ""


def test_a_preset_file_extends_a_preset_or_the_file_beside_it(tmp_path):
    (tmp_path / "a.toml").write_text('extends = "joint"\n[training]\nseed = 7\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\nname = "b"\n')
    (tmp_path / "c.toml").write_text('extends = "c.toml"\n')
    joint, b = load_preset("joint"), load_preset(str(tmp_path / "b.toml"))
    assert b == msgspec.structs.replace(
        joint, name="b", training=msgspec.structs.replace(joint.training, seed=7)
    )
    with pytest.raises(InputError, match="extends itself"):
        load_preset(str(tmp_path / "c.toml"))


def test_the_identity_of_earlier_checkpoints_is_kept():
    """Fields that came later are no part of it at their default, and are one otherwise."""
    joint = load_preset("joint")
    plain = identity_bytes(joint)
    assert b"loss_frames" not in plain
    assert b"residual_clamp" not in plain
    for name in VARIANTS:
        assert (identity_bytes(msgspec.structs.replace(load_preset(name), name="joint")) == plain) == (
            name == "joint"
        )
    assert checkpoint_id(load_reference("heads")) == "leanwam reference heads sha256:a23b51e2f9eac1f2"


def test_the_clamp_of_the_codec_raises_small_residuals_only():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (40, 1, 8, 8, 3), generator=generator, dtype=torch.uint8)
    pixels[:, :, :, :4] //= 4  # patches of unequal size
    codecs = [PatchCodec(4, 12) for _ in range(3)]
    for codec, share in zip(codecs, (0.0, 0.5, 1.0)):
        codec.fit(pixels, pixels.roll(1, 0), share)
    free, half, common = ((codec.residual_scale * codec.scale) for codec in codecs)
    torch.testing.assert_close(half, free.clamp(min=0.5 * float(free.max())))
    torch.testing.assert_close(common, torch.full_like(common, float(free.max())))
    assert float(free.min()) < 0.9 * float(free.max())
    with pytest.raises(InputError, match=r"codec.residual_clamp: lies between 0 and 1"):
        Codec(16, 48, 1.5)
