"""The calls of a trace made again on the live model under plans: the report's executed level."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from leanwam.cli.output import console, print_json, progress_console
from leanwam.errors import InputError

if TYPE_CHECKING:
    from leanwam.models.reference import ReferenceWAM
    from leanwam.plans import PlanSpec
    from leanwam.traces import Trace


def command(
    trace: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    plans: str | None = None,
    out: Path | None = None,
    checkpoint: str = "heads",
    noise_seeds: int = 3,
    batch: int = 14,
    threads: int = 1,
    json: bool = False,
) -> None:
    """Make a trace's calls again (same observations, same noise) under plans, and write the report.

    Example: leanwam execute calls.trace.zarr --plans sparse_10,tail_only_4 --out report

    Args:
        trace: a trace that `leanwam record` made.
        plans: plans separated by commas; by default the ten of the sparse-head report.
        out: the report's folder; by default NAME-report beside the trace.
        checkpoint: the model that was recorded.
        noise_seeds: dense runs with other noise, the scale to judge errors by; 0 or 1 leaves it out.
        batch: calls in one batch.
        threads: CPU threads of the model.
        json: print the report on stdout as one JSON object.
    """
    import torch

    from leanwam.models.reference import load_reference
    from leanwam.plans import SEED_PLANS, parse_plans
    from leanwam.report.simulation import write_report
    from leanwam.traces import open_trace

    if batch < 1 or threads < 1 or noise_seeds < 0:
        raise InputError(
            "batch and threads are at least 1, noise seeds at least 0", value=(batch, threads, noise_seeds)
        )
    specs = parse_plans(plans if plans is not None else ",".join(SEED_PLANS))
    torch.set_num_threads(threads)
    store = open_trace(trace)
    result = execute_report(load_reference(checkpoint), store, specs, noise_seeds=noise_seeds, batch=batch)
    folder = out or trace.parent / f"{trace.name.removesuffix('.zarr').removesuffix('.trace')}-report"
    paths = write_report(result, folder)
    if json:
        print_json(result)
        return
    text = console()
    for line in _lines(result):
        text.print(line, markup=False)
    text.print(f"written: {', '.join(str(path) for path in paths)}", markup=False)


def execute_report(
    model: ReferenceWAM, trace: Trace, plans: Sequence[PlanSpec], *, noise_seeds: int, batch: int
) -> dict[str, Any]:
    """The simulation report of a trace with its executed level, and how often each head really ran.

    The dense run is made again in the same batches and is the reference of the executed level, so that a
    difference is the plan's and not the batch's.
    """
    import numpy as np
    from rich.progress import Progress

    from leanwam.cli.simulate import torch_solvers
    from leanwam.plans import parse_plan, refuse_cache
    from leanwam.replay import simulate
    from leanwam.rollouts.executed import execute_plan, repeat_calls
    from leanwam.rollouts.policy import NO_CACHES

    for plan in plans:
        refuse_cache(plan, NO_CACHES)
    dense = parse_plan("dense")
    runs = [dense, *(plan for plan in plans if plan.name != "dense")]
    n_streams = noise_seeds - 1 if noise_seeds > 1 else 0
    heads = list(trace.heads)
    with Progress(console=progress_console(), transient=True) as bar:
        walk = bar.add_task("finding the calls again", total=trace.n_calls)
        repeated = repeat_calls(model, trace, progress=lambda n: bar.advance(walk, n))
        task = bar.add_task("executing plans", total=trace.n_calls * (len(runs) + n_streams))

        def tick(n: int) -> None:
            bar.advance(task, n)

        results = [
            execute_plan(model, repeated.calls, plan, heads, batch=batch, progress=tick) for plan in runs
        ]
        spread = [results[0].finals] + [
            execute_plan(
                model, repeated.calls, dense, heads, batch=batch, noise_stream=k + 1, progress=tick
            ).finals
            for k in range(n_streams)
        ]
    report = simulate(
        trace,
        list(plans),
        external=torch_solvers(trace),
        executed={result.name: result.finals for result in results},
        noise_seeds={h: np.stack([finals[h] for finals in spread], axis=1) for h in heads}
        if n_streams
        else None,
    )
    report["execution"] = {
        "batch": batch,
        "recorded_calls_made_again": {
            "n_calls": len(repeated.calls),
            "max_difference": repeated.max_difference,
            "bit_identical": all(value == 0.0 for value in repeated.max_difference.values()),
        },
        "executions_per_call": {result.name: result.executions_per_call for result in results},
    }
    return report


def _lines(report: dict[str, Any]) -> list[str]:
    again = report["execution"]["recorded_calls_made_again"]
    same = (
        "the same to the bit" if again["bit_identical"] else f"largest difference {again['max_difference']}"
    )
    heads = list(report["heads"])
    lines = [
        f"{again['n_calls']} dense calls made again: {same}",
        f"{'plan':<20}"
        + "".join(f"{head + ' ' + level:>17}" for head in heads for level in ("hold", "solver", "executed")),
    ]
    for name, entry in report["experiment_1_1"].items():
        cells = [entry["heads"][head][level] for head in heads for level in ("hold", "solver", "executed")]
        shown = [
            "—" if cell is None or cell["cosine_mean"] is None else f"{cell['cosine_mean']:.4f}"
            for cell in cells
        ]
        lines.append(f"{name:<20}" + "".join(f"{text:>17}" for text in shown))
    lines.append("mean cosine to the dense final; — : see the report for why")
    return lines
