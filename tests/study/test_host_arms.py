"""A step plan and a cache of diffusers on one host model: one episode table, a preregistration each, the judge."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel

from leanwam.models.hosts import host
from leanwam.rollouts import PolicyInput, plan_episodes, read_rows, run_episodes
from leanwam.rollouts.hosted import host_policy
from leanwam.studies import load_study, run_study
from leanwam.studies.pipeline import episodes_of

N_STEPS, N_BLOCKS = 6, 2
ARMS = {"dense": "dense", "good": "video=sparse_2", "bad": "cache:first_block:threshold=0.5"}

STUDY = """
title = "a host: steps against a cache"
[[arms]]
name = "dense"
plan = "dense"
[[arms]]
name = "good"
plan = "{good}"
[[arms]]
name = "bad"
plan = "{bad}"
[[comparisons]]
prereg = "good/prereg.toml"
card = "good/card"
[[comparisons]]
prereg = "bad/prereg.toml"
card = "bad/card"
"""


class VideoPolicy:
    """A sampling loop of a user's own around a video denoiser; actions are read off the final latents."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
            text_dim=16, freq_dim=16, ffn_dim=32, num_layers=N_BLOCKS, rope_max_seq_len=32,
        ).eval().requires_grad_(False)  # fmt: skip
        self.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)

    @torch.no_grad()
    def __call__(self, batch):
        draws = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(s)) for s in batch.seeds]
        x = torch.stack(draws)
        seen = torch.from_numpy(batch.proprio).repeat(1, 4)[:, None]
        self.scheduler.set_timesteps(N_STEPS)
        for t in self.scheduler.timesteps:
            out = self.net(x, t.expand(len(x)), seen, return_dict=False)[0]
            x = self.scheduler.step(out, t, x, return_dict=False)[0]
        return -0.45 + x.flatten(1)[:, :64].reshape(len(x), 16, 4).numpy()


class HostRunner:
    """What a study asks for: it runs an arm's planned episodes into the table."""

    def __init__(self, make_env):
        self.policy, self.make_env = VideoPolicy(), make_env
        self.counts = {}

    def __call__(self, arm, planned, table):
        adapter = host(self.policy.net, scheduler=self.policy.scheduler)
        with host_policy(adapter, arm.plan, self.policy, n_steps=N_STEPS) as (policy, counts):
            for tasks, n in episodes_of(arm, planned):
                run_episodes(
                    policy, plan_episodes(tasks, n), arm=arm.name, table=table, n_lanes=4, horizon=40,
                    plan=counts.plan, checkpoint="wan", progress=False, make_env=self.make_env,
                )  # fmt: skip
        self.counts[arm.name] = counts


@pytest.fixture
def done(make_study, toy_env):
    path = make_study(n=8, margin=40, study=STUDY.format(**ARMS))
    runner = HostRunner(toy_env)
    outcomes = run_study(load_study(path), runner, now_utc="2020-01-01T00:00:00Z", say=lambda *step: None)
    return path, runner, outcomes


def test_a_step_plan_and_a_cache_are_judged_against_dense(done):
    path, runner, outcomes = done
    rows = read_rows(path.parent / "episodes.jsonl")
    assert {row.arm: row.plan for row in rows} == ARMS
    assert len(rows) == 3 * 16
    starts = {arm: [(r.task, r.episode, r.start_state) for r in rows if r.arm == arm] for arm in ARMS}
    assert sorted(starts["good"]) == sorted(starts["bad"]) == sorted(starts["dense"])
    assert len(outcomes) == 2
    for outcome, arm in zip(outcomes, ("good", "bad"), strict=True):
        verdict = json.loads((path.parent / arm / "card" / "card.json").read_text())["verdict"]
        assert outcome.word == verdict["headline"]["word"]
        assert outcome.word in ("SAME", "NOT SAME", "CAN'T TELL")
        assert verdict["registration"]["mode"] == "confirmatory"
        counts = verdict["hypotheses"][0]["unpaired"]
        for side, who in (("lean", arm), ("anchor", "dense")):
            assert verdict["arms"][side]["facts"]["plan"] == ARMS[who]
            n_success = sum(row.success for row in rows if row.arm == who)
            assert counts[side]["successes"] == n_success
            assert 0 < n_success < 16
    # what really ran, per sampling call
    for arm, n_video in (("dense", N_STEPS), ("good", 2), ("bad", N_STEPS)):
        counts = runner.counts[arm]
        assert counts.n_calls > 0
        assert counts.executions == {"video": n_video * counts.n_calls}
        blocks = counts.counters["blocks"] / counts.n_calls
        if arm == "bad":
            assert N_STEPS < blocks < N_STEPS * N_BLOCKS
        else:
            assert blocks == n_video * N_BLOCKS
    assert all("forward" not in module.__dict__ for module in runner.policy.net.modules())


def test_a_cache_that_leaves_nothing_out_wins_and_loses_the_same_episodes(make_study, toy_env):
    arms = {**ARMS, "bad": "cache:first_block:threshold=0.0"}
    path = make_study(n=2, margin=40, study=STUDY.format(**arms))
    run_study(load_study(path), HostRunner(toy_env), now_utc="2020-01-01T00:00:00Z", say=lambda *step: None)
    rows = read_rows(path.parent / "episodes.jsonl")
    ended = {
        arm: sorted((r.task, r.episode, r.success, r.n_steps) for r in rows if r.arm == arm) for arm in arms
    }
    assert ended["bad"] == ended["dense"]


def test_an_exception_starts_the_next_call_anew():
    policy = VideoPolicy()
    adapter = host(policy.net, scheduler=policy.scheduler)
    batch = PolicyInput(("push",), np.zeros((1, 4), np.float32), None, None, (3,))
    with host_policy(adapter, ARMS["bad"], policy, n_steps=N_STEPS) as (run, counts):
        first = run(batch)
        broken = policy.net.proj_out.register_forward_hook(lambda *a: (_ for _ in ()).throw(ValueError("no")))
        with pytest.raises(ValueError, match="no"):
            run(batch)
        broken.remove()
        np.testing.assert_array_equal(run(batch), first)
    assert counts.n_calls == 2
