"""Training: losses fall, a kill changes nothing, NaNs are counted, logs and manifest are whole."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from leanwam.errors import InputError, LeanwamError
from leanwam.models.reference import training
from leanwam.models.reference.checkpoint import build_model, load_reference, read_tensors
from leanwam.models.reference.objective import NoiseSchedules, draw_times, stream_losses
from leanwam.models.reference.training import Run, learning_rate, train


def run(wam, out, preset="heads", *, after=None, **settings):
    config, data, codec = wam.prepared(preset, **settings)
    return train(
        config,
        data,
        Run(out, "leanwam reference train", "d1", after_update=after, progress=False),
        None if codec is None else codec.state_dict(),
    )


def test_training_reduces_the_loss(preset, wam, tmp_path):
    run(
        wam, tmp_path, preset, n_updates=150, learning_rate=3e-3, task_weights={}
    )  # weights are for real tasks
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [int(row["update"]) for row in rows] == [50, 100, 150]
    for name in ("video", "action", "proprio"):
        assert float(rows[-1][f"loss_{name}"]) < 0.8 * float(rows[0][f"loss_{name}"])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["n_updates"] == 150
    assert manifest["n_nan"] == 0
    assert manifest["final_loss"]["action"] == pytest.approx(float(rows[-1]["loss_action"]), abs=1e-6)
    assert manifest["cpu_s"] > 0
    assert any((tmp_path / "training" / "tensorboard").iterdir())


def test_a_run_killed_goes_on_to_the_same_bytes(wam, tmp_path):
    """SIGKILL in the middle of an update, twice; then the checkpoint equals an uninterrupted one's."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(wam, whole)
    script = (
        "import importlib.util, os, signal, sys\n"
        "from pathlib import Path\n"
        "spec = importlib.util.spec_from_file_location('shared', sys.argv[1])\n"
        "shared = importlib.util.module_from_spec(spec); spec.loader.exec_module(shared)\n"
        "from leanwam.models.reference.training import Run, train\n"
        "def after(done):\n"
        "    if done == int(sys.argv[3]): os.kill(os.getpid(), signal.SIGKILL)\n"
        "config, data, _ = shared.prepared('heads', save_every_s=0.0)\n"
        "train(config, data, Run(Path(sys.argv[2]), 'c', 'd1', after_update=after, progress=False))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(training.__file__).parents[3])}
    shared = str(Path(__file__).with_name("conftest.py"))
    for stop in (5, 9):
        ended = subprocess.run(
            [sys.executable, "-c", script, shared, str(cut), str(stop)], env=environment, capture_output=True
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    run(wam, cut, save_every_s=0.0)
    assert (whole / "model.safetensors").read_bytes() == (cut / "model.safetensors").read_bytes()
    rows = list(csv.DictReader((cut / "log.csv").open()))
    assert [row["update"] for row in rows] == ["12"]


def test_a_torn_state_falls_back_on_the_one_before(wam, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(wam, whole)

    class Stop(Exception):
        pass

    def stop(done):
        if done == 8:
            raise Stop

    with pytest.raises(Stop):
        run(wam, cut, after=stop, save_every_s=0.0)
    state = cut / "training" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    run(wam, cut, save_every_s=0.0)
    assert (whole / "model.safetensors").read_bytes() == (cut / "model.safetensors").read_bytes()
    for file in (state, state.with_name("state.previous.safetensors")):
        file.write_bytes(b"nothing")
    with pytest.raises(LeanwamError, match="no training state can be read"):
        run(wam, cut, save_every_s=0.0)


def test_another_run_in_the_folder_is_refused(wam, tmp_path):
    run(wam, tmp_path, n_updates=2)
    with pytest.raises(InputError, match=r"run\.json: config: a run with another value"):
        run(wam, tmp_path, n_updates=2, learning_rate=0.5)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(wam, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(wam, tmp_path / name, n_updates=3, seed=seed)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


def test_updates_with_nan_are_skipped_and_counted(wam, tmp_path, monkeypatch):
    honest = training.stream_losses
    calls = []

    def sometimes_nan(*args, **kwargs):
        calls.append(1)
        losses = honest(*args, **kwargs)
        return {**losses, "action": losses["action"] * float("nan")} if len(calls) == 3 else losses

    monkeypatch.setattr(training, "stream_losses", sometimes_nan)
    run(wam, tmp_path, n_updates=6)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["n_nan"] == 1
    assert all(torch.isfinite(t).all() for t in read_tensors(tmp_path / "model.safetensors").values())


def test_a_loss_that_stays_nan_ends_the_run(wam, tmp_path, monkeypatch):
    honest = training.stream_losses
    monkeypatch.setattr(
        training, "stream_losses", lambda *a, **k: {n: v * float("nan") for n, v in honest(*a, **k).items()}
    )
    with pytest.raises(LeanwamError, match="not finite 21 times in a row"):
        run(wam, tmp_path, n_updates=30)


def test_half_of_the_times_are_shared(wam):
    config, _, _ = wam.prepared("joint")
    times, clean = draw_times(config, 4000, torch.Generator().manual_seed(0))
    shared = (times["video"] == times["action"]) & (times["action"] == times["proprio"])
    assert 0.46 < float(shared.float().mean()) < 0.54
    assert not bool((clean["action"] & shared).any())
    assert 0.07 < float(clean["action"][~shared].float().mean()) < 0.13
    apart = torch.stack([times["video"][~shared], times["action"][~shared]])
    assert abs(float(torch.corrcoef(apart)[0, 1])) < 0.1


def test_noising_follows_the_scheduler(preset, wam):
    """x_t and the target against diffusers' own add_noise and get_velocity."""
    model = build_model(wam.prepared(preset)[0])
    schedules = NoiseSchedules(model)
    generator = torch.Generator().manual_seed(0)
    for name, stream in model.config.streams.items():
        data, noise = (torch.randn(5, *stream.shape, generator=generator) for _ in range(2))
        u = torch.tensor([0.0005, 0.2503, 0.5007, 0.75, 0.9995])
        x, target, time = schedules.noised(name, stream, data, noise, u)
        index = (u * 1000).long()
        scheduler = model.schedulers[name]
        if preset == "heads":
            torch.testing.assert_close(x, scheduler.add_noise(data, noise, index))
            torch.testing.assert_close(time, (index + 1) / 1000)
            wanted = noise if name != "video" else scheduler.get_velocity(data, noise, index)
            torch.testing.assert_close(target, wanted)
        else:
            sigma = u.reshape(-1, *[1] * len(stream.shape))
            torch.testing.assert_close(x - sigma * target, data, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(time, u)


def test_the_loss_counts_kept_tokens_only(wam):
    config, data, _ = wam.prepared("joint")
    model = build_model(config)
    batch = data.at(np.arange(8) * 3)
    keep = torch.arange(64)  # the last frame is dropped
    changed = {**batch.target, "video": batch.target["video"].clone()}
    changed["video"][:, 1] += 5.0
    schedules = NoiseSchedules(model)
    losses = [
        stream_losses(model, schedules, with_target(batch, target), torch.Generator().manual_seed(0), keep)
        for target in (batch.target, changed)
    ]
    for name in losses[0]:
        assert torch.equal(losses[0][name], losses[1][name])
    whole = stream_losses(model, schedules, with_target(batch, changed), torch.Generator().manual_seed(0))
    assert not torch.equal(whole["video"], losses[0]["video"])


def with_target(batch, target):
    return type(batch)(batch.task, batch.present, target)


def test_learning_rate(wam):
    config = msgspec.structs.replace(wam.prepared("heads", n_updates=100, warmup=10)[0])
    rates = [learning_rate(config, i) for i in range(100)]
    assert rates[9] == pytest.approx(config.training.learning_rate)
    assert all(b > a for a, b in itertools.pairwise(rates[:10]))
    assert all(b < a for a, b in itertools.pairwise(rates[10:]))
    assert rates[-1] < 0.02 * rates[9]


def test_a_trained_run_is_a_checkpoint(preset, wam, tmp_path):
    model = run(wam, tmp_path, preset, n_updates=3)
    loaded = load_reference(tmp_path)
    given = wam.observation(preset)
    first, second = (m.generate(given, [1, 2, 3], n_steps=2) for m in (model, loaded))
    for name in first.samples:
        assert torch.equal(first.samples[name], second.samples[name])
