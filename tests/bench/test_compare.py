"""The three comparisons on tiny models: what is promised, counted, measured and flagged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from leanwam.bench import forward, generate, train, worldshape
from leanwam.bench.bounds import Machine
from leanwam.bench.clock import Samples, interleave
from leanwam.bench.generate import ASKED, BASELINE, CACHED, Options, compare
from leanwam.bench.parts import ceiling, count_work, measure_shares
from leanwam.bench.ratio import NOTHING_SAVED, SLOWER
from leanwam.bench.rows import card_rows, row, table
from leanwam.bench.subjects import load_subject
from leanwam.errors import InputError
from leanwam.models.reference import ObservationBatch, ReferenceWAM, load_preset
from leanwam.plans import parse_plan, parse_plans
from leanwam.report.card import load_speed

MACHINE = Machine(1e-6, 1e10, 1e10, "cpu", "float32")
QUICK = Options(n_rounds=6, n_warmup=1, n_share_repeats=1)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_generate_counts_promises_and_measures(heads: ReferenceWAM, tmp_path) -> None:  # type: ignore[no-untyped-def]
    options = Options(n_rounds=8, n_warmup=1, n_share_repeats=1, caches=True)
    plans = parse_plans("stride:1;plain_1;video=prefix:1")
    found = compare(heads, plans, 2, options, machine=MACHINE)
    json.dumps(found, allow_nan=False)
    rows = {item["name"]: item for item in found["rows"]}
    assert list(rows) == [
        "stride:1 bs2",
        "plain_1 bs2",
        "video=prefix:1 bs2",
        f"{BASELINE}{CACHED} bs2",
        f"stride:1{CACHED} bs2",
        f"plain_1{CACHED} bs2",
        f"video=prefix:1{CACHED} bs2",
    ]
    # everything is computed under another name
    assert rows["stride:1 bs2"]["executions"] == {"video": 6, "action": 6, "proprio": 6}
    assert rows["stride:1 bs2"]["expected_ratio"] == pytest.approx(1.0)
    assert rows["stride:1 bs2"]["flops_ratio"] == pytest.approx(1.0)
    assert rows["plain_1 bs2"]["executions"] == {"video": 1, "action": 1, "proprio": 1}
    assert rows["plain_1 bs2"]["expected_ratio"] == pytest.approx(6.0)
    assert rows["plain_1 bs2"]["measured_ratio"] > 1.8
    assert rows["plain_1 bs2"]["alarm"] is None
    held = rows["video=prefix:1 bs2"]
    assert held["executions"] == {"video": 1, "action": 6, "proprio": 6}
    label = "bs2 eager"
    # one of six executions of the video's network is left: the ceiling follows from its measured share of a call
    video = found["parts"][label]["network video"]
    assert 0.0 < video < 1.0
    assert held["expected_ratio"] == pytest.approx(1.0 / (1.0 - video * 5 / 6), rel=1e-6)
    assert sum(found["parts"][label].values()) == pytest.approx(1.0)
    assert found["bounds"][label]["bound"] in ("dispatch", "compute", "memory")
    raw = found["samples"][label]
    assert len(raw["wall_s"][BASELINE]) == 8
    assert sorted(raw["order"][0]) == list(range(8))
    assert len(table(found["rows"])) == 1 + len(rows)
    file = tmp_path / "speed.json"
    file.write_text(json.dumps(card_rows(found["rows"], primary="plain_1 bs2")))
    speed = load_speed(file)
    assert speed["word"] == "FASTER"
    assert speed["primary"] == 1


def test_baselines_say_which_lossless_savings_they_have(heads: ReferenceWAM) -> None:
    options = Options(n_rounds=6, n_warmup=1, n_share_repeats=1, caches=True, until=("action",))
    found = compare(heads, parse_plans("plain_1;video=prefix:1"), 1, options)
    rows = {item["name"].removesuffix(" bs1"): item for item in found["rows"]}
    assert {name: item["lossless"] for name, item in rows.items()} == {
        "plain_1": "none",
        "video=prefix:1": "none",
        f"{BASELINE}{ASKED}": "asked only",
        f"plain_1{ASKED}": "asked only",
        f"{BASELINE}{CACHED}": "all",
        f"plain_1{CACHED}": "all",
        f"video=prefix:1{CACHED}": "all",
    }
    assert rows["plain_1"]["executions"] == {"video": 1, "action": 1, "proprio": 1}
    for saving in (ASKED, CACHED):
        assert rows[f"plain_1{saving}"]["executions"] == {"video": 1, "action": 1, "proprio": 0}
        assert "network proprio" not in rows[f"{BASELINE}{saving}"]["network_executions"]


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Everything runs and is counted; the seconds say that every arm is so many times faster than its baseline."""

    def at(factor: float) -> None:
        def timed(*args: Any, **options: Any) -> Samples:
            found = interleave(*args, **options)
            seconds = np.outer(np.where(np.arange(len(found.names)) == 0, 1.0, 1.0 / factor), np.ones(16))
            seconds[1:] *= 1.0 + 0.01 * np.cos(np.arange(16))
            return replace(found, wall_s=seconds, cpu_s=seconds)

        monkeypatch.setattr(generate, "interleave", timed)

    return at


