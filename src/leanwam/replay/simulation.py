"""``simulate``: a trace and plans in, the content of report.json out (plain data, no NaN)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leanwam.errors import InputError
from leanwam.plans import BACKBONE_STREAMS, SEED_PLANS, HeadPlan, PlanSpec, parse_plan, refuse_cache
from leanwam.replay.beyond import Spread, cost_section, curve_section, level_summary, noise_spread
from leanwam.replay.collect import ExternalSolvers, HeadPass, pass_over_head
from leanwam.replay.frontier import entry, search_clipped
from leanwam.replay.gaps import GapProblem
from leanwam.replay.hold import budgets, experiment_1_2, experiment_1_3, hold_level
from leanwam.replay.metrics import FinalErrors, Floats, final_errors
from leanwam.replay.search import best_plans
from leanwam.replay.solver import DdimSolver, LinearSolver
from leanwam.replay.uncertainty import EpisodeBootstrap, uncertainty_section

if TYPE_CHECKING:
    from leanwam.traces import Trace

#: Version of report.json.
SIMULATION_VERSION = 1
NOT_EXECUTED = "not executed: `leanwam execute` re-runs the same calls on the live model"


def simulate(
    trace: Trace,
    plans: Sequence[PlanSpec] | None = None,
    *,
    quantity: str | None = None,
    threshold: float = 0.95,
    external: ExternalSolvers | None = None,
    executed: Mapping[str, Mapping[str, ArrayLike]] | None = None,
    noise_seeds: Mapping[str, ArrayLike] | None = None,
    frontier: bool | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> dict[str, Any]:
    """Predict what plans do to the heads' finals, by the report's metric and through the solver.

    Args:
        trace: an opened trace.
        plans: None takes the ten schedules of the sparse-head report (those that exist at this n).
        quantity: the logged quantity of the ``hold`` level; None takes per head the first there is of
            sample, pred_original_sample, model_output.
        threshold: of experiment 1.2, in (0, 1].
        external: ``head -> solver`` made with torch, asked only where NumPy does not suffice.
        executed: plan -> head -> finals [call, *shape] of the same calls on the live model; a plan named
            ``dense`` there is the reference, else the trace's own final sample.
        noise_seeds: head -> dense finals [call, seed, *shape] from independent noise seeds.
        frontier: whether to search the best plan per budget; None does so where the solver is linear (about
            half a second per head), True also where DDIM clips (some seconds per head).
        progress: called with the head's name and the number of calls done.

    Returns:
        The content of report.json (cli.md): plain data, undefined is None with a ``why``.

    Raises:
        InputError: a plan, threshold or given array that does not fit the trace.
    """
    if not 0 < threshold <= 1:
        raise InputError("must be above 0 and at most 1", field="threshold", value=threshold)
    if trace.n_calls == 0:
        raise InputError("the trace holds no complete call", file=trace.path)
    notes: list[str] = [f"head {name} is left out: {why}" for name, why in trace.skipped.items()]
    specs = _default_plans(trace.n_steps, notes) if plans is None else list(plans)
    rows = _rows(specs, trace)
    head_plans = {
        head: {name: heads[head] for name, (heads, why) in rows.items() if why is None}
        for head in trace.heads
    }
    passes = {
        head: pass_over_head(
            trace,
            head,
            head_plans[head],
            quantity=quantity,
            external=external,
            keep_dense=bool(executed),
            progress=None if progress is None else _bound(progress, head),
        )
        for head in trace.heads
    }
    _note_quantities(passes, quantity, notes)
    keep, dropped = _dropped(trace, passes, executed)
    if not keep.any():
        raise InputError("no call is left: every one holds values that are not finite", file=trace.path)
    spreads = {
        h: noise_spread((noise_seeds or {}).get(h), keep, trace.heads[h].shape, h) for h in trace.heads
    }
    live_errors = _executed_errors(trace, passes, executed or {}, keep)
    live = {
        name: {
            head: level_summary(errors, passes[head].units, spreads[head]) for head, errors in heads.items()
        }
        for name, heads in live_errors.items()
    }
    for name in live:
        if name not in rows:
            notes.append(f"executed results of {name} are given, but the plan is not among those simulated")
    first = {head: p.steps[keep] for head, p in passes.items() if p.quantity is not None}
    pairs = budgets(list(rows), trace.n_steps)
    return {
        "leanwam_simulation": SIMULATION_VERSION,
        "trace": trace.path.name,
        "model": trace.meta.model,
        "n_steps": trace.n_steps,
        "n_calls": trace.n_calls,
        "n_calls_used": int(keep.sum()),
        "dropped_calls": dropped,
        "threshold": threshold,
        "heads": {head: _head_entry(trace, passes[head], keep, spreads[head]) for head in trace.heads},
        "notes": notes,
        "experiment_1_1": {
            name: _plan_entry(
                name, heads, why, specs, passes, keep, spreads, live.get(name, {}), trace.n_steps
            )
            for name, (heads, why) in rows.items()
        },
        "experiment_1_2": {"threshold": threshold}
        | {head: _experiment_1_2(passes[head], head_plans[head], keep, threshold) for head in trace.heads},
        "experiment_1_3": {
            title: {head: experiment_1_3(steps, uniform, tail) for head, steps in first.items()}
            | {head: _no_1_3(p) for head, p in passes.items() if p.quantity is None}
            for title, uniform, tail in pairs
        },
        "uncertainty": _uncertainty(trace, list(rows), passes, live_errors, keep, pairs, threshold),
        "frontier": {head: _frontier(trace, passes[head], frontier) for head in trace.heads},
        "curves": {head: curve_section(trace, passes[head], keep) for head in trace.heads},
        "cost": cost_section(trace, {name: heads for name, (heads, _) in rows.items()}),
    }


Rows = dict[str, tuple[dict[str, HeadPlan], str | None]]


def _default_plans(n_steps: int, notes: list[str]) -> list[PlanSpec]:
    possible = [name for name in SEED_PLANS if name == "dense" or int(name.rsplit("_", 1)[1]) <= n_steps]
    left = [name for name in SEED_PLANS if name not in possible]
    if left:
        notes.append(f"not simulated, for want of steps (n = {n_steps}): {', '.join(left)}")
    return [parse_plan(name) for name in possible]


def _rows(specs: Sequence[PlanSpec], trace: Trace) -> Rows:
    """Plan name -> (head plans, why it cannot be replayed), sorted as text as in the report."""
    rows: Rows = {}
    for spec in specs:
        refuse_cache(spec, "replay cannot know what a live cache decides")
        why = None
        if spec.sampler_steps is not None:
            why = "another run of the sampler, with its own timesteps: it can be executed, not replayed"
        elif spec.frames is not None:
            why = "frames left out change what the model reads: it can be executed, not replayed"
        rows[spec.name] = (spec.resolve(trace.n_steps, trace.heads).heads, why)
    return dict(sorted(rows.items()))


def _bound(progress: Callable[[str, int], None], head: str) -> Callable[[int], None]:
    return lambda done: progress(head, done)


def _note_quantities(passes: Mapping[str, HeadPass], wanted: str | None, notes: list[str]) -> None:
    for head, result in passes.items():
        if result.quantity is None:
            notes.append(f"{head}: no hold level: {result.why_hold}")
        elif wanted is None and result.quantity != "sample":
            notes.append(f"{head}: the trace does not hold sample; the hold level uses {result.quantity}")


def _dropped(
    trace: Trace, passes: Mapping[str, HeadPass], executed: Mapping[str, Mapping[str, ArrayLike]] | None
) -> tuple[NDArray[np.bool_], list[dict[str, Any]]]:
    """Calls that hold values which are not finite are left out for every head, counted and named."""
    keep = np.ones(trace.n_calls, dtype=bool)
    dropped: list[dict[str, Any]] = []
    for head, result in passes.items():
        for call, quantity in result.bad.items():
            keep[call] = False
            entry: dict[str, Any] = {"call": call, "head": head, "quantity": quantity}
            for name in ("task", "episode", "index"):
                values = trace.calls.get(name)
                entry[name] = None if values is None else np.asarray(values)[call].item()
            dropped.append(entry | {"why": f"{head}/{quantity} is not finite"})
    for plan, heads in (executed or {}).items():
        for head, finals in heads.items():
            array = np.asarray(finals)
            if len(array) != trace.n_calls:
                continue
            for row in np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1)):
                keep[row] = False
                dropped.append(
                    {"call": int(row), "head": head, "quantity": f"executed {plan}"}
                    | {"why": f"the executed final of {head} under {plan} is not finite"}
                )
    return keep, sorted(dropped, key=lambda entry: (entry["call"], entry["head"]))


def _head_entry(trace: Trace, result: HeadPass, keep: NDArray[np.bool_], spread: Spread) -> dict[str, Any]:
    meta = trace.heads[result.name]
    gap = None
    if result.dense_gap is not None:
        gaps = result.dense_gap[keep]
        gap = float(np.nanmax(gaps)) if np.isfinite(gaps).any() else None
    entry: dict[str, Any] = {
        "quantity": result.quantity,
        "shape": list(meta.shape),
        "solver": None if result.solver is None else result.solver.label,
        "solver_linear": None if result.solver is None else result.solver.linear,
        "dense_replay_gap": gap,
        "share_of_step": meta.share_of_step,
        "noise_spread": spread.rms,
        "unit": "environment" if meta.unnormalize is not None else "normalised",
        "gripper_dims": list(meta.gripper_dims or ()),
        "entry_names": list(meta.entry_names),
    }
    why = {"hold": result.why_hold, "solver": result.why_solver, "noise_spread": spread.why}
    if meta.share_of_step is None:
        why["share_of_step"] = "the trace does not hold the head's measured share of a step"
    if meta.unnormalize is None:
        why["unit"] = "the trace does not say how the head's values read in the environment's units"
    return entry | {"why": {key: text for key, text in why.items() if text is not None}}


def _plan_entry(
    name: str,
    heads: Mapping[str, HeadPlan],
    why_not: str | None,
    specs: Sequence[PlanSpec],
    passes: Mapping[str, HeadPass],
    keep: NDArray[np.bool_],
    spreads: Mapping[str, Spread],
    live: Mapping[str, dict[str, Any]],
    n_steps: int,
) -> dict[str, Any]:
    spec = next(spec for spec in specs if spec.name == name)
    concerned = [h for h in heads if h not in BACKBONE_STREAMS or h in spec.heads] or list(heads)
    counts = {head: len(heads[head].computed) for head in concerned}
    executed = {head: len(heads[head].executed) for head in concerned}
    entry: dict[str, Any] = {
        "exec_count": _one_or_all(counts),
        "saving_ratio": _one_or_all({head: 1.0 - count / n_steps for head, count in counts.items()}),
        "exec_count_real": _one_or_all(executed),
        "computed": {head: list(plan.computed) for head, plan in heads.items()},
        "forced_first_step": any(heads[head].forced_first_step for head in concerned),
        "heads": {},
    }
    for head, result in passes.items():
        levels: dict[str, Any] = {"hold": None, "solver": None, "executed": live.get(head)}
        why: dict[str, str] = {}
        if name in result.hold:
            levels["hold"] = hold_level(result.hold[name][keep], heads[head])
        else:
            why["hold"] = why_not or str(result.why_hold)
        if name in result.finals:
            levels["solver"] = level_summary(result.finals[name].take(keep), result.units, spreads[head])
        else:
            why["solver"] = why_not or str(result.why_solver)
        if levels["executed"] is None:
            why["executed"] = NOT_EXECUTED
        entry["heads"][head] = levels | ({"why": why} if why else {})
    return entry


def _frontier(trace: Trace, result: HeadPass, wanted: bool | None) -> dict[str, Any]:
    """The best plan per budget at the solver level, or why it was not searched."""
    if wanted is False:
        return {"entries": None, "why": "not searched, as asked"}
    if result.solver is None:
        return {"entries": None, "why": result.why_solver}
    if isinstance(result.solver, LinearSolver) and result.gap_gram is not None:
        found = best_plans(GapProblem(result.solver.weights[1:], result.gap_gram))
        entries = [entry(k, best) for k, best in enumerate(found, start=1)]
        return {"entries": entries, "n_calls": trace.n_calls - len(result.bad)}
    if wanted and isinstance(result.solver, DdimSolver):
        searched = search_clipped(trace, result.name, result.solver)
        notes = " ".join(f"{note}." for note in searched["notes"])
        return {"entries": searched["frontier"], "n_calls": searched["n_calls"], "note": notes}
    return {"entries": None, "why": "the solver is not linear here; `leanwam search` takes some seconds more"}


def _one_or_all(values: Mapping[str, Any]) -> Any:
    """The number that every head shares, or the numbers per head."""
    return next(iter(values.values())) if len(set(values.values())) == 1 else dict(values)


def _experiment_1_2(
    result: HeadPass, plans: Mapping[str, HeadPlan], keep: NDArray[np.bool_], threshold: float
) -> dict[str, Any]:
    if result.quantity is None:
        return {"earliest_step_mean": None, "unique_min_head_steps": None, "why": result.why_hold}
    counts = {name: len(plan.computed) for name, plan in plans.items()}
    cosines = {name: values[keep] for name, values in result.hold.items()}
    return experiment_1_2(result.steps[keep], cosines, counts, threshold)


def _no_1_3(result: HeadPass) -> dict[str, Any]:
    return {"tail_better_share": None, "mean_tail_minus_uniform": None, "why": result.why_hold}


def _executed_errors(
    trace: Trace,
    passes: Mapping[str, HeadPass],
    executed: Mapping[str, Mapping[str, ArrayLike]],
    keep: NDArray[np.bool_],
) -> dict[str, dict[str, FinalErrors]]:
    """Plan -> head -> the executed errors, against the executed dense finals or the trace's own."""
    levels: dict[str, dict[str, FinalErrors]] = {}
    for plan, heads in executed.items():
        for head, finals in heads.items():
            if head not in passes:
                raise InputError(f"the trace has no such head (it has {', '.join(passes)})", value=head)
            shape = (trace.n_calls, *trace.heads[head].shape)
            dense = executed.get("dense", {}).get(head, passes[head].dense_logged)
            if dense is None:
                raise InputError(
                    "executed finals need a dense reference: results of the plan `dense`, or a trace "
                    "that holds sample",
                    field=f"executed.{plan}.{head}",
                )
            for what, array in ((plan, np.asarray(finals)), ("dense", np.asarray(dense))):
                if array.shape != shape:
                    raise InputError(
                        f"executed finals must be shaped {list(shape)}, one per call of the trace",
                        field=f"executed.{what}.{head}",
                        value=list(array.shape),
                    )
            errors = final_errors(np.asarray(finals)[keep], np.asarray(dense)[keep], passes[head].units)
            levels.setdefault(plan, {})[head] = errors
    return levels


