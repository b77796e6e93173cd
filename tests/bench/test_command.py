"""``leanwam bench``: its JSON, its files, its refusals; what importing it pulls in; the scripts beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import leanwam
from leanwam.cli.main import main
from leanwam.report.card import load_speed

ROOT = Path(leanwam.__file__).parents[2]


def test_forward_prints_one_object_and_writes_the_cards_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, card = tmp_path / "deep" / "result.json", tmp_path / "speed.json"
    arguments = ["bench", "forward", "--model", "world:reduced", "--batch", "1", "--rounds", "6", "--json"]
    assert main([*arguments, "--out", str(out), "--card", str(card)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == "forward"
    (row,) = found["rows"]
    assert row["name"] == "frames=drop_middle bs1"
    assert row["expected_ratio"] == pytest.approx(1.588, abs=0.005)  # attention included
    assert row["interval"][0] <= row["measured_ratio"] <= row["interval"][1]
    assert row["n_rounds"] == 6
    assert found["environment"]["threads"]["intra_op"] == 1
    assert isinstance(found["contended"], bool)
    assert json.loads(out.read_text())["rows"] == found["rows"]
    assert load_speed(card)["rows"][0]["measured_ratio"] == row["measured_ratio"]


def test_train_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset = tmp_path / "small.toml"
    text = (ROOT / "src/leanwam/models/reference/presets/joint.toml").read_text()
    preset.write_text(text.replace("width = 128", "width = 32").replace("n_layers = 4", "n_layers = 1"))
    assert main(["bench", "train", "--preset", str(preset), "--batch", "2", "--rounds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "frames=drop_middle bs2 train" in shown
    assert "an interval wants at least 6 rounds" in shown
    assert "time of untouched bs2: " in shown
    assert "bound by" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["forward", "--plans", "sparse_10"], "--plans"),
        (["forward", "--batch", "1,0"], "--batch"),
        (["forward", "--backends", "graph"], "--device cuda"),
        (["forward", "--backends", "jit"], "eager, compile"),
        (["forward", "--model", "world:tiny"], "world:reduced"),
        (["generate", "--until", "sound"], "--until"),
        (["generate", "--rounds", "0"], "--rounds"),
        (["generate", "--plans", "sprase_10"], "sparse_10"),
        (["generate", "--model", "nowhere"], "nowhere"),
        (["train", "--plans", "plain_3"], "bench generate"),
        (["train", "--preset", "hands"], "heads, joint"),
    ],
)
def test_bad_options_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert len(shown.err.strip().split("\n")) == 1


@pytest.mark.parametrize("module", ["leanwam.bench", "leanwam.cli.bench"])
def test_importing_pulls_in_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert not {"torch", "diffusers", "scipy", "mujoco", "polars"} & set(done.stdout.split())


@pytest.mark.slow
def test_the_accelerators_script_runs_reduced(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(ROOT / "bench" / "gpu.sh"), "--device", "cpu", "--threads", "1"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().split("\n")[-1].startswith("against the fastest dense baseline")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["failed"] == {}
    targets = {row["target"] for row in found["rows"]}
    assert targets == {"forward", "sampling", "train"}


def test_the_table_is_made_from_the_results(tmp_path: Path) -> None:
    assert main(
        ["bench", "forward", "--model", "world:reduced", "--batch", "1", "--rounds", "2",
         "--out", str(tmp_path / "forward.json")]
    ) == 0  # fmt: skip
    (tmp_path / "replay.json").write_text('{"format": "of another bench"}')
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "table.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    page = Path(done.stdout.strip()).read_text()
    assert "## forward" in page
    assert "## replay" not in page
    assert "| frames=drop_middle bs1 | 1.59× |" in page
