"""Does the report's metric rank plans as the closed loop does? Scores of a trace beside the study's outcomes.

    python studies/heads/rank.py            # record, replay and execute 56 calls (4 minutes), then the tables
    python studies/heads/rank.py --analyse  # the tables again from the committed data

Reads study.toml, the cards and episodes.jsonl; writes levels.json (replayed and executed summaries per plan),
result.json and result.md.
"""

from __future__ import annotations

import argparse
import json
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy import stats

from leanwam.judge.significance import holm
from leanwam.studies import card_outcomes, load_study

HERE = Path(__file__).parent
N_CALLS = 56
HEADS = ("action", "proprio")
SCORES = {
    "hold_cosine": "report's cosine (larger is called better)",
    "solver_mse": "solver replay, mean squared error",
    "executed_mse": "executed, mean squared error",
}


def measure() -> None:
    """levels.json: every gated plan of the study replayed and executed on the calls of one trace."""
    import torch

    from leanwam.cli.simulate import torch_solvers
    from leanwam.models.reference import load_reference
    from leanwam.replay import simulate
    from leanwam.rollouts import select_tasks
    from leanwam.rollouts.executed import execute_plan, repeat_calls
    from leanwam.rollouts.recorded import record_calls
    from leanwam.traces import open_trace

    torch.set_num_threads(1)
    model = load_reference("heads")
    path = HERE / "calls.trace.zarr"
    record_calls(
        model, select_tasks(list(model.config.tasks)), N_CALLS, path, list(HEADS), progress=lambda n: None
    )
    trace = open_trace(path)
    plans = [
        msgspec.structs.replace(arm.plan, name=arm.name)
        for arm in load_study(HERE / "study.toml").arms.values()
        if arm.plan.sampler_steps is None
    ]
    calls = repeat_calls(model, trace).calls
    runs = {plan.name: execute_plan(model, calls, plan, HEADS).finals for plan in plans}
    report = simulate(trace, plans, external=torch_solvers(trace), executed=runs)
    levels = {name: entry["heads"]["action"] for name, entry in report["experiment_1_1"].items()}
    found = {"model": report["model"], "n_calls": report["n_calls_used"], "head": "action", "plans": levels}
    (HERE / "levels.json").write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def analyse() -> dict[str, Any]:
    """Outcomes with Holm over the comparisons' equivalence tests, scores, and their rank correlations."""
    levels = json.loads((HERE / "levels.json").read_text())
    study = load_study(HERE / "study.toml")
    arms = {found.lean: {**found.of["ALL"], "word": found.word} for found in card_outcomes(study)}
    for p in ("tost_p", "difference_p"):
        for arm, adjusted in zip(arms.values(), holm([arm[p] for arm in arms.values()])):
            arm[f"{p}_holm"] = adjusted
    gated = [name for name in arms if name in levels["plans"]]
    for name in gated:
        of = levels["plans"][name]
        arms[name] |= {
            "hold_cosine": of["hold"]["cosine_mean"],
            "solver_mse": of["solver"]["mse"],
            "executed_mse": of["executed"]["mse"],
        }
    rates = np.array([arms[name]["success"][0] / arms[name]["success"][1] for name in gated])
    ranks = {
        score: exact_spearman(np.array([arms[name][score] for name in gated]), rates) for score in SCORES
    }
    return {
        "model": levels["model"],
        "n_calls": levels["n_calls"],
        "arms": arms,
        "gated": gated,
        "spearman_with_success": ranks,
    }


def exact_spearman(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Spearman's rank correlation and its two-sided p-value over all orders of y."""
    a, b = stats.rankdata(x), stats.rankdata(y)
    value = float(np.corrcoef(a, b)[0, 1])
    all_values = np.array([np.corrcoef(a, np.array(order))[0, 1] for order in permutations(b)])
    return {"rho": value, "p_exact": float((np.abs(all_values) >= abs(value) - 1e-12).mean())}


def render(result: dict[str, Any]) -> str:
    """result.md."""
    arms = result["arms"]
    good, n = next(iter(arms.values()))["dense"]
    lines = [
        "# Head plans in closed loop: outcomes beside offline scores",
        "",
        f"{result['model']}. Dense: {good} of {n}. Scores: action head, {result['n_calls']} calls. Differences with "
        "the 90 % interval of the equivalence test (margin 5 points), p adjusted by Holm over the comparisons.",
        "",
        "Command: `python studies/heads/rank.py` (tables alone: `--analyse`).",
        "",
        "| arm | success | − dense, points | p, equivalent | Holm | p, different | Holm | card | report's cosine "
        "| solver MSE | executed MSE |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in sorted(arms, key=lambda key: -arms[key]["success"][0]):
        arm = arms[name]
        low, high = arm["tost_interval"]
        scores = [f"{arm[score]:.4g}" if score in arm else "–" for score in SCORES]
        lines.append(
            f"| `{name}` | {arm['success'][0]} of {arm['success'][1]} | {100 * arm['delta']:+.1f} "
            f"[{100 * low:+.1f}, {100 * high:+.1f}] | {arm['tost_p']:.3g} | {arm['tost_p_holm']:.3g} | "
            f"{arm['difference_p']:.3g} | {arm['difference_p_holm']:.3g} | {arm['word']} | "
            + " | ".join(scores)
            + " |"
        )
    lines += [
        "",
        f"Rank correlation with success over the {len(result['gated'])} gated plans (p over all orders):",
        "",
        "| score | Spearman | exact p |",
        "|---|---|---|",
    ]
    for score, found in result["spearman_with_success"].items():
        lines.append(f"| {SCORES[score]} | {found['rho']:+.2f} | {found['p_exact']:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure unless told otherwise, then write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--analyse", action="store_true", help="only the tables, from the data that are there"
    )
    if not parser.parse_args().analyse:
        measure()
    result = analyse()
    (HERE / "result.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    (HERE / "result.md").write_text(render(result))


if __name__ == "__main__":
    main()
