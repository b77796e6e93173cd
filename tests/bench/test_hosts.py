"""A user's sampling call in the bench: plans, caches and plain samplers in one table, with their errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from leanwam.bench.generate import Options
from leanwam.bench.hosts import HostSubject, compare_host, errors_of, load_host
from leanwam.cli.main import main
from leanwam.errors import InputError
from leanwam.plans import parse_plans
from leanwam.report.card import load_speed

FILE = str(Path(__file__).with_name("wan_subject.py"))
N_STEPS, N_BLOCKS = 6, 2
QUICK = Options(n_rounds=1, n_warmup=0, n_share_repeats=1)


@pytest.fixture(scope="module")
def subject() -> HostSubject:
    return load_host(f"host:{FILE}:wan")


def test_one_table_for_plans_caches_and_plain_samplers(tmp_path: Path, capsys) -> None:
    """(a) of the road to the judge: dense, a head plan and two caches through the command line."""
    plans = (
        "dense;video=sparse_3;plain_3;frames=drop_middle;cache:first_block:threshold=0.5;"
        "cache:taylorseer:cache_interval=3:disable_cache_before_step=1:cache_identifiers=['blocks.*attn1']"
    )
    files = ["--out", str(tmp_path / "r.json"), "--card", str(tmp_path / "speed.json")]
    arguments = ["bench", "generate", "--model", f"host:{FILE}:wan", "--plans", plans, "--rounds", "1"]
    assert main([*arguments, *files]) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["model"]["host"] == "diffusers"
    rows = {item["plan"]: item for item in found["rows"]}
    dense, sparse, plain, frames, block, taylor = rows.values()
    calls = {"video": N_STEPS, "network": N_STEPS, "blocks": N_STEPS * N_BLOCKS}
    assert dense["executions"] == {**calls, "attention": N_STEPS * N_BLOCKS}
    assert dense["output_error"]["relative_l2_max"] == 0
    assert dense["output_error_floor"] == 0
    assert dense["flops_ratio"] == 1
    for half in (sparse, plain):
        assert half["executions"]["blocks"] == 3 * N_BLOCKS
        assert half["flops_ratio"] == pytest.approx(2)
        assert 0 < half["output_error"]["relative_l2_max"] < 1
    assert sparse["output_error"] != plain["output_error"]
    assert frames["executions"] == dense["executions"]
    assert 1.5 < frames["flops_ratio"] < 2  # tokens 3 to 2, attention with their square
    # the cache decides: the first block always runs, the other one at least once
    assert N_STEPS < block["executions"]["blocks"] < N_STEPS * N_BLOCKS
    assert block["executions"]["video"] == N_STEPS
    one_block = (dense["flops"] - block["flops"]) / (N_STEPS * N_BLOCKS - block["executions"]["blocks"])
    assert 0.3 * dense["flops"] / (N_STEPS * N_BLOCKS) < one_block < dense["flops"] / (N_STEPS * N_BLOCKS)
    assert taylor["executions"]["blocks"] == N_STEPS * N_BLOCKS
    assert N_BLOCKS <= taylor["executions"]["attention"] < N_STEPS * N_BLOCKS
    for item in rows.values():
        assert item["measured_ratio"] > 0
        assert item["output_error"]["n_seeds"] == 3
    assert 1.0 < sparse["expected_ratio"] <= 2.0 + 1e-9
    assert "error against dense" in shown
    assert "L2 0 cos 1.0000" in shown
    assert "blocks 12" in shown
    assert len(load_speed(tmp_path / "speed.json")["rows"]) == 6


def test_the_model_is_as_it_was(subject: HostSubject) -> None:
    before = subject.run(5)
    compare_host(
        subject, parse_plans("cache:first_block:threshold=0.5;video=sparse_2"), 1, QUICK, n_error_seeds=1
    )
    assert torch.equal(subject.run(5), before)
    assert all("forward" not in module.__dict__ for module in subject.model.modules())


def test_errors_against_what_is_known() -> None:
    y0 = np.array([3.0, 4.0])
    found = errors_of([{"a": np.array([3.0, 4.0]), "b": 2 * y0}], [{"a": y0, "b": y0}])
    assert (found["output"], found["relative_l2_max"], found["cosine_min"]) == ("b", 1.0, 1.0)
    turned = errors_of([torch.tensor([-4.0, 3.0]), torch.tensor([3.0, 4.0])], [torch.tensor(y0)] * 2)
    assert turned["relative_l2_max"] == pytest.approx(2**0.5)
    assert turned["relative_l2_mean"] == pytest.approx(2**0.5 / 2)
    assert turned["cosine_min"] == pytest.approx(0)
    for bad, why in ((np.array([np.nan, 1.0]), "not finite"), (np.zeros(2), "zero"), (np.ones(3), "shape")):
        undefined = errors_of([bad], [y0])
        assert undefined["relative_l2_mean"] is None
        assert why in undefined["why"]
    with pytest.raises(InputError, match="tensors or arrays"):
        errors_of(["text"], ["text"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "host:nowhere"], "host:MODULE:FACTORY"),
        (["--model", "host:no_such_module:f"], "no_such_module"),
        (["--model", "host:nowhere.py:f"], "no such file"),
        (["--model", f"host:{FILE}:nothing"], "no such function"),
        (["--model", f"host:{FILE}:wrong"], "(model, run)"),
        (["--model", f"host:{FILE}:pair", "--batch", "2"], "takes no batch"),
        (["--model", f"host:{FILE}:wan", "--until", "action"], "--until"),
        (["--model", f"host:{FILE}:wan", "--backends", "compile"], "eager"),
        (["--model", f"host:{FILE}:wan", "--plans", "cache:firstblock"], "first_block"),
        (["--model", f"host:{FILE}:wan", "--plans", "cache:taylorseer"], "found nothing to cache"),
        (["--model", f"host:{FILE}:wan", "--plans", "action=sparse_2"], "no such head"),
        (["--model", f"host:{FILE}:pair", "--plans", "plain_3"], "n_steps"),
        (["--model", "random:heads", "--batch", "1", "--plans", "cache:first_block"], "reference WAM"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], words: str, capsys) -> None:
    assert main(["bench", "generate", "--rounds", "1", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert len(shown.err.strip().split("\n")) == 1
