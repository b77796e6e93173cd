"""Sketches: equal to direct replay, additive, cached by content, honest about what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leanwam.errors import InputError
from leanwam.plans import HOLDS, HeadPlan, parse_plans
from leanwam.replay import (
    dimension_rms,
    mask_coefficients,
    merge_sketches,
    open_sketch,
    per_call,
    plan_coefficients,
    score_plans,
    simulate,
    sketch_path,
    sketch_trace,
)
from leanwam.replay.evaluate import worst_mean
from leanwam.replay.sketch import unpack
from leanwam.replay.sketch_grams import call_grams
from leanwam.traces import Checksums, Sampler, Trace, open_trace

MakeTrace = Callable[..., Trace]


@pytest.mark.parametrize("n_steps", [10, 50])
def test_scores_equal_direct_replay(make_trace: MakeTrace, n_steps: int) -> None:
    """Also at n = 50, where the first weights are 2·10⁴ with opposite signs."""
    trace = make_trace(n_steps=n_steps)
    head = sketch_trace(trace).heads["action"]
    plans = [HeadPlan(n_steps=n_steps, computed=(0, 3, 7), hold=hold) for hold in HOLDS]  # type: ignore[arg-type]
    plans.append(HeadPlan(n_steps=n_steps, computed=tuple(range(n_steps))))
    scores = score_plans(head, plan_coefficients(head.weights()[1:], plans), threshold=0.9)
    names = ",".join(f"at:0,3,7/{hold}" for hold in HOLDS if hold != "hold")
    result = simulate(trace, parse_plans(f"at:0,3,7,{names},dense"))
    for row, plan in enumerate(plans):
        name = "dense" if plan.is_dense else "at:0,3,7" + ("" if plan.hold == "hold" else f"/{plan.hold}")
        level = result["experiment_1_1"][name]["heads"]["action"]["solver"]
        assert scores.mse[row] == pytest.approx(level["mse"], rel=1e-9, abs=1e-20)
        assert scores.cosine[row] == pytest.approx(level["cosine_mean"], abs=1e-9)


def test_natural_gram_is_that_of_x_T_and_the_outputs(make_trace: MakeTrace) -> None:
    trace = make_trace()
    head = sketch_trace(trace).heads["state"]
    rows = np.concatenate(
        [trace.read("state", "sample")[:, :1], trace.read("state", "model_output")], axis=1
    ).reshape(6, 11, -1)
    expected = np.einsum("cie,cje->ij", rows, rows) / rows.shape[0] / rows.shape[2]
    assert head.natural_gram() == pytest.approx(expected, rel=1e-9)


def test_masks_and_plans_give_the_same_coefficients(make_trace: MakeTrace) -> None:
    head = sketch_trace(make_trace()).heads["action"]
    weights = head.weights()[1:]
    plan = HeadPlan(n_steps=10, computed=(0, 2, 6))
    mask = np.isin(np.arange(10), plan.computed)[None]
    assert mask_coefficients(weights, mask) == pytest.approx(plan_coefficients(weights, [plan]))


def test_scores_do_not_depend_on_blocks_and_worst_is_the_tail(
    make_trace: MakeTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = sketch_trace(make_trace(n_calls=9)).heads["action"]
    masks = np.random.default_rng(0).random((30, 10)) < 0.4
    vectors = mask_coefficients(head.weights()[1:], masks)
    whole = score_plans(head, vectors, worst=0.3)
    monkeypatch.setattr("leanwam.replay.evaluate._PLANS_AT_ONCE", 7)
    blocks = score_plans(head, vectors, worst=0.3)
    assert blocks.mse == pytest.approx(whole.mse, rel=1e-12)
    squares = np.concatenate([mse for _, mse, _ in per_call(head, vectors)])
    assert whole.worst_mse == pytest.approx(np.sort(squares, axis=1)[:, -3:].mean(axis=1))
    assert worst_mean(np.array([1.0, 5.0, 2.0]), 0.01) == 5.0


def test_merged_shards_equal_the_whole(make_trace: MakeTrace, tmp_path: Path) -> None:
    whole = make_trace(n_calls=6)
    part = make_trace(n_calls=4, name="first.trace.zarr")  # the same stream of calls, cut earlier
    other = make_trace(n_calls=5, name="second.trace.zarr", clip=False, share=0.01)
    merged = merge_sketches(
        [sketch_trace(part, dims=True).path, sketch_trace(other, dims=True).path], tmp_path / "all.sketch"
    )
    assert merged.n_calls == 9
    head, a, b = (s.heads["action"] for s in (merged, sketch_trace(part), sketch_trace(other)))
    assert head.mean_gram() == pytest.approx((4 * a.mean_gram() + 5 * b.mean_gram()) / 9, rel=1e-12)
    assert head.mean_gram(np.arange(9) < 4) == pytest.approx(a.mean_gram(), rel=1e-12)
    assert len(np.unique(merged.episode_numbers())) == 2 + 3
    assert sketch_trace(whole).n_calls == 6
    with pytest.raises(InputError, match="the same calls are given twice"):
        merge_sketches([sketch_path(part), sketch_path(part)], tmp_path / "twice.sketch")
    different = sketch_trace(make_trace(n_steps=9, name="nine.trace.zarr"))
    with pytest.raises(InputError, match="must have n = 10"):
        merge_sketches([sketch_path(part), different.path], tmp_path / "mixed.sketch")


def test_a_sketch_is_kept_and_made_again_when_the_content_changes(make_trace: MakeTrace) -> None:
    trace = make_trace()
    made = sketch_trace(trace)
    stamp = (made.path / "sketch.json").stat().st_mtime_ns
    assert (sketch_trace(open_trace(trace.path)).path / "sketch.json").stat().st_mtime_ns == stamp
    from leanwam.traces import TraceWriter

    with TraceWriter.resume(trace.path) as writer:
        data = {h: {q: trace.read(h, q)[0] for q in trace.quantities(h)} for h in trace.heads}
        writer.append(data, episode=9, index=0, seed=9, task="t")
    again = sketch_trace(open_trace(trace.path))
    assert again.n_calls == 7
    assert (again.path / "sketch.json").stat().st_mtime_ns != stamp


def test_a_call_that_is_not_finite_is_dropped_and_named(make_trace: MakeTrace) -> None:
    def spoil(call: int, data: dict[str, dict[str, np.ndarray]]) -> None:
        if call == 2:
            data["action"]["model_output"][1, 0, 0] = np.nan

    spoilt = sketch_trace(make_trace(edit=spoil, name="spoilt.trace.zarr")).heads["action"]
    clean = sketch_trace(make_trace()).heads["action"]
    assert [call.call for call in spoilt.meta.dropped] == [2]
    assert spoilt.mean_gram() == pytest.approx(clean.mean_gram(np.arange(6) != 2), rel=1e-12)


@pytest.mark.parametrize("dims", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_grams_do_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch, dtype: type, dims: bool) -> None:
    """Outputs that hardly move, so that squares of the outputs themselves would lose every digit."""
    rng = np.random.default_rng(0)
    outputs = (1e3 + 1e-3 * rng.standard_normal((7, 37, 5, 6)).cumsum(axis=1)).astype(dtype)
    samples = rng.standard_normal((7, 38, 5, 6)).astype(dtype)
    rows = np.concatenate([samples[:, :1], outputs], axis=1).reshape(7, 38, 30).astype(np.longdouble)
    basis = np.concatenate([rows[:, :1] - rows[:, 1:2], rows[:, 1:2], np.diff(rows[:, 1:], axis=1)], axis=1)
    expected = np.einsum("cie,cje->cij", basis, basis)
    norms = np.sqrt(np.einsum("cii->ci", expected))
    scale = norms[:, :, None] * norms[:, None, :]
    for n_bytes in (1, 3000, 20_000, 2**20):
        monkeypatch.setattr("leanwam.replay.sketch_grams._WORK_BYTES", n_bytes)
        packed, bad, sums = call_grams(outputs, samples, dims)
        assert np.abs((unpack(packed, 38) - expected) / scale).max() < 1e-13
        assert len(bad) == 0
        if dims:
            total = unpack(sums, 38).sum(axis=0)
            assert total == pytest.approx(expected.sum(axis=0).astype(float), rel=1e-9, abs=1e-9)
    outputs[3, 20, 2, 2] = np.inf
    outputs[5, 0, 0, 0] = np.nan
    packed, bad, sums = call_grams(outputs, samples, dims)
    assert bad.tolist() == [3, 5]
    assert np.flatnonzero(np.isnan(packed).all(axis=1)).tolist() == [3, 5]
    assert np.isfinite(sums).all()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_kept_hash_is_that_of_the_content_and_damage_is_found(
    make_trace: MakeTrace, tmp_path: Path, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksums met while reading give the hash that opening every file gives."""
    monkeypatch.setattr("leanwam.replay.sketching._BLOCK_BYTES", 1)
    trace = make_trace()
    made = sketch_trace(trace, n_threads=n_threads)
    assert [content for _, content in made.meta.sources] == [trace.content_hash()]
    checksums = Checksums()
    trace.read("action", "model_output", checksums=checksums)
    assert trace.content_hash(checksums) == trace.content_hash()
    whole = sketch_trace(trace, tmp_path / "whole.sketch", n_threads=1).heads["action"]
    assert np.array_equal(made.heads["action"].grams, whole.grams)
    chunk = next((trace.path / "heads" / "state" / "sample").glob("c*4.0.0.0"))
    content = bytearray(chunk.read_bytes())
    content[3] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(InputError, match="damaged chunk"):
        sketch_trace(trace, tmp_path / "damaged.sketch", n_threads=n_threads)
    chunk.write_bytes(content[:-9])
    with pytest.raises(InputError, match="truncated chunk"):
        sketch_trace(trace, tmp_path / "damaged.sketch", n_threads=n_threads)
    chunk.unlink()
    with pytest.raises(InputError, match="missing chunk"):
        sketch_trace(trace, tmp_path / "damaged.sketch", n_threads=n_threads)
    assert not list(tmp_path.glob("damaged.sketch*"))