def test_a_dense_plan_says_what_it_costs_at_most(
    heads: ReferenceWAM, clocked: Callable[[float], None]
) -> None:
    clocked(1.0)
    found = compare(heads, [parse_plan("dense")], 1, QUICK)
    (only,) = found["rows"]
    assert only["executions"] == {"video": 6, "action": 6, "proprio": 6}
    assert only["dispatch_ratio"] == 1.0
    assert only["flops_ratio"] == 1.0
    assert only["alarm"] == NOTHING_SAVED
    low, high = only["interval"]
    assert low <= 1.0 <= high
    assert only["costs_at_most"] == pytest.approx(1.0 / low - 1.0)
    assert 0.0 < only["costs_at_most"] < 0.011
    assert "costs at most" in table(found["rows"])[1]


@pytest.mark.parametrize(("factor", "alarm"), [(1.0, NOTHING_SAVED), (1.05, NOTHING_SAVED), (0.95, SLOWER)])
def test_the_alarm_fires_on_a_plan_that_computes_everything_under_another_name(
    heads: ReferenceWAM, clocked: Callable[[float], None], factor: float, alarm: str
) -> None:
    clocked(factor)
    found = compare(heads, [parse_plan("stride:1")], 1, QUICK)
    (only,) = found["rows"]
    assert only["plan"] == "stride:1"
    assert only["flops_ratio"] == 1.0
    assert only["dispatch_ratio"] <= 1.0
    assert (only["interval"][0] > 1.0) == (factor == 1.05)  # there the clock alone would have said faster
    assert only["alarm"] == alarm


@pytest.mark.parametrize(
    ("factor", "flops_ratio", "dispatch_ratio", "alarm"),
    [
        (1.00, 1.5, 1.5, NOTHING_SAVED),  # fewer operations, but the clock does not show it
        (1.05, 1.5, 1.0, None),
        (1.05, 1.0, 1.5, None),
        (1.05, 1.0, 1.0, NOTHING_SAVED),  # a lucky interval
        (1.05, 1.0, None, NOTHING_SAVED),
        (0.95, 1.0, 1.0, SLOWER),
    ],
)
def test_the_alarm_asks_the_clock_and_the_counts(
    factor: float, flops_ratio: float, dispatch_ratio: float | None, alarm: str | None
) -> None:
    wobble = 1.0 + 0.01 * np.cos(np.arange(40))
    seconds = np.stack([np.ones(40), wobble / factor])
    quiet = {"contended": False}
    samples = Samples(("dense", "lean"), seconds, seconds, np.zeros((40, 2), int), quiet, 0, 1)
    found = row(
        samples,
        name="lean bs1",
        arm="lean",
        baseline="dense",
        expected_ratio=None,
        expected_from="",
        flops_ratio=flops_ratio,
        dispatch_ratio=dispatch_ratio,
    )
    assert found["alarm"] == alarm
    assert (found["costs_at_most"] is None) == (alarm is None)


