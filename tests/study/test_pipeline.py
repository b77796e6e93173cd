"""A study runs from the lock to the card once; what is done and unchanged is not done again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from leanwam.errors import InputError
from leanwam.judge.lock import read_lock
from leanwam.rollouts import read_rows
from leanwam.rollouts.table import write_rows
from leanwam.studies import load_study, run_study, study_status
from leanwam.studies.state import read_state

NOW = "2020-01-01T00:00:00Z"


def run(path, runner, **options):
    steps = []
    outcomes = run_study(
        load_study(path), runner, now_utc=NOW, say=lambda *step: steps.append(step), **options
    )
    return outcomes, steps


def cards(path):
    return {file.relative_to(path.parent): file.read_bytes() for file in path.parent.rglob("card.*")}


def without_table_hash(found, folder):
    card = json.loads(found[Path(folder) / "card.json"])
    for arm in card["verdict"]["arms"].values():
        arm["sha256"] = ""
    return card


def test_from_the_lock_to_the_card_and_nothing_twice(make_study, runner):
    path = make_study()
    first = runner()
    outcomes, steps = run(path, first)
    assert [(item.word, item.new) for item in outcomes] == [("SAME", True), ("NOT SAME", True)]
    assert [step[0] for step in steps] == ["lock"] * 2 + ["rollouts"] * 4 + ["judge"] * 2
    assert [item.claim_holds for item in outcomes] == [True, False]
    assert first.asked == ["good", "dense", "bad"]
    assert [step[0] for step in steps[:2]] == ["lock", "lock"]
    assert read_lock(path.parent / "good" / "prereg.toml").locked_at_utc == NOW
    card = json.loads((path.parent / "good" / "card" / "card.json").read_text())
    assert card["verdict"]["registration"]["mode"] == "confirmatory"
    assert len(read_rows(path.parent / "episodes.jsonl")) == 3 * 40
    before = cards(path)
    assert len(before) == 6

    again = runner()
    outcomes, steps = run(path, again)
    assert again.asked == []
    assert {step[2] for step in steps} == {"unchanged"}
    assert [item.new for item in outcomes] == [False, False]
    assert cards(path) == before


def test_only_what_changed_is_done_again(make_study, runner):
    path = make_study()
    run(path, runner())
    before = cards(path)
    (path.parent / "good" / "card" / "card.md").write_text("edited by hand")
    _, steps = run(path, runner())
    assert [step[1] for step in steps if step[2] == "done"] == ["good/card"]
    assert cards(path) == before

    shutil.rmtree(path.parent / "study.state")  # the memory is gone: looked at again, the same bytes
    first = runner()
    run(path, first)
    assert first.asked == ["good", "dense", "bad"]
    assert len(read_rows(path.parent / "episodes.jsonl")) == 120
    assert cards(path) == before

    rows = read_rows(path.parent / "episodes.jsonl")
    changed = [
        msgspec.structs.replace(row, success=not row.success) if row.key == ("bad", "push", 3) else row
        for row in rows
    ]
    write_rows(path.parent / "episodes.jsonl", changed)
    _, steps = run(path, runner())
    assert [step[1] for step in steps if step[2] == "done"] == ["good/card", "bad/card"]  # the table's hash
    after = cards(path)
    assert without_table_hash(after, "good/card") == without_table_hash(before, "good/card")
    assert without_table_hash(after, "bad/card") != without_table_hash(before, "bad/card")

    write_rows(path.parent / "episodes.jsonl", rows[5:])  # five episodes of "bad" are lost: run again
    last = runner()
    run(path, last)
    assert last.asked == ["bad"]
    assert len(read_rows(path.parent / "episodes.jsonl")) == 120


def test_stopped_anywhere_it_goes_on(make_study, runner):
    path = make_study()
    for stop in (7, 55, 90):
        with pytest.raises(KeyboardInterrupt):
            run(path, runner(stop_after=stop))
        status = study_status(load_study(path))
        n_rows = runner().n_rows(path.parent / "episodes.jsonl")
        assert stop <= n_rows < 120
        assert status["n_left"] == 120 - n_rows
        assert status["left_s"] >= 0
    outcomes, _ = run(path, runner())
    assert [item.word for item in outcomes] == ["SAME", "NOT SAME"]
    assert study_status(load_study(path))["n_left"] == 0


def test_looks_only_where_declared(make_study, runner):
    path = make_study(n=40, margin=8, more='[stopping]\nrule = "looks"\nlooks = [0.5, 1.0]')
    seen = []

    class Watched(runner):
        def __call__(self, arm, planned, table):
            super().__call__(arm, planned, table)
            seen.append((arm.name, sum(planned.values())))

    outcomes, _ = run(path, Watched())
    good, bad = outcomes
    assert (bad.word, bad.look, bad.fraction) == ("NOT SAME", 1, 0.5)
    assert ("bad", 80) not in seen, "an arm went on after its comparison was decided"
    assert {n for _, n in seen} <= {40, 80}
    assert (good.word, good.look) == ("SAME", 2)
    # the bad arm is judged on its look's rows, although the anchor has more by now
    card = json.loads((path.parent / "bad" / "card" / "card.json").read_text())
    assert card["verdict"]["looks"]["this_look"] == 1
    assert card["verdict"]["hypotheses"][0]["counts"][1::2] == [40, 40]
    again = runner()
    outcomes, steps = run(path, again)
    assert again.asked == []
    assert {step[2] for step in steps} == {"unchanged"}
    looks = read_state(path.parent / "study.state").comparisons["good/card"]
    assert [look.decided for look in looks] == [False, True]
    assert looks[0].word == "CAN'T TELL"
    assert "state" in looks[0].card
    status = study_status(load_study(path))
    assert status["n_left"] == 0
    assert status["arms"]["bad"]["n_planned"] == 40


def test_status_before_anything_and_with_one_arm_measured(make_study, runner):
    path = make_study()
    status = study_status(load_study(path))
    assert (status["n_left"], status["left_s"]) == (120, None)
    assert status["arms"]["dense"]["why"] == "no episode was run yet"
    assert status["comparisons"][0]["locked_at_utc"] is None
    with pytest.raises(KeyboardInterrupt):
        run(path, runner(stop_after=7))
    status = study_status(load_study(path))
    assert status["arms"]["good"]["measured_from"] == "its rows"
    assert status["arms"]["bad"]["measured_from"] == "the other arms"
    assert status["left_s"] is not None


def test_too_late_or_changed_is_refused(make_study, runner):
    path = make_study()
    run(path, runner())
    prereg = path.parent / "good" / "prereg.toml"
    prereg.write_text(prereg.read_text().replace("margin_pp = 40", "margin_pp = 45"))
    with pytest.raises(InputError, match=r"changed since it was locked .*margin_pp: 40 -> 45"):
        run(path, runner())
    make_study()
    (path.parent / "bad" / "prereg.lock.json").unlink()
    with pytest.raises(InputError, match="too late for a preregistration"):
        run(path, runner())


def test_another_plan_under_the_same_name_is_refused(make_study, runner):
    path = make_study()
    run(path, runner())
    path.write_text(path.read_text().replace('plan = "sparse_10"', 'plan = "sparse_5"'))
    with pytest.raises(InputError, match="was run with plan 'sparse_10'"):
        run(path, runner())


def test_a_study_on_fresh_starts_is_judged_on_them_alone(make_study, runner):
    path = make_study()
    run(path, runner())
    table = path.parent / "episodes.jsonl"
    old = {row.start_state for row in read_rows(table)}
    for lean in ("good", "bad"):
        shutil.rmtree(path.parent / lean / "card")
        (path.parent / lean / "prereg.lock.json").unlink()
    table.unlink()
    shutil.rmtree(path.parent / "study.state")
    path.write_text("first_episode = 100\n" + path.read_text())
    outcomes, _ = run(path, runner())
    assert {row.episode for row in read_rows(table)} == set(range(100, 120))
    assert not old & {row.start_state for row in read_rows(table)}
    assert [item.word for item in outcomes] == ["SAME", "NOT SAME"]
    assert study_status(load_study(path))["n_left"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('title = "toy"', 'title = "toy"\nfirst_episode = -1'), "must not be negative"),
        (('name = "bad"', 'name = "good"'), "each named once"),
        (('title = "toy"', 'titel = "toy"'), "titel"),
        (('name = "good"', 'name = "fine"'), "does not run"),
        (
            ("[[comparisons]]\nprereg", '[[arms]]\nname = "x"\nplan = "dense"\n[[comparisons]]\nprereg'),
            "uses this",
        ),
        (('plan = "sparse_10"', 'plan = "sprase_10"'), "sprase_10"),
    ],
)
def test_bad_studies_are_named(make_study, change, message):
    path = make_study()
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(InputError, match=message):
        load_study(path)


def test_a_look_that_whole_episodes_cannot_meet_is_refused(make_study):
    path = make_study(n=5, more='[stopping]\nrule = "looks"\nlooks = [0.5, 1.0]')
    with pytest.raises(InputError, match="choose a fraction that whole episodes meet"):
        load_study(path)


@pytest.mark.parametrize(
    ("study", "n_cards", "code"), [("frames", 4, 0), ("frames-2", 5, 1), ("frames-3", 10, 1)]
)
def test_cards_are_made_again_from_the_committed_table_without_the_checkpoints(
    study, n_cards, code, tmp_path, capsys
):
    """The studies as they are committed: some of their checkpoints are not shipped, none is in runs/."""
    from leanwam.cli.main import main

    here = Path(__file__).parents[2] / "studies" / study
    made = tmp_path / "studies" / study
    shutil.copytree(here, made, ignore=shutil.ignore_patterns("card", "*.state"))
    assert main(["study", "run", str(made / "study.toml")]) == code
    assert "is not here; the table holds every planned episode of arm mae25" in capsys.readouterr().err
    cards = sorted(here.glob("*/card/card.json"))
    assert len(cards) == n_cards
    for card in cards:
        again = json.loads((made / card.relative_to(here)).read_text())
        assert again["verdict"] == json.loads(card.read_text())["verdict"]
