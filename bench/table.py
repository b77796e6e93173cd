"""Render the committed results as one Markdown page: python bench/table.py bench/results"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def page(folder: Path) -> str:
    """The page of all results in a folder, in the order of their names."""
    parts = ["# Measured beside promised", ""]
    parts.append(
        "Made by `make bench`. A ratio is the baseline's time over the plan's, the median over interleaved "
        "rounds, with a 95 % bootstrap interval. *Expected* is what counting promises: the end-to-end ceiling "
        "from measured shares for plans over steps, floating-point operations for single forwards. "
        "*Asked only*: the streams that nobody asked for are left out, to the bit without effect on the actions; "
        "*caches*: every lossless saving. A plan's gain over a plain sampler is to be read against both."
    )
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text())
        if "samples" in result:  # replay.json and hosts.json have pages of their own
            parts += ["", f"## {file.stem}", "", *_section(result)]
    return "\n".join(parts) + "\n"


def _section(result: dict[str, Any]) -> list[str]:
    about = result.get("environment", {})
    cpu, versions = about.get("cpu", {}), about.get("versions", {})
    accelerator = (about.get("accelerator") or {}).get("name")
    threads = (about.get("threads") or {}).get("intra_op")
    lines = [
        f"{accelerator or cpu.get('model')}, {threads} threads, torch {versions.get('torch')}, "
        f"{about.get('measured_at_utc')}"
    ]
    reasons = {reason for item in result["samples"].values() for reason in item["contention"]["reasons"]}
    if reasons:
        lines += ["", "**Disturbed run**: " + "; ".join(sorted(reasons)) + "."]
    lines += [
        "",
        "| item | expected | measured | 95 % interval | of expected | p50 ms | executions per call | note |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(item) for item in result["rows"]]
    for name, item in result["bounds"].items():
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in item["shares"].items())
        lines += ["", f"{name}: bound by {item['bound']} ({shares} of {1e3 * item['measured_s']:.1f} ms)."]
    return lines


def _row(item: dict[str, Any]) -> str:
    interval = "—" if item["interval"] is None else "{:.3f}–{:.3f}".format(*item["interval"])
    expected = "—" if item["expected_ratio"] is None else f"{item['expected_ratio']:.2f}×"
    share = "—" if item["of_expected"] is None else f"{item['of_expected']:.2f}"
    times = f"{item['baseline_ms']['p50_ms']:.1f} → {item['arm_ms']['p50_ms']:.1f}"
    ran = ", ".join(f"{head} {count:g}" for head, count in (item.get("executions") or {}).items())
    bound = item.get("costs_at_most")
    costs = None if bound is None else f"costs at most {bound:.1%}"
    disturbed = "disturbed" if item["contended"] else None
    note = "; ".join(text for text in (item["alarm"], costs, item["why"], disturbed) if text)
    cells = [item["name"], expected, f"{item['measured_ratio']:.3f}×", interval, share, times, ran, note]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "bench/results")
    (target / "TABLE.md").write_text(page(target))
    print(target / "TABLE.md")
