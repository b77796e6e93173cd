"""The shipped checkpoints are what their files say, and have something to lose."""

from __future__ import annotations

import csv
import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from leanwam.models.reference import ObservationBatch, load_reference
from leanwam.models.reference.identity import checkpoint_id

FOLDER = Path(str(resources.files("leanwam.models.reference").joinpath("checkpoints", "heads")))


@pytest.fixture(scope="module")
def model():
    return load_reference("heads")


@pytest.fixture(scope="module")
def evaluation():
    return json.loads((FOLDER / "evaluation.json").read_text())


@pytest.mark.parametrize("name", ["heads", "joint", "joint-drop-middle"])
def test_size_and_log(name):
    folder = FOLDER.parent / name
    assert (folder / "model.safetensors").stat().st_size <= 15_000_000
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = list(csv.DictReader((folder / "log.csv").open()))
    assert int(rows[-1]["update"]) == manifest["n_updates"] == manifest["n_updates_wanted"]
    assert manifest["n_nan"] == 0
    assert manifest["final_loss"]["action"] == pytest.approx(float(rows[-1]["loss_action"]), abs=1e-6)


def test_the_evaluation_is_of_these_weights(model, evaluation):
    assert evaluation["checkpoint"] == checkpoint_id(model)
    assert evaluation["pairs_proved"] is True
    for arm in evaluation["arms"].values():
        assert set(arm["tasks"]) == set(model.config.tasks)
        assert all(task["n_episodes"] >= 50 for task in arm["tasks"].values())


@pytest.mark.parametrize(("arm", "name"), [("dense", "joint"), ("drop_middle", "joint-drop-middle")])
def test_the_frames_study_ran_on_the_shipped_weights(arm, name):
    table = Path(__file__).parents[3] / "studies" / "frames-2" / "episodes.jsonl"
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    assert {row["checkpoint"] for row in rows if row["arm"] == arm} == {checkpoint_id(load_reference(name))}


def test_the_band(evaluation):
    """The success band that the experiments need: room to lose and room to gain, and steps that matter."""
    arms = {arm["n_steps"]: arm for arm in evaluation["arms"].values()}
    assert 0.45 <= arms[50]["success_rate"] <= 0.90
    assert all(0.25 <= rate <= 0.95 for rate in arms[50]["families"].values())
    assert arms[50]["success_rate"] - arms[1]["success_rate"] >= 0.10
    assert len(arms[50]["tasks"]) >= 12


def test_actions_are_of_several_modes(model):
    """At a start, noise seeds spread the first moves to both sides: the experts' styles were learnt."""
    hand = np.array([[0.0, 0.6, 0.2, 1.0]], np.float32).repeat(24, 0)
    world = np.zeros((24, 3, 7), np.float32)
    world[:, 0, :3], world[:, 0, 3], world[:, 2, :3] = (0.05, 0.65, 0.02), 1.0, (-0.05, 0.85, 0.02)
    result = model.generate(ObservationBatch(("push",) * 24, hand, world), range(24), n_steps=10)
    sideways = result.action[:, :4, 0].mean(axis=1)
    assert (sideways > 0.3).any()
    assert (sideways < -0.3).any()
