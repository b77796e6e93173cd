"""``leanwam simulate`` from the shell's side: files, JSON on stdout, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from leanwam.cli.main import main
from leanwam.traces import HeadMeta, Sampler, TraceMeta, TraceWriter


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    meta = TraceMeta(
        model="random", n_steps=12, heads={h: HeadMeta(shape=(3, 2)) for h in ("action", "state")}
    )
    with TraceWriter.create(tmp_path / "r.trace.zarr", meta) as writer:
        for call in range(4):
            data = {h: {"sample": rng.standard_normal((13, 3, 2))} for h in meta.heads}
            writer.append(data, episode=0, index=call, seed=0, task="t")
    return tmp_path / "r.trace.zarr"


def test_report_files_and_json_say_the_same(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(store), "--out", str(tmp_path / "out"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "report.json").read_text())
    entry = printed["experiment_1_1"]["sparse_4"]
    assert set(entry["heads"]["action"]["hold"]) == {"cosine_mean", "cosine_median", "trivial"}
    assert entry["heads"]["action"]["executed"] is None
    assert entry["exec_count"] == 4
    assert entry["saving_ratio"] == pytest.approx(8 / 12)
    assert set(printed["experiment_1_2"]) == {"threshold", "action", "state"}
    assert (tmp_path / "out" / "report.md").read_text().startswith("Sparse Head Execution Simulation\n")


def test_the_terminal_summary_names_levels(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(store), "--out", str(tmp_path / "o"), "--plans", "dense,at:0,3,7"]) == 0
    out = capsys.readouterr().out
    assert "at:0,3,7" in out
    assert "no solver level" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--plans", "sprase_10"], "did you mean 'sparse_10'"),
        (["--plans", "sparse_13"], "between 1 and the 12 steps"),
        (["--threshold", "2"], "above 0 and at most 1"),
        (["--executed", "missing.npz"], "there is no such file"),
        (["--plans", "arm=sparse_4"], "no such head"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["simulate", str(store), "--out", str(tmp_path / "o"), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def test_a_missing_trace_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(tmp_path / "no.trace.zarr"), "--out", str(tmp_path / "o")]) == 2
    assert "no.trace.zarr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "config", "label"),
    [
        ("UniPCMultistepScheduler", {"prediction_type": "epsilon"}, "linear, weights probed"),
        ("DPMSolverMultistepScheduler", {"thresholding": True}, "not linear here"),
    ],
)
def test_samplers_that_numpy_does_not_know_go_through_the_real_scheduler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, config: dict[str, object], label: str
) -> None:
    """Also the check on board: what the real scheduler made of the outputs is what the replay finds."""
    torch, diffusers = pytest.importorskip("torch"), pytest.importorskip("diffusers")
    scheduler = getattr(diffusers, name)(**config)
    scheduler.set_timesteps(12)
    times = scheduler.timesteps.numpy().astype(np.float64)
    sampler = Sampler(class_=name, config=config)
    meta = TraceMeta(model="m", n_steps=12, heads={"action": HeadMeta(shape=(2, 6))}, sampler=sampler)
    rng = np.random.default_rng(0)
    with TraceWriter.create(tmp_path / "s.trace.zarr", meta, timesteps=times) as writer:
        for call in range(3):
            scheduler.set_timesteps(12)
            outputs = rng.standard_normal((12, 2, 6)).astype(np.float32)
            x = torch.from_numpy(rng.standard_normal((1, 2, 6)).astype(np.float32))
            samples = [x[0].numpy()]
            for output, time in zip(outputs, scheduler.timesteps):
                x = scheduler.step(torch.from_numpy(output[None]), time, x).prev_sample
                samples.append(x[0].numpy())
            data = {"action": {"sample": np.array(samples), "model_output": outputs}}
            writer.append(data, episode=call, index=0, seed=0, task="t")
    assert main(["simulate", str(tmp_path / "s.trace.zarr"), "--out", str(tmp_path / "o"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert label in result["heads"]["action"]["solver"]
    assert result["heads"]["action"]["dense_replay_gap"] < 1e-3
    assert result["experiment_1_1"]["sparse_4"]["heads"]["action"]["solver"]["mse"] > 0


def test_a_cache_plan_is_refused_in_one_line(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = "dense;cache:first_block:threshold=0.1"
    assert main(["simulate", str(store), "--out", str(tmp_path / "out"), "--plans", plans]) == 2
    shown = capsys.readouterr().err
    assert "replay cannot know what a live cache decides" in shown
    assert "cache:first_block:threshold=0.1" in shown
    assert len(shown.strip().split("\n")) == 1
    assert not (tmp_path / "out").exists()