def _uncertainty(
    trace: Trace,
    plans: Sequence[str],
    passes: Mapping[str, HeadPass],
    live: Mapping[str, Mapping[str, FinalErrors]],
    keep: NDArray[np.bool_],
    pairs: Sequence[tuple[str, str, str]],
    threshold: float,
) -> dict[str, Any]:
    """Intervals of every level; without episode numbers in the trace each call counts as its own episode."""
    recorded = trace.calls.get("episode")
    episodes = np.arange(trace.n_calls) if recorded is None else np.asarray(recorded)
    cosines: dict[str, dict[str, dict[str, Floats]]] = {}
    errors: dict[str, dict[str, dict[str, Floats]]] = {}
    for plan in plans:
        for head, result in passes.items():
            level_cosines = cosines.setdefault(plan, {}).setdefault(head, {})
            level_errors = errors.setdefault(plan, {}).setdefault(head, {})
            if plan in result.hold:
                level_cosines["hold"] = result.hold[plan][keep]
            if plan in result.finals:
                level_cosines["solver"] = result.finals[plan].cosine[keep]
                level_errors["solver"] = result.finals[plan].mse[keep]
            if head in live.get(plan, {}):
                level_cosines["executed"] = live[plan][head].cosine
                level_errors["executed"] = live[plan][head].mse
    bootstrap = EpisodeBootstrap.of(episodes[keep].tolist())
    section = uncertainty_section(bootstrap, cosines, errors, pairs, threshold)
    if recorded is None:
        section["why"] = "the trace does not name episodes; each call counts as one"
    return section
