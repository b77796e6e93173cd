"""Which plan is the fastest that passed, and how fast against what: cards and the committed timing, side by side.

    python studies/fastest-same/result.py heads

Reads PART/study.toml, its cards, PART/speed.json (by `bash studies/fastest-same/speed.sh PART`, on an idle machine)
and, where a call ends before its last step once the action is done, PART/speed-whole.json of calls that do not;
writes PART/result.json, PART/result.md and, for the cards, PART/ARM/speed.json of every arm that has a card (run
`leanwam study run PART/study.toml` again to put them there). Ratios are of the rounds in which both arms were timed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from leanwam.bench.generate import ASKED, BASELINE, CACHED
from leanwam.bench.ratio import paired_ratio
from leanwam.studies import card_outcomes, load_study

HERE = Path(__file__).parent
#: States of a card that exclude a loss beyond the margin.
NOT_WORSE = ("EQUIVALENT", "NON-INFERIOR", "BETTER")


def ratios(speed: dict[str, Any], plan: str, baselines: list[str]) -> dict[str, dict[str, Any]]:
    """By batch and baseline: how many times faster the plan with every lossless saving is, with its interval."""
    table: dict[str, dict[str, Any]] = {}
    for label, samples in speed["samples"].items():
        wall = {name: np.array(values) for name, values in samples["wall_s"].items()}
        cpu = {name: np.array(values) for name, values in samples["cpu_s"].items()}
        rows = {}
        for baseline in baselines:
            ratio = paired_ratio(wall[baseline], wall[plan + CACHED])
            rows[baseline] = {
                "ratio": ratio.ratio,
                "interval": None if ratio.interval is None else list(ratio.interval),
                "cpu_ratio": paired_ratio(cpu[baseline], cpu[plan + CACHED]).ratio,
                "baseline_ms": 1e3 * float(np.median(wall[baseline])),
                "plan_ms": 1e3 * float(np.median(wall[plan + CACHED])),
            }
        table[label] = {"rows": rows, "reasons": samples["contention"]["reasons"]}
    return table


def analyse(part: Path) -> dict[str, Any]:
    """The fastest plan that passed (by time at the first batch size), or else that is not worse, and its ratios."""
    speed = json.loads((part / "speed.json").read_text())
    arms = {
        found.lean: {**found.of["ALL"], "word": found.word, "alpha": found.alpha}
        for found in card_outcomes(load_study(part / "study.toml"))
    }
    first = next(iter(speed["samples"].values()))["wall_s"]
    plain = [name for name in arms if name.startswith("plain_")]
    passed = [name for name in arms if arms[name]["word"] == "SAME"]

    def time(name: str) -> float:
        return float(np.median(first[name if name in plain else name + CACHED]))

    def fastest(names: list[str], among: list[str]) -> str | None:
        return min((name for name in names if name in among), key=time, default=None)

    lean = [name for name in arms if name not in plain]
    not_worse = [name for name in arms if arms[name]["state"] in NOT_WORSE]
    result: dict[str, Any] = {
        "model": speed["model"],
        "environment": speed["environment"],
        "arms": arms,
        "fastest": fastest(lean, passed),
        "fastest_plain_that_passed": fastest(plain, passed),
        "fastest_not_worse": fastest(lean, not_worse),
        "fastest_plain_not_worse": fastest(plain, not_worse),
    }
    timed = result["fastest"] or result["fastest_not_worse"]
    if timed is not None:
        baselines = [BASELINE, BASELINE + CACHED]
        baselines += [name + kind for name in plain for kind in ("", ASKED, CACHED)]
        result["ratios"] = ratios(speed, timed, baselines)
        whole = part / "speed-whole.json"
        if whole.is_file():
            result["ratios_whole_call"] = ratios(json.loads(whole.read_text()), timed, [BASELINE])
    return result


def card_speed(part: Path, result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """By arm, the rows of its card: with every lossless saving, against the 50-step call and the fastest plain sampler.

    A plain sampler is the baseline if it passed; it then has the same savings, and the call ends with the action.
    """
    speed = json.loads((part / "speed.json").read_text())
    whole = part / "speed-whole.json"
    full = json.loads(whole.read_text()) if whole.is_file() else speed
    plain = result["fastest_plain_that_passed"]
    rows: dict[str, list[dict[str, Any]]] = {}
    for arm in result["arms"]:
        against = [("the 50-step call", full, BASELINE)]
        if plain is not None and not arm.startswith("plain_"):
            against.append((f"{plain} with the same savings", speed, plain + CACHED))
        rows[arm] = []
        for words, table, baseline in against:
            for label, one in ratios(table, arm, [baseline]).items():
                ratio = one["rows"][baseline]
                rows[arm].append(
                    {
                        "name": f"{arm} with every lossless saving against {words}, {label}",
                        "measured_ratio": ratio["ratio"],
                        "interval": ratio["interval"],
                        "note": "; ".join(one["reasons"]) or None,
                        "primary": not rows[arm],
                    }
                )
    return rows


def render(result: dict[str, Any], name: str) -> str:
    """result.md."""
    arms = result["arms"]
    good, n = next(iter(arms.values()))["dense"]
    alpha = next(iter(arms.values()))["alpha"]
    lines = [
        f"# The fastest plan that is still the same policy: {name}",
        "",
        f"Commands: `bash studies/fastest-same/speed.sh {name}`, `python studies/fastest-same/result.py {name}`. "
        f"Dense: {good} of {n}. Equivalence within the margin "
        f"of the cards at alpha {alpha}; intervals are the ones of that test.",
        "",
        "| arm | success | − dense, points | p, equivalent | card |",
        "|---|---|---|---|---|",
    ]
    for arm, of in arms.items():
        low, high = of["tost_interval"]
        lines.append(
            f"| `{arm}` | {of['success'][0]} of {of['success'][1]} | {100 * of['delta']:+.1f} "
            f"[{100 * low:+.1f}, {100 * high:+.1f}] | {of['tost_p']:.3g} | {of['word']} ({of['state'].lower()}) |"
        )
    plain = result["fastest_plain_that_passed"]
    lines += [
        "",
        f"Fastest plan that passed: {_code(result['fastest'])}. Fastest plain sampler of this study that passed: "
        f"{_code(plain)}.",
    ]
    timed = result["fastest"] or result["fastest_not_worse"]
    if timed is None:
        return "\n".join(lines) + "\n"
    if result["fastest"] is None:
        lines += [
            f"Fastest plan that is not worse: {_code(timed)} ({arms[timed]['state'].lower()}); plain sampler: "
            f"{_code(result['fastest_plain_not_worse'])}. Neither meets the claim; "
            "the plan's speed is told all the same."
        ]
    about = result["environment"]
    lines += [
        "",
        f"## How fast `{timed}` with every lossless saving is",
        "",
        f"{about['cpu']['model']}, {about['threads']['intra_op']} thread, torch {about['versions']['torch']}; median "
        "ratio of interleaved rounds, 95 % bootstrap interval. *asked only*: the baseline without the streams nobody "
        "asked for; *caches*: with every lossless saving.",
    ]
    whole = result.get("ratios_whole_call")
    if whole is None:
        return "\n".join([*lines, *_tables(result["ratios"], "50 steps")]) + "\n"
    lines += ["", "### The whole call: every stream, all 50 video steps", *_tables(whole, "50 steps")]
    lines += ["", "### Until the action is done", *_tables(result["ratios"], "dense, until the action")]
    return "\n".join(lines) + "\n"


def _tables(by_batch: dict[str, dict[str, Any]], dense: str) -> list[str]:
    """One table for each batch size; ``dense`` names the untouched model."""
    lines: list[str] = []
    for label, table in by_batch.items():
        lines += [
            "",
            f"{label}" + ("" if not table["reasons"] else f" (disturbed: {'; '.join(table['reasons'])})"),
            "",
            "| baseline | ms | plan, ms | times faster | 95 % interval | by CPU time |",
            "|---|---|---|---|---|---|",
        ]
        for baseline, row in table["rows"].items():
            interval = "—" if row["interval"] is None else "{:.2f}–{:.2f}".format(*row["interval"])
            lines.append(
                f"| {baseline.replace(BASELINE, dense)} | {row['baseline_ms']:.1f} | {row['plan_ms']:.1f} | "
                f"{row['ratio']:.2f} | {interval} | {row['cpu_ratio']:.2f} |"
            )
    return lines


def _code(name: str | None) -> str:
    return "none" if name is None else f"`{name}`"


def main() -> None:
    """Write the files of a part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", help="heads, joint or joint-2")
    name = parser.parse_args().part
    result = analyse(HERE / name)
    (HERE / name / "result.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    (HERE / name / "result.md").write_text(render(result, name))
    for arm, rows in card_speed(HERE / name, result).items():
        (HERE / name / arm / "speed.json").write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
