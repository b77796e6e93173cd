"""Plans that name another's cache: text, file, refusals; the tables agree with the installed diffusers."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from leanwam.cli.main import main
from leanwam.errors import InputError
from leanwam.plans import CACHES, PlanSpec, parse_cache, parse_plan, parse_plans

MAG = "cache:magcache:mag_ratios=[1.0,0.99]:num_inference_steps=2"


@pytest.mark.parametrize(
    "text",
    [
        "cache:first_block:threshold=0.1",
        "cache:first_block",
        MAG,
        "cache:taylorseer:cache_identifiers=['blocks.*attn1;x,y:z']",
        "frames=drop_middle,cache=first_block:threshold=0.1",
        "video=sparse_4,frames=drop_middle,cache=first_block",
        "video=dense,cache=magcache:mag_ratios=[1.0]",
    ],
)
def test_text_round_trips(text: str) -> None:
    plan = parse_plan(text)
    assert plan.name == text
    assert parse_plan(plan.name) == plan
    assert plan.resolve(8, ["video"]).cache == plan.cache


def test_one_spelling_of_a_cache_alone() -> None:
    assert parse_plan("cache=first_block:threshold=0.1") == parse_plan("cache:first_block:threshold=0.1")


def test_a_list_splits_outside_of_brackets() -> None:
    plans = parse_plans(f"dense;sparse_2,{MAG},cache:first_block:threshold=0.1;frames=drop_middle")
    assert [plan.name for plan in plans] == [
        "dense", "sparse_2", MAG, "cache:first_block:threshold=0.1", "frames=drop_middle",
    ]  # fmt: skip
    assert parse_cache(plans[2].cache or "") == (
        "magcache",
        {"mag_ratios": [1.0, 0.99], "num_inference_steps": 2},
    )


def test_a_bare_name_is_text() -> None:
    assert parse_cache("taylorseer:taylor_factors_dtype=float32")[1] == {"taylor_factors_dtype": "float32"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("cache:firstblock", r"no such cache \(did you mean 'first_block'"),
        ("cache:xyz", "known: first_block, taylorseer"),
        ("cache:first_block:treshold=0.1", r"no such parameter \(did you mean 'threshold'"),
        ("cache:first_block:0.1", "parameters like threshold=0.1"),
        ("cache:first_block:threshold=", "parameters like threshold=0.1"),
        ("cache:first_block:threshold=1:threshold=2", "named twice"),
        ("cache:pab:current_timestep_callback=1", "no such parameter"),
        ("video=sparse_4,cache=taylorseer", "counts the network's calls as steps"),
        ("video=sparse_4,cache=seacache", "in full after every step"),
    ],
)
def test_refusals_are_one_line(text: str, rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=rule):
        parse_plan(text)
    assert main(["plan", "show", text, "--steps", "8"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.strip().split("\n")) == 1


def test_files_name_a_cache_as_text_or_as_a_table(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('name = "fbc"\nframes = "drop_middle"\ncache = "first_block:threshold=0.1"\n')
    assert parse_plan(str(file)) == PlanSpec(
        name="fbc", frames="drop_middle", cache="first_block:threshold=0.1"
    )
    file.write_text('name = "m"\n[cache]\nname = "magcache"\nmag_ratios = [1.0, 0.9]\ncalibrate = false\n')
    assert parse_cache(parse_plan(str(file)).cache or "") == (
        "magcache",
        {"mag_ratios": [1.0, 0.9], "calibrate": False},
    )
    for text, rule in (
        ('name = "p"\ncache = "fist_block"', "did you mean 'first_block'"),
        ('name = "p"\n[cache]\nthreshold = 0.1', "wants a name"),
        ('name = "p"\n[cache]\nname = "first_block"\ntreshold = 1', "did you mean 'threshold'"),
        ('name = "p"\ncache = "magcache"\n[heads.video]\nplan = "sparse_2"', "counts the network's calls"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=rf"p\.toml: .*{rule}"):
            parse_plan(str(file))


def test_plan_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "show", "cache:first_block:threshold=0.1", "--steps", "4", "--heads", "video"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "FirstBlockCacheConfig" in shown
    assert "threshold = 0.1" in shown
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cache"] == "first_block:threshold=0.1"
    assert main(["plan", "list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["caches"]) == set(CACHES)


def test_names_and_parameters_are_those_of_the_installed_diffusers() -> None:
    hooks = importlib.import_module("diffusers.hooks")
    for cache in CACHES.values():
        if cache.config is None:
            assert cache.parameters is None
            continue
        fields = {field.name for field in dataclasses.fields(getattr(hooks, cache.config))}
        settable = {name for name in fields if not name.startswith("_") and not name.endswith("callback")}
        assert set(cache.parameters or ()) == settable
