from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leanwam.rollouts import Observation, PolicyInput, run_episodes
from leanwam.rollouts.schedule import plan_episodes
from leanwam.studies.pipeline import episodes_of

PREREG = """
title = "{lean} against dense"
question = "Does the toy survive?"
tasks = ["push", "door-open"]
rollouts_per_task = {n}
assumed_rate = 0.6
[arms]
lean = "{lean}"
anchor = "dense"
[claim]
margin_pp = {margin}
margin_reason = "a test"
[pairing]
rule = "required"
{more}
"""

STUDY = """
title = "toy"
[[arms]]
name = "dense"
plan = "dense"
[[arms]]
name = "good"
plan = "sparse_10"
[[arms]]
name = "bad"
plan = "tail_only_4"
[[comparisons]]
prereg = "good/prereg.toml"
card = "good/card"
[[comparisons]]
prereg = "bad/prereg.toml"
card = "bad/card"
"""

#: what the toy policy adds to each action: the arms' quality
PULL = {"dense": 0.1, "good": 0.1, "bad": -0.9}


class ToyEnv:
    def __init__(self, task: str) -> None:
        self.task, self.start_state = task, ""

    def reset(self, seed: int) -> Observation:
        self.start_state = f"{self.task}-{seed}"
        self.mark, self.place = 2.0 + seed % 5, 0.0
        return self.observe()

    def advance(self, action: np.ndarray) -> bool:
        self.place += float(action[0])
        return self.place > self.mark

    def observe(self) -> Observation:
        return Observation(np.full(4, self.place, dtype=np.float32), world=np.zeros((3, 7), dtype=np.float32))

    def close(self) -> None:
        pass


class ToyRunner:
    """Runs an arm with the toy policy; counts what it was asked, and can be stopped after some episodes."""

    def __init__(self, pull: dict[str, float] = PULL, stop_after: int | None = None) -> None:
        self.pull, self.stop_after = pull, stop_after
        self.asked: list[str] = []

    def __call__(self, arm, planned, table) -> None:
        self.asked.append(arm.name)
        pull = self.pull[arm.name]

        def policy(batch: PolicyInput) -> np.ndarray:
            if self.stop_after is not None and self.n_rows(table) >= self.stop_after:
                raise KeyboardInterrupt
            noise = np.stack([np.random.default_rng(seed).normal(size=(16, 4)) for seed in batch.seeds])
            return pull + noise

        for tasks, n in episodes_of(arm, planned):
            run_episodes(
                policy,
                plan_episodes(tasks, n, first=arm.first_episode, noise_stream=arm.noise_stream),
                arm=arm.name,
                table=table,
                n_lanes=4,
                horizon=40,
                plan=arm.plan.name,
                checkpoint="toy",
                progress=False,
                make_env=ToyEnv,
            )

    def n_rows(self, table: Path) -> int:
        return table.read_bytes().count(b"\n") if table.exists() else 0


@pytest.fixture
def make_study(tmp_path):
    """Writes a study's folder; yields the path of its file."""

    def make(n=20, margin=40, more="", study=STUDY) -> Path:
        for lean in ("good", "bad"):
            folder = tmp_path / lean
            folder.mkdir(exist_ok=True)
            (folder / "prereg.toml").write_text(PREREG.format(lean=lean, n=n, margin=margin, more=more))
        (tmp_path / "study.toml").write_text(study)
        return tmp_path / "study.toml"

    return make


@pytest.fixture
def toy_env():
    return ToyEnv


@pytest.fixture
def runner():
    return ToyRunner
