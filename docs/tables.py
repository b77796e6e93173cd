"""The pages' tables from committed results: ``python docs/tables.py`` writes them, ``--check`` compares.

A table stands between ``<!-- table NAME -->`` and ``<!-- end NAME -->``.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "src" / "leanwam" / "models" / "reference" / "checkpoints" / "heads"


def demo() -> str:
    """The table that ``leanwam demo`` prints, from docs/demo.json."""
    result = json.loads((ROOT / "docs" / "demo.json").read_text())
    lines = [
        "| plan | heads computed | report's cosine | solver | executed | success | ms per call |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in result["plans"].items():
        forced = row["heads_executed"] - row["heads_computed"]
        count = f"{row['heads_computed']}" + (f" + {forced:.0f}" if forced else "")
        success = "" if row["success"] is None else f"{row['success'][0]} of {row['success'][1]}"
        trivial = " *t*" if row["trivial"] else ""
        lines.append(
            f"| `{name}` | {count} | {row['hold_cosine']:.4f}{trivial} | {row['solver_cosine']:.4f} "
            f"| {row['executed_cosine']:.4f} | {success} | {row['ms_per_call']:.0f} |"
        )
    return "\n".join(lines)


def success() -> str:
    """Closed-loop success per task and number of denoising steps, from the shipped evaluation."""
    result: dict[str, Any] = json.loads((CHECKPOINT / "evaluation.json").read_text())
    arms = result["arms"]
    names = list(arms)
    lines = [
        "| task | " + " | ".join(_steps(arms[name]["n_steps"]) for name in names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    tasks = arms[names[0]]["tasks"]
    order = sorted(tasks, key=lambda task: (tasks[task]["family"], task))
    for task in order:
        cells = [
            f"{arms[n]['tasks'][task]['n_success']} of {arms[n]['tasks'][task]['n_episodes']}" for n in names
        ]
        lines.append(f"| {task} ({tasks[task]['family']}) | " + " | ".join(cells) + " |")
    for family in sorted(arms[names[0]]["families"]):
        rates = [f"**{arms[name]['families'][family]:.1%}**" for name in names]
        lines.append(f"| **{family}** | " + " | ".join(rates) + " |")
    lines.append(
        "| **all tasks** | " + " | ".join(f"**{arms[name]['success_rate']:.1%}**" for name in names) + " |"
    )
    return "\n".join(lines)


def hosts() -> str:
    """Plans and caches on the tiny Wan model, from bench/results/hosts.json."""
    result = json.loads((ROOT / "bench" / "results" / "hosts.json").read_text())
    lines = [
        "| plan | blocks that ran | attentions | FLOPs | rel. L2 error | cosine | promised | measured |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        ran, error = row["executions"], row["output_error"]
        plan = re.sub(r"(mag_ratios=)\[.*?\]", r"\1[…]", row["plan"])
        interval = "" if row["interval"] is None else " ({:.2f}–{:.2f})".format(*row["interval"])
        lines.append(
            f"| `{plan}` | {ran['blocks']:g} | {ran['attention']:g} | {1 / row['flops_ratio']:.1%} "
            f"| {error['relative_l2_mean']:.4f} | {error['cosine_mean']:.4f} "
            f"| {row['expected_ratio']:.2f}× | {row['measured_ratio']:.2f}×{interval} |"
        )
    return "\n".join(lines)


def heads_study() -> str:
    """Plans in closed loop beside what offline scores say of them, from studies/heads/result.json."""
    result = json.loads((ROOT / "studies" / "heads" / "result.json").read_text())
    arms = result["arms"]
    dense, n = next(iter(arms.values()))["dense"]
    lines = [
        "| plan | success | − dense, points (95 %) | the card says | report's cosine | executed MSE |",
        "|---|---:|---:|---|---:|---:|",
    ]
    rows = [(dense, f"| dense, 50 steps | {dense} of {n} | | | 1 | 0 |")]
    for name, arm in arms.items():
        low, high = (100 * value for value in arm["interval"])
        scores = [f"{arm[score]:.4f}" if score in arm else "–" for score in ("hold_cosine", "executed_mse")]
        good, of = arm["success"]
        rows.append(
            (
                good,
                f"| `{name}` | {good} of {of} | {100 * arm['delta']:+.1f} [{low:+.1f}, {high:+.1f}] "
                f"| {arm['word']} ({arm['state'].lower()}) | {scores[0]} | {scores[1]} |",
            )
        )
    return "\n".join([*lines, *(line for _, line in sorted(rows, key=lambda row: -row[0]))])


def fastest() -> str:
    """The fastest plan that passed, and how fast against what, from studies/fastest-same/heads/result.json."""
    result = json.loads((ROOT / "studies" / "fastest-same" / "heads" / "result.json").read_text())
    plan = result["fastest"]
    lines = [
        f"| against | success | the card says | `{plan}` is faster, batch 1 | batch 8 |",
        "|---|---:|---|---:|---:|",
    ]
    arms = result["arms"]
    dense = arms[plan]["dense"]
    by_batch = [table["rows"] for table in result["ratios"].values()]
    for baseline in by_batch[0]:
        name, _, kind = baseline.partition(" + ")
        good, n = dense if name == "untouched" else arms[name]["success"]
        word = "" if name == "untouched" else f"{arms[name]['word']} ({arms[name]['state'].lower()})"
        shown = "50 steps" if name == "untouched" else f"`{name}`"
        cells = [
            f"{rows[baseline]['ratio']:.2f}× ({rows[baseline]['interval'][0]:.2f}–{rows[baseline]['interval'][1]:.2f})"
            for rows in by_batch
        ]
        lines.append(
            f"| {shown}{', ' + kind if kind else ''} | {good} of {n} | {word} | " + " | ".join(cells) + " |"
        )
    good, n = arms[plan]["success"]
    return "\n".join([*lines, f"| `{plan}` itself | {good} of {n} | {arms[plan]['word']} | | |"])


def fastest_joint() -> str:
    """Every plan of `joint` in both attempts, from studies/fastest-same/joint and joint-2."""
    lines = [
        "| plan | success | dense, same starts | the card says | ms, batch 1 | ms, batch 8 |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for part in ("joint", "joint-2"):
        folder = ROOT / "studies" / "fastest-same" / part
        arms = json.loads((folder / "result.json").read_text())["arms"]
        samples = json.loads((folder / "speed.json").read_text())["samples"].values()
        for name, arm in arms.items():
            (good, n), (dense, _) = arm["success"], arm["dense"]
            shown = [f"{1e3 * statistics.median(of['wall_s'][f'{name} + caches']):.1f}" for of in samples]
            lines.append(
                f"| `{name}` | {good} of {n} | {dense} | {arm['word']} ({arm['state'].lower()}) | "
                + " | ".join(shown)
                + " |"
            )
    return "\n".join(lines)


def frames_study() -> str:
    """The curve and the controls of the second frames study, from studies/frames-2/result.json."""
    result = json.loads((ROOT / "studies" / "frames-2" / "result.json").read_text())
    success = result["success"]
    groups = list(success["dense"])
    of = {entry["lean"]: entry for entry in result["comparisons"] if entry["anchor"] == "dense"}
    told = {
        "dense": "all, supervised",
        "mae25": "a quarter",
        "drop_middle": "none",
        "loss_only": "all, without their loss",
        "no_future": "none, nor the last frame's",
    }
    lines = [
        "| middle frame's tokens | " + " | ".join(groups) + " | − dense, points (95 %) | the card says |",
        "|---|" + "---:|" * len(groups) + "---:|---|",
    ]
    for arm, words in told.items():
        cells = [f"{good} of {n}" for good, n in success[arm].values()]
        tail = "| | |"
        if arm in of:
            overall = of[arm]["of"]["ALL"]
            low, high = (100 * value for value in overall["interval"])
            tail = f"| {100 * overall['delta']:+.1f} [{low:+.1f}, {high:+.1f}] | {of[arm]['word']} |"
        lines.append(f"| {words} | " + " | ".join(cells) + f" {tail}")
    return "\n".join(lines)


def seeds() -> str:
    """Both trainings of every arm, from studies/frames-3/seeds.json."""
    result = json.loads((ROOT / "studies" / "frames-3" / "seeds.json").read_text())
    lines = ["| comparison | seed 0 | seed 1 | both together |", "|---|---:|---:|---:|"]
    for entry in result["comparisons"]:
        zero, one = (100 * value for value in entry["delta"])
        low, high = (100 * value for value in entry["pooled"]["interval_90"])
        lines.append(
            f"| `{entry['lean']}` − `{entry['anchor']}` | {zero:+.1f} | {one:+.1f} | "
            f"{100 * entry['pooled']['delta']:+.1f} [{low:+.1f}, {high:+.1f}] |"
        )
    return "\n".join(lines)


def bench() -> str:
    """Frame plans forward and in training, from bench/results."""
    lines = ["| what | promised by operations | measured (95 %) | of it |", "|---|---:|---:|---:|"]
    for name in ("forward-joint", "forward-joint-compiled", "train-joint"):
        for row in json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())["rows"]:
            low, high = row["interval"]
            lines.append(
                f"| {row['target']}: {row['name']} | {row['expected_ratio']:.2f}× | {row['measured_ratio']:.2f}× "
                f"({low:.2f}–{high:.2f}) | {row['of_expected']:.2f} |"
            )
    return "\n".join(lines)


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


#: Page -> its tables.
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "demo": demo,
        "success": success,
        "heads-study": heads_study,
        "fastest": fastest,
        "fastest-joint": fastest_joint,
        "frames-study": frames_study,
        "seeds": seeds,
    },
    "docs/reference-wam.md": {"bench": bench},
    "docs/hosts/diffusers.md": {"hosts": hosts},
}


def filled(page: str) -> str:
    """A page with every table made anew."""
    text = (ROOT / page).read_text()
    for name, make in TABLES[page].items():
        pattern = rf"(<!-- table {name} -->\n).*?(\n<!-- end {name} -->)"
        text, count = re.subn(
            pattern, lambda m, make=make: m.group(1) + make() + m.group(2), text, flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"{page}: one table {name} is wanted, there are {count}")
    return text


def main() -> int:
    """Write the tables, or with --check say whether they are those of the results."""
    if "--check" in sys.argv[1:]:
        return 0 if all(filled(page) == (ROOT / page).read_text() for page in TABLES) else 1
    for page in TABLES:
        (ROOT / page).write_text(filled(page))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
