"""studies/frames-3/seeds.py: what a second training of every arm shows."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "studies" / "frames-3"


@pytest.fixture(scope="module")
def seeds():
    spec = importlib.util.spec_from_file_location("frames_3_seeds", FOLDER / "seeds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(seeds, sigma, random, n=400):
    """Ten arms on n starts; a training moves an arm's rate by N(0, sigma), a seed moves all arms by 3 points."""
    rate, shared = random.uniform(0.3, 0.7, n), random.random(n) < 0.5
    outcomes, common = {}, random.random(n)
    for end, shift in (("", 0.03), (seeds.FIRST, 0.0)):
        for arm in seeds.ARMS:
            draw = np.where(shared, common, random.random(n))
            outcomes[arm + end] = (draw < rate + shift + random.normal(0.0, sigma)).astype(int)
    return outcomes


@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_the_spread_of_the_training_seed_is_found(seeds, sigma):
    random = np.random.default_rng(5)
    found = [seeds.training_spread(trained(seeds, sigma, random)) for _ in range(200)]
    variance = np.mean([f["observed_sd"] ** 2 - f["sampling_sd"] ** 2 for f in found]) / 2
    assert variance == pytest.approx(sigma**2, abs=0.0004)
    assert np.mean([f["shared_shift"] for f in found]) == pytest.approx(0.03, abs=0.01)
    assert np.mean([f["sigma_upper_95"] >= sigma for f in found]) > 0.9


def test_a_comparison_that_changes_with_the_seed_is_told(seeds):
    outcomes = trained(seeds, 0.0, np.random.default_rng(0))
    outcomes["drop_middle"] = np.where(np.arange(400) % 4 == 0, 0, outcomes["drop_middle"])
    result = seeds.analyse(outcomes, {"PnP": np.arange(400) < 150})
    changed = {e["lean"] + " " + e["anchor"]: e["change_p_holm"] < 0.05 for e in result["comparisons"]}
    assert changed == {
        "drop_middle dense": True,
        "mae25 dense": False,
        "loss_only dense": False,
        "drop_middle loss_only": True,
        "no_future dense": False,
    }
    first = result["comparisons"][0]
    assert first["delta"][0] > first["pooled"]["delta"] > first["delta"][1]
    assert result["arms"]["dense"]["groups"]["PnP"][2] == 150
    for seed, found in enumerate(first["by_seed"]["ALL"]):
        assert found["delta"] == pytest.approx(first["delta"][seed])
    assert first["with_training"][0] < first["pooled"]["interval_90"][0]


def test_the_committed_figures_are_of_the_committed_table(seeds):
    result = seeds.analyse(*seeds.load(FOLDER))
    assert json.loads(json.dumps(result)) == json.loads((FOLDER / "seeds.json").read_text())
    assert seeds.render(result) == (FOLDER / "seeds.md").read_text()


@pytest.mark.parametrize(("sigma", "chance"), [(0.0, 1.0), (0.05, 0.0), (0.02, 0.9411)])
def test_the_chance_that_equal_arms_pass(seeds, sigma, chance):
    """By drawing: two arms differ by N(0, 2 σ²), and pass within 1.645 √2 σ of the margin."""
    drawn = np.abs(np.random.default_rng(0).normal(0.0, 2**0.5 * sigma, 200_000))
    assert seeds.equal_arms_pass(0.1, sigma) == pytest.approx(chance, abs=1e-3)
    assert np.mean(drawn + 1.6449 * 2**0.5 * sigma < 0.1) == pytest.approx(chance, abs=3e-3)
