"""The search for the fastest plans within the noise-seed spread."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from leanwam.bench.generate import ASKED, CACHED, is_plain
from leanwam.bench.search import (
    Query,
    action_chunks,
    candidates,
    fidelity,
    plan_toml,
    search,
    write_plans,
)
from leanwam.bench.subjects import random_observation
from leanwam.errors import InputError
from leanwam.models.reference import ReferenceWAM
from leanwam.plans import load_plan, parse_plan


def queries(model: ReferenceWAM, n: int = 3) -> list[Query]:
    return [Query(random_observation(model.config, 1, seed=k), k) for k in range(n)]


def test_candidates_are_distinct_and_survive_their_files(joint: ReferenceWAM, tmp_path: Path) -> None:
    plans = candidates(joint, frames=["drop_middle"])
    names = [plan.name for plan in plans]
    assert len(set(names)) == len(names)
    assert {"plain_1", "plain_6", "steps-4_video-2", "video-1", "steps-3_video-1_drop_middle"} <= set(names)
    assert [plan.name for plan in plans if is_plain(plan)] == [
        name for name in names if name.startswith("plain")
    ]
    write_plans(joint, names, tmp_path, frames=["drop_middle"])
    for plan in plans:
        assert load_plan(tmp_path / f"{plan.name}.toml") == plan
    assert 'plan = "prefix:2"' in plan_toml(plans[names.index("steps-4_video-2")])


def test_dense_has_no_error_and_other_noise_has_one_unit(heads: ReferenceWAM) -> None:
    calls = queries(heads)
    found, spread = fidelity(
        heads, calls, [parse_plan("stride:1"), parse_plan("plain_1")], n_seeds=2, batch=2
    )
    assert found["stride:1"].error == 0.0
    assert found["stride:1"].share_beyond == 0.0
    dense = [action_chunks(heads, calls, None, batch=2, noise=k) for k in (0, 1)]
    assert spread == pytest.approx(np.abs(dense[0] - dense[1]).mean())
    assert found["plain_1"].error > 0.0
    assert found["plain_1"].in_noise_units == pytest.approx(found["plain_1"].error / spread)


def test_search_orders_what_stays_within_by_time(heads: ReferenceWAM) -> None:
    found = search(
        heads, queries(heads), allowed=1e9, n_seeds=2, n_rounds=6, n_timed=3, batch=3, timed_batches=(1, 4)
    )
    json.dumps(found, allow_nan=False)
    rows = {item["plan"]: item for item in found["candidates"]}
    assert found["fastest_plain"] in [name for name in found["fastest"] if name.startswith("plain_")]
    times = [rows[name]["by_batch"]["1"]["ms"] for name in found["fastest"]]
    assert times == sorted(times)
    one = rows["plain_1"]
    assert one["executions"]["video"] == one["executions"]["action"] == 1
    for size in ("1", "4"):
        assert one["by_batch"][size]["ratio_to_untouched"]["cpu_ratio"] > 1.5
        assert set(one["by_batch"][size]["ratio_to_fastest_plain_asked_only"]) == {
            "ratio", "interval", "cpu_ratio", "cpu_interval"
        }  # fmt: skip
    assert rows["steps-2_video-1"]["executions"] == {"video": 1.0, "action": 2.0, "proprio": 0.0}
    assert {"plain_1", f"plain_1{ASKED}", f"plain_1{CACHED}"} <= set(found["times"]["1"])


def test_nothing_within_is_said(heads: ReferenceWAM) -> None:
    found = search(heads, queries(heads, 2), allowed=0.0, n_seeds=2, n_rounds=1, n_timed=1, batch=2)
    assert found["fastest_plain"] is None
    assert found["fastest"] == []


def test_no_calls_are_refused(heads: ReferenceWAM) -> None:
    with pytest.raises(InputError):
        fidelity(heads, [], [], n_seeds=2)