def test_dimensions_are_in_the_environments_units(make_trace: MakeTrace) -> None:
    trace = make_trace()
    head = sketch_trace(trace, dims=True).heads["action"]
    plan = HeadPlan(n_steps=10, computed=(0, 4))
    found = dimension_rms(head, plan_coefficients(head.weights()[1:], [plan]))[0]
    outputs = trace.read("action", "model_output")
    error = np.einsum("i,ij,cj...->c...", head.weights()[1:], plan.standins() - np.eye(10), outputs)
    assert found == pytest.approx(2.0 * np.sqrt((error**2).mean(axis=(0, 1))), rel=1e-9)


def test_without_a_linear_solver_the_reason_is_kept(make_trace: MakeTrace) -> None:
    clipped = sketch_trace(make_trace(clip=True)).heads["action"]
    with pytest.raises(InputError, match="a sketch serves linear solvers"):
        clipped.weights()
    unknown = sketch_trace(make_trace(sampler=Sampler(), name="u.trace.zarr")).heads["action"]
    with pytest.raises(InputError, match="does not name its sampler"):
        unknown.weights()


def test_without_x_T_errors_can_be_had_and_cosines_cannot(make_trace: MakeTrace) -> None:
    trace = make_trace(quantities=("model_output",), weights=True)
    head = sketch_trace(trace).heads["action"]
    scores = score_plans(head, plan_coefficients(head.weights()[1:], [HeadPlan(n_steps=10, computed=(0, 4))]))
    assert scores.mse[0] > 0
    assert np.isnan(scores.cosine[0])


def test_what_is_no_sketch_is_refused(tmp_path: Path, make_trace: MakeTrace) -> None:
    with pytest.raises(InputError, match=r"holds no sketch\.json"):
        open_sketch(tmp_path)
    trace = make_trace()
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="is no sketch"):
        sketch_trace(trace, tmp_path / "taken")
    made = sketch_trace(trace)
    (made.path / "action.gram.npy").write_bytes(b"not an array")
    with pytest.raises(InputError, match="cannot be read"):
        open_sketch(made.path)
