"""Rows of the speed table: what was promised beside what was measured, as plain data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leanwam.bench.clock import Samples
from leanwam.bench.ratio import NOTHING_SAVED, paired_ratio, spread_ms
from leanwam.errors import InputError

FORMAT = "leanwam-bench/1"


def row(
    samples: Samples,
    *,
    name: str,
    arm: str,
    baseline: str,
    expected_ratio: float | None,
    expected_from: str,
    flops_ratio: float,
    dispatch_ratio: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One line: an arm against its baseline, both timed in the same rounds.

    The alarm is the interval's (``ratio.paired_ratio``); an arm for which as many floating-point and dispatched
    operations were counted as for its baseline saved nothing, also where one interval in forty lies above 1 by chance.

    Args:
        name: of the line, unique in its table.
        expected_ratio: what counting promises, or None.
        expected_from: what that figure is, in words; the reason where there is none.
        flops_ratio, dispatch_ratio: counted operations, baseline / arm; None where nobody counted.
        more: further fields, plain data (target, plan, batch, backend, executions, …).
    """
    before, after = samples.of(baseline), samples.of(arm)
    found = paired_ratio(before, after)
    alarm = found.alarm
    if found.interval is not None and alarm is None and max(flops_ratio, dispatch_ratio or 0.0) <= 1.0:
        alarm = NOTHING_SAVED
    places = samples.names.index(baseline), samples.names.index(arm)
    cpu = paired_ratio(*(np.maximum(samples.cpu_s[place], 1e-9) for place in places))
    # on a disturbed machine the wall clock also measures the others; this process's CPU time less so
    judged = (cpu if samples.contention["contended"] else found).interval
    return {
        "name": name,
        "expected_ratio": expected_ratio,
        "measured_ratio": found.ratio,
        "interval": None if found.interval is None else list(found.interval),
        "of_expected": None if expected_ratio is None else found.ratio / expected_ratio,
        "alarm": alarm,
        "why": found.why,
        "n_rounds": found.n_rounds,
        "baseline": baseline,
        "expected_from": expected_from,
        "cpu_ratio": cpu.ratio,
        "cpu_interval": None if cpu.interval is None else list(cpu.interval),
        "costs_at_most": None if judged is None or alarm is None else max(0.0, 1.0 / judged[0] - 1.0),
        "baseline_ms": spread_ms(before),
        "arm_ms": spread_ms(after),
        "contended": samples.contention["contended"],
        "flops_ratio": flops_ratio,
        **({} if dispatch_ratio is None else {"dispatch_ratio": dispatch_ratio}),
        **more,
    }


def raw(samples: Samples) -> dict[str, Any]:
    """The samples as they were taken, plain data: seconds by arm and round, and the order of the arms."""
    return {
        "arms": list(samples.names),
        "wall_s": {name: samples.wall_s[i].tolist() for i, name in enumerate(samples.names)},
        "cpu_s": {name: samples.cpu_s[i].tolist() for i, name in enumerate(samples.names)},
        "order": samples.order.tolist(),
        "n_warmup": samples.n_warmup,
        "n_inner": samples.n_inner,
        "contention": samples.contention,
    }


def card_rows(rows: Sequence[Mapping[str, Any]], primary: str | None = None) -> list[dict[str, Any]]:
    """The rows as ``leanwam judge run --bench`` reads them.

    Args:
        primary: name of the row on which the card's claim of speed rests; by default its first.

    Raises:
        InputError: no row has that name.
    """
    if primary is not None and primary not in {item["name"] for item in rows}:
        names = ", ".join(item["name"] for item in rows)
        raise InputError(f"no row of that name (there is {names})", field="primary", value=primary)
    return [
        {
            "name": item["name"],
            "expected_ratio": item["expected_ratio"],
            "measured_ratio": item["measured_ratio"],
            "interval": item["interval"],
            "note": "; ".join(
                text for text in (item["alarm"], "disturbed run" if item["contended"] else None) if text
            )
            or None,
            "primary": item["name"] == primary,
        }
        for item in rows
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table as text, shaped like the frame-sparsity report's: item, expected, measured, interval."""
    width = max([len(item["name"]) for item in rows] + [4])
    head = f"{'item':<{width}}  {'expected':>8}  {'measured':>8}  {'95 % interval':>15}  {'p50 ms':>15}  "
    errors = {item["name"]: _error_text(item["output_error"]) for item in rows if item.get("output_error")}
    if errors:
        head += f"{'error against dense':<22}  "
    lines = [head + f"{'executions per call':<32}  note"]
    for item in rows:
        interval = "—" if item["interval"] is None else "{:.3f}–{:.3f}".format(*item["interval"])
        expected = "—" if item["expected_ratio"] is None else f"{item['expected_ratio']:.2f}×"
        times = f"{item['baseline_ms']['p50_ms']:.1f} → {item['arm_ms']['p50_ms']:.1f}"
        ran = " ".join(f"{head} {count:g}" for head, count in (item.get("executions") or {}).items())
        notes = [item["alarm"], cost_note(item), item["why"], "disturbed" if item["contended"] else None]
        error = f"{errors[item['name']]:<22}  " if errors else ""
        lines.append(
            f"{item['name']:<{width}}  {expected:>8}  {item['measured_ratio']:>7.3f}×  {interval:>15}  "
            f"{times:>15}  {error}{ran:<32}  {'; '.join(text for text in notes if text)}".rstrip()
        )
    return lines


def cost_note(item: Mapping[str, Any]) -> str | None:
    """What a row that saves nothing costs at most, in words: from the lower end of its interval."""
    bound = item.get("costs_at_most")
    return None if bound is None else f"costs at most {bound:.1%}"


def _error_text(error: Mapping[str, Any]) -> str:
    if error["relative_l2_mean"] is None:
        return f"— ({error['why']})"
    return f"L2 {error['relative_l2_mean']:.3g} cos {error['cosine_mean']:.4f}"


def bounds_lines(limits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What bounds each baseline, a line each."""
    lines = []
    for name, item in limits.items():
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in item["shares"].items())
        lines.append(
            f"{name}: bound by {item['bound']} ({shares} of {1e3 * item['measured_s']:.2f} ms; "
            f"{item['n_dispatched']} operations, {item['flops'] / 1e9:.2f} GFLOP)"
        )
    return lines


def disturbance_lines(samples: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line per disturbed set of samples, with its reasons."""
    return [
        f"disturbed run ({name}): {'; '.join(item['contention']['reasons'])}"
        for name, item in samples.items()
        if item["contention"]["contended"]
    ]