def test_the_ceiling_is_amdahls_law(heads: ReferenceWAM, seen: ObservationBatch) -> None:
    from leanwam.rollouts.policy import planned_model

    def call(**more: object) -> object:
        return heads.generate(seen, (1, 2), **more)  # type: ignore[arg-type]

    dense = count_work(heads, call)
    assert dense.executions == {f"network {name}": 6 for name in ("video", "action", "proprio")}
    assert dense.amount["rest"] == 6
    with planned_model(heads, "action=at:0,3"):
        lean = count_work(heads, call)
    assert lean.amount["network action"] * 3 == dense.amount["network action"]
    shares = {"network action": 0.3, "network video": 0.4, "solver action": 0.1, "rest": 0.2}
    assert ceiling(shares, dense, lean) == pytest.approx(1.0 / (0.7 + 0.3 / 3))
    with planned_model(heads, "plain_3"):
        few = count_work(heads, call)
    assert ceiling(shares, dense, few) == pytest.approx(2.0)
    measured = measure_shares(heads, call, n_repeats=2)
    assert set(measured) == {*dense.amount, "rest"}
    assert sum(measured.values()) == pytest.approx(1.0)
    assert min(measured.values()) >= 0.0
    assert "forward" not in heads.group(("video",)).__dict__


def test_forward_on_the_joint_network(joint: ReferenceWAM) -> None:
    found = forward.compare_reference(
        joint, parse_plans("frames=drop_middle;frames=keep_all"), 2, QUICK, machine=MACHINE
    )
    json.dumps(found, allow_nan=False)
    dropped, kept = found["rows"]
    # 121 tokens, 32 of them in the middle frame: more than in proportion, since attention falls with the square
    assert 121 / 89 < dropped["expected_ratio"] < (121 / 89) ** 2
    assert kept["expected_ratio"] == pytest.approx(1.0)
    assert set(found["bounds"]) == {
        f"{name} bs2 eager" for name in (BASELINE, "frames=drop_middle", "frames=keep_all")
    }


@pytest.mark.parametrize("plan", ["sparse_3", "plain_2", "video=prefix:1", "sparse_3,frames=drop_middle"])
def test_forward_refuses_what_acts_over_steps(plan: str) -> None:
    with pytest.raises(InputError, match="over the steps"):
        forward.frame_plans(parse_plans(plan))


def test_training_updates_and_their_parts(joint: ReferenceWAM) -> None:
    config = msgspec.structs.replace(joint.config, tasks=(), normalization={})
    found = train.compare(config, parse_plans("frames=drop_middle"), 2, QUICK, machine=MACHINE)
    json.dumps(found, allow_nan=False)
    (only,) = found["rows"]
    assert only["flops_ratio"] > 1.2
    assert 1.0 < only["expected_ratio"] <= only["flops_ratio"]
    parts = found["parts"][f"{BASELINE} bs2"]
    assert set(parts) == {*train.PARTS, "whole"}
    assert parts["communication"]["seconds"] is None
    assert "one process" in parts["communication"]["why"]
    assert all(parts[part]["seconds"] > 0 for part in ("loader", "forward", "backward", "optimiser"))
    assert torch.Tensor.backward.__module__ == "torch._tensor"


def test_the_trainer_that_is_timed_is_the_real_one(joint: ReferenceWAM, tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = msgspec.structs.replace(joint.config, tasks=(), normalization={})
    trainer = train.make_trainer(config, None, tmp_path)
    before = [p.detach().clone() for p in trainer.parameters.values()]
    found = train.measure_parts({"a": trainer}, n_repeats=1)["a"]
    assert trainer.state.update == 2
    assert sum(
        found[part]["seconds"] for part in train.PARTS if found[part]["seconds"] is not None
    ) == pytest.approx(found["whole"]["seconds"], rel=1e-6)
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.parameters.values()))


