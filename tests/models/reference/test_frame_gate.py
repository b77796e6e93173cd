"""The gate on predicted frames: its errors, its pairs, what gates, and the command's exit codes."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from leanwam.cli import reference as commands
from leanwam.cli.main import main
from leanwam.errors import InputError
from leanwam.models.reference import frame_gate
from leanwam.models.reference.dataset import TrainingData
from leanwam.models.reference.frame_gate import Rule, draw_pairs, gate, psnr, squared_error
from leanwam.models.reference.training import Run, train


def test_errors_and_psnr_by_hand():
    random = np.random.default_rng(0)
    made, true = random.integers(0, 256, (2, 5, 2, 2, 4, 4, 3), dtype=np.uint8)
    errors = squared_error(made, true)
    assert errors.shape == (5, 2)
    wanted = ((made[3, 1].astype(float) - true[3, 1].astype(float)) ** 2).mean()
    assert errors[3, 1] == pytest.approx(wanted, rel=1e-6)
    assert psnr(255.0**2) == 0.0
    assert psnr(1.0) == pytest.approx(48.1308, abs=1e-4)
    assert psnr(0.0) == psnr(1 / 12)


def test_pairs_lie_within_their_episodes_and_spread_over_tasks(wam):
    demos = wam.episodes("joint")
    pairs = draw_pairs(demos, 10, 16, seed=0)
    assert sorted(pairs.task) == ["push"] * 10 + ["reach"] * 10
    for row, episode, task in zip(pairs.row, pairs.episode, pairs.task):
        assert demos.task[episode] == task
        assert demos.start[episode] <= row
        assert row + 16 < demos.start[episode] + demos.length[episode]
    assert len(set(pairs.row.tolist())) == 20
    with pytest.raises(InputError, match="no episode of push is longer than 24 steps"):
        draw_pairs(demos, 10, 24, seed=0)


def test_the_last_episodes_of_each_task_are_held_out(wam):
    demos = wam.episodes("joint")  # push, reach, push, reach, push, reach
    trained, unseen = demos.split(1)
    assert (list(trained.start), list(unseen.start)) == ([0, 24, 48, 72], [96, 120])
    assert unseen.task == ["push", "reach"]
    everything, nothing = demos.split(0)
    assert (everything.digest(), len(nothing.task)) == (demos.digest(), 0)
    with pytest.raises(
        InputError, match=r"held_out_episodes: leaves no demonstration of push, of which .* 3"
    ):
        demos.split(3)


def predicting(monkeypatch, what):
    """In place of the model's frames: ``what(now, true)``, uint8 [pair, horizon, …]."""

    def predicted(model, episodes, pairs, now, n_steps, *rest):
        true = np.stack([episodes.pixels[pairs.row + horizon] for horizon in (8, 16)], axis=1)
        return what(np.repeat(now[:, None], 2, axis=1), true)

    monkeypatch.setattr(frame_gate, "_predicted", predicted)


def measured(wam, *, rule="10:1", training=None, **options):
    model = wam.random_model("joint")
    if training:
        model.config = msgspec.structs.replace(
            model.config, training=msgspec.structs.replace(model.config.training, **training)
        )
    chosen = {"steps": (1,), "n_samples": 2, "n_pairs": 8, **options}
    return gate(model, wam.episodes("joint"), rule=Rule.parse(rule), **chosen)


def test_copying_does_not_beat_copying(wam, monkeypatch):
    predicting(monkeypatch, lambda now, true: now)
    result = measured(wam)
    assert result["passes"] is False
    assert result["beats_copy_current"] == {"8": False, "16": False}
    for row in (result["gate"], *result["predictions"]):
        for horizon in ("8", "16"):
            assert row["horizons"][horizon]["gain_db"] == 0.0
            assert row["horizons"][horizon] == result["copy_current"]["horizons"][horizon]


def test_one_horizon_is_not_enough(wam, monkeypatch):
    def half(now, true):
        made = now.copy()
        made[:, 1] = true[:, 1]
        return made

    predicting(monkeypatch, half)
    result = measured(wam)
    assert (result["passes"], result["beats_copy_current"]) == (False, {"8": False, "16": True})
    predicting(monkeypatch, lambda now, true: true)
    assert measured(wam)["passes"] is True


