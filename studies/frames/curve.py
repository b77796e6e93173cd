"""The 0 / 25 / 100 % curve and the controls, from a study's cards.

    python studies/frames/curve.py              # or: studies/frames-2, studies/frames-3

Reads study.toml and the cards of the folder; writes result.json and result.md by the rules that its README.md
fixed before the first episode.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from leanwam.judge.significance import holm
from leanwam.studies import card_outcomes, load_study

HERE = Path(__file__).parent
ALPHA = 0.05
# Arm: share of the middle frame's tokens, is the frame supervised.
ARMS = {
    "dense": ("100 %", "yes"),
    "mae25": ("25 %", "its kept tokens"),
    "drop_middle": ("0 %", "no"),
    "loss_only": ("100 %", "no"),
    "no_future": ("0 %, nor the last frame's", "no"),
}
# Cost in question: the comparison that measures it.
COSTS = {
    "supervision": ("loss_only", "dense"),
    "representation": ("drop_middle", "loss_only"),
    "future, all of it": ("no_future", "dense"),
}


def analyse(folder: Path) -> dict[str, Any]:
    """Successes per arm and subset, differences with Holm over the comparisons, and the reading of the control."""
    success: dict[str, dict[str, list[int]]] = {}
    comparisons: list[dict[str, Any]] = []
    for found in card_outcomes(load_study(folder / "study.toml")):
        if found.anchor not in ARMS:  # another training of the same arm: studies/frames-3/seeds.py
            continue
        for name, of in found.of.items():
            success.setdefault(found.lean, {})[name] = of["success"]
            success.setdefault(found.anchor, {})[name] = of["dense"]
        comparisons.append({"lean": found.lean, "anchor": found.anchor, "word": found.word, "of": found.of})
    for p in ("tost_p", "difference_p"):
        for entry, adjusted in zip(comparisons, holm([entry["of"]["ALL"][p] for entry in comparisons])):
            entry[f"{p}_holm"] = adjusted
    return {
        "success": success,
        "comparisons": comparisons,
        "costs": {
            cost: read_cost(comparisons, *pair)
            for cost, pair in COSTS.items()
            if any((entry["lean"], entry["anchor"]) == pair for entry in comparisons)
        },
    }


def read_cost(comparisons: list[dict[str, Any]], lean: str, anchor: str) -> str:
    """Shown, excluded beyond the margin, or open: README.md's rule."""
    entry = next(e for e in comparisons if (e["lean"], e["anchor"]) == (lean, anchor))
    if entry["difference_p_holm"] < ALPHA:
        return "shown" if entry["of"]["ALL"]["delta"] < 0 else "shown with the opposite sign"
    return "excluded beyond the margin" if entry["tost_p_holm"] < ALPHA else "open"


def render(result: dict[str, Any], command: str) -> str:
    """result.md."""
    success = result["success"]
    groups = list(success["dense"])
    lines = [
        "# Frame sparsity in closed loop: the curve and the control",
        "",
        f"Command: `{command}`. One training per arm.",
        "",
        "| arm | middle frame's tokens | middle frame supervised | " + " | ".join(groups) + " |",
        "|---|---|---|" + "---|" * len(groups),
    ]
    for arm, (share, supervised) in ARMS.items():
        if arm in success:
            cells = [f"{good} of {n} ({100 * good / n:.1f} %)" for good, n in success[arm].values()]
            lines.append(f"| `{arm}` | {share} | {supervised} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Differences in points with the 90 % interval of the equivalence test (margin 10); p over all tasks, adjusted "
        "by Holm over the comparisons.",
        "",
        "| comparison | " + " | ".join(groups) + " | p, equivalent | Holm | p, different | Holm | card |",
        "|---|" + "---|" * len(groups) + "---|---|---|---|---|",
    ]
    for entry in result["comparisons"]:
        cells = []
        for group in groups:
            of = entry["of"][group]
            low, high = of["tost_interval"]
            cells.append(f"{100 * of['delta']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]")
        overall = entry["of"]["ALL"]
        lines.append(
            f"| `{entry['lean']}` − `{entry['anchor']}` | "
            + " | ".join(cells)
            + f" | {overall['tost_p']:.3g} | "
            f"{entry['tost_p_holm']:.3g} | {overall['difference_p']:.3g} | {entry['difference_p_holm']:.3g} | "
            f"{entry['word']} |"
        )
    lines += [
        "",
        "| a cost of the missing | measured by | is |",
        "|---|---|---|",
    ]
    for cost, reading in result["costs"].items():
        lean, anchor = COSTS[cost]
        lines.append(f"| {cost} | `{lean}` − `{anchor}` | {reading} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, help="of the study")
    folder = parser.parse_args().folder
    result = analyse(folder)
    command = "python studies/frames/curve.py" + ("" if folder == HERE else f" {folder.as_posix()}")
    (folder / "result.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    (folder / "result.md").write_text(render(result, command))


if __name__ == "__main__":
    main()