def test_training_variants_and_their_table() -> None:
    """What a variant saves is what it does not compute: nothing where only a loss is off."""
    anchor, *variants = (
        _narrow(load_preset(name))
        for name in ("joint", "joint-drop-middle", "joint-mae25", "joint-loss-only")
    )
    found = train.compare(anchor, [], 2, QUICK, variants=variants)
    ratios = {item["plan"]: item["flops_ratio"] for item in found["rows"]}
    assert ratios["joint-drop-middle"] > ratios["joint-mae25"] > 1.1
    assert ratios["joint-loss-only"] == pytest.approx(1.0, abs=0.01)
    plans = {item["plan"]: (item["frames"], item["loss_frames"]) for item in found["rows"]}
    assert plans["joint-loss-only"] == (None, "drop_middle")
    lines = train.speed_lines(found["rows"], found["parts"])
    assert [line.split()[0] for line in lines[1:-1]] == [BASELINE, *ratios]
    assert "dropped tokens can save only in forward and backward" in lines[-1]
    other = msgspec.structs.replace(variants[0], n_layers=2)
    with pytest.raises(InputError, match="differs from joint in more than its frame plans"):
        train.compare(anchor, [], 2, QUICK, variants=[other])


def _narrow(config):  # type: ignore[no-untyped-def]
    return msgspec.structs.replace(config, width=32, n_layers=1, n_heads=2)


def test_the_large_transformer_has_the_published_operations() -> None:
    """7.672 and 5.397 TFLOP per forward in the frame-sparsity report; ours has its shape, not its code."""
    from torch.utils.flop_counter import FlopCounterMode

    shape = worldshape.Shape()
    for kept, published in ((720, 7.672), (480, 5.397)):
        layout = msgspec.structs.replace(shape.layout, t=kept // 240)
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            model = worldshape.WorldTransformer(worldshape.Shape(layout=layout))
            text = model.encode_text(torch.empty(1, 512, 4096), cached=False)
            video, others = torch.empty(1, kept, 192), torch.empty(1, 41, 16)
            model(video, others, torch.empty(1, kept + 41), text)
        assert counter.get_total_flops() / 1e12 == pytest.approx(published, rel=0.01)


def test_the_large_transformer_thinned_and_its_text_kept() -> None:
    model = worldshape.build(worldshape.REDUCED, torch.device("cpu"), torch.float32)
    outputs = {}
    for cached in (True, False):
        subjects = worldshape.subjects(model, ["keep_all", "drop_middle"], 1, cached_text=cached)
        outputs[cached] = {name: subject.once() for name, subject in subjects.items()}
    for name in outputs[True]:
        assert all(torch.equal(a, b) for a, b in zip(outputs[True][name], outputs[False][name])), name
    whole, kept, dropped = (
        outputs[True][name] for name in (BASELINE, "frames=keep_all", "frames=drop_middle")
    )
    assert all(torch.equal(a, b) for a, b in zip(whole, kept))
    video = dropped[0].reshape(1, 3, 240, -1)
    assert float(video[:, 1].abs().max()) == 0.0
    assert float(video[:, [0, 2]].abs().min(dim=-1).values.max()) > 0.0
    assert not torch.equal(whole[1], dropped[1])
    assert np.isfinite(dropped[1].numpy()).all()


def test_subjects_are_named_or_refused() -> None:
    assert load_subject("random:heads").config.tasks == ("task",)
    with pytest.raises(InputError):
        load_subject("random:nothing")
    with pytest.raises(InputError, match="cpu or cuda"):
        load_subject("random:heads", "tpu")


@pytest.mark.slow
def test_a_compiled_network_computes_the_same(heads: ReferenceWAM) -> None:
    found = forward.compare_reference(heads, parse_plans("frames=drop_middle"), 1, QUICK, backend="compile")
    (only,) = found["rows"]
    assert only["backend"] == "compile"
    assert only["measured_ratio"] > 0