def test_the_interval_holds_the_gain_and_the_ceiling_is_above(wam, monkeypatch):
    def closer(now, true):
        return (now.astype(int) + (true.astype(int) - now.astype(int)) // 2).astype(np.uint8)

    predicting(monkeypatch, closer)
    result = measured(wam)
    for horizon in ("8", "16"):
        found = result["gate"]["horizons"][horizon]
        low, high = found["gain_interval_db"]
        assert low <= found["gain_db"] <= high
        # half of the way leaves a quarter of the squared error
        assert found["gain_db"] == pytest.approx(6.02, abs=0.1)
        assert result["codec_ceiling"]["horizons"][horizon]["gain_db"] > found["gain_db"]
        assert set(found["tasks_db"]) == {"push", "reach"}


def test_the_rule_chooses_what_gates(wam, monkeypatch):
    """Samples that miss to both sides: one is worse than copying, the mean of two is exact."""
    sides = iter([+60, -60, +60, -60, +60, -60])

    def astray(now, true):
        side = next(sides)
        return np.clip(true.astype(int) + side, 0, 255).astype(np.uint8)

    predicting(monkeypatch, astray)
    assert measured(wam, rule="1:1")["passes"] is False
    sides = iter([+60, -60, +60, -60, +60, -60])
    result = measured(wam, rule="1:2")
    assert result["rule"].startswith("PSNR of the mean squared error of the mean of 2 samples, 1 video steps")
    assert [row["what"] for row in result["predictions"]] == [
        "one sample (mean error of 2)",
        "mean of 2 samples",
    ]
    assert result["gate"] == {"horizons": result["predictions"][1]["horizons"]}
    assert result["gate"]["horizons"]["8"]["gain_db"] > result["predictions"][0]["horizons"]["8"]["gain_db"]


def test_what_is_left_out_or_carried_no_loss_does_not_gate(wam, monkeypatch):
    predicting(monkeypatch, lambda now, true: now)
    assert measured(wam, frames="drop_middle")["does_not_gate"] == [8]
    assert measured(wam, training={"loss_frames": "drop_middle"})["does_not_gate"] == [8]
    assert measured(wam, frames="mae25:seed=0")["does_not_gate"] == []


def test_a_dropped_horizon_shows_the_present(wam):
    """The real model: what it does not compute is copied, what it computes is its own."""
    result = measured(wam, rule="1:1", frames="drop_middle")
    assert result["gate"]["horizons"]["8"]["gain_db"] == 0.0
    assert result["gate"]["horizons"]["16"]["gain_db"] != 0.0
    again = measured(wam, rule="1:1", frames="drop_middle")
    assert result == again


@pytest.fixture
def trained(wam, tmp_path, monkeypatch):
    """A checkpoint of two updates with one held-out episode per task, and its store."""
    config, _, codec = wam.prepared("joint", n_updates=2, held_out_episodes=1)
    demos = wam.episodes("joint")
    seen, _ = demos.split(1)
    run = Run(tmp_path / "run", "c", seen.digest(), progress=False)
    train(config, TrainingData(config, seen, codec), run, codec.state_dict())
    monkeypatch.setattr(commands, "load_episodes", lambda store, tasks: (demos, {}))
    return tmp_path / "run"


def test_the_command_gates_by_its_exit_code(trained, tmp_path, capsys, monkeypatch):
    out = tmp_path / "psnr.json"
    arguments = [
        "reference",
        "frames",
        "--checkpoint",
        str(trained),
        "--demos",
        "p.demos.zarr",
        "--out",
        str(out),
    ]
    arguments += ["--steps", "1", "--samples", "1", "--pairs", "4"]
    predicting(monkeypatch, lambda now, true: now)
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert (
        "does not beat copy-current at every horizon (+0.00 dB at t+8, +0.00 dB at t+16); rule: PSNR"
        in shown.err
    )
    assert "copy-current" in shown.out
    predicting(monkeypatch, lambda now, true: true)
    assert main([*arguments, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == json.loads(out.read_text())
    assert json.loads(shown.out)["n_episodes"] == 2
    assert "the model beats copy-current" in shown.err


def test_the_command_refuses_demonstrations_that_were_seen(trained, wam, tmp_path, capsys, monkeypatch):
    arguments = [
        "reference",
        "frames",
        "--checkpoint",
        str(trained),
        "--demos",
        "p.demos.zarr",
        "--out",
        "o.json",
    ]
    assert main([*arguments, "--new-demos"]) == 2
    assert "is the store of the training" in capsys.readouterr().err
    assert main([*arguments, "--rule", "ten"]) == 2
    assert "--rule: wants STEPS:SAMPLES like 10:1" in capsys.readouterr().err
    monkeypatch.setattr(commands, "load_episodes", lambda store, tasks: (wam.episodes("joint", n=8), {}))
    assert main(arguments) == 2
    assert "is not the store of the training" in capsys.readouterr().err
