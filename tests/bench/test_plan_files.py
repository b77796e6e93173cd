"""Steps together with a video hold have a file form: it works wherever a plan is wanted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import leanwam
from leanwam.bench.search import candidates
from leanwam.cli.main import main
from leanwam.models.reference import ObservationBatch, ReferenceWAM
from leanwam.plans import load_plan, parse_plan
from leanwam.rollouts.policy import PolicyInput, planned_model, reference_policy
from leanwam.studies import load_study

PLANS = Path(leanwam.__file__).parents[2] / "bench" / "plans"
SEEDS = (5, 6)


def test_the_files_beside_the_bench_are_candidates() -> None:
    sampler: Any = SimpleNamespace(n_steps={"action": 50, "video": 50})  # all that candidates asks a model
    known = {plan.name: plan for plan in candidates(sampler, frames=["tokens:0-31"])}
    files = sorted(PLANS.glob("*.toml"))
    assert len(files) >= 3
    for file in files:
        assert load_plan(file) == known[file.stem]


def test_steps_with_a_hold_run_as_the_policy_of_a_closed_loop(
    heads: ReferenceWAM, seen: ObservationBatch
) -> None:
    file = str(PLANS / "steps-3_video-1.toml")
    with planned_model(heads, parse_plan(file)) as (_, _, options):
        expected = heads.generate(seen, SEEDS, until=("action",), **options).action
    with planned_model(heads, "plain_3") as (_, _, options):
        plain = heads.generate(seen, SEEDS, until=("action",), **options).action
    given = PolicyInput(seen.task, seen.proprio, seen.world, seen.pixels, SEEDS)
    with reference_policy(heads, file) as (policy, counts):
        found = policy(given)
    assert np.array_equal(found, expected)
    assert not np.array_equal(found, plain)
    assert counts.executions == {"video": 1, "action": 3, "proprio": 1}
    assert heads.n_steps == {"video": 6, "action": 6, "proprio": 6}


def test_a_study_takes_a_plan_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "lean.toml").write_text((PLANS / "steps-2_video-1.toml").read_text())
    (tmp_path / "prereg.toml").write_text(
        'title = "t"\nquestion = "q?"\ntasks = ["push"]\nrollouts_per_task = 10\nassumed_rate = 0.5\n'
        '[arms]\nlean = "lean"\nanchor = "dense"\n'
        '[claim]\nmargin_pp = 20\nmargin_reason = "a test"\n[pairing]\nrule = "required"\n'
    )
    study = tmp_path / "study.toml"
    study.write_text(
        'title = "t"\n[[arms]]\nname = "dense"\nplan = "dense"\n'
        '[[arms]]\nname = "lean"\nplan = "lean.toml"\n'
        '[[comparisons]]\nprereg = "prereg.toml"\ncard = "card"\n'
    )
    found = load_study(study)
    assert found.arms["lean"].plan == load_plan(PLANS / "steps-2_video-1.toml")


def test_the_bench_takes_plan_files(capsys: pytest.CaptureFixture[str]) -> None:
    plans = f"plain_2;{PLANS / 'steps-2_video-1.toml'}"
    arguments = ["bench", "generate", "--plans", plans, "--batch", "1", "--rounds", "1", "--until", "action"]
    assert main([*arguments, "--json"]) == 0
    rows = {item["plan"]: item for item in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["steps-2_video-1"]["executions"] == {"video": 1, "action": 2, "proprio": 2}
    assert rows["plain_2"]["executions"] == {"video": 2, "action": 2, "proprio": 2}
