"""What one training seed per arm hides: the two trainings of every arm on the same starts.

    python studies/frames-3/seeds.py

Reads study.toml and episodes.jsonl; writes seeds.json and seeds.md. Arms of the second training seed bear the plain
name, those of the first end in -seed0. Per start i and arm a, d[a, i] is the success of seed 1 minus that of seed 0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from leanwam.judge.paired import PairedTable, mcnemar_exact_p, tango, tango_tost_p
from leanwam.judge.significance import holm
from leanwam.rollouts import read_rows
from leanwam.studies import load_study

HERE = Path(__file__).parent
FIRST = "-seed0"
MARGIN = 0.10
ARMS = ("dense", "mae25", "drop_middle", "loss_only", "no_future")
PAIRS = (
    ("drop_middle", "dense"),
    ("mae25", "dense"),
    ("loss_only", "dense"),
    ("drop_middle", "loss_only"),
    ("no_future", "dense"),
)

Outcomes = dict[str, NDArray[np.int64]]


def load(folder: Path) -> tuple[Outcomes, dict[str, NDArray[np.bool_]]]:
    """Successes of each arm, 0 or 1, [start], in one order of starts for all; which starts each subset holds."""
    found: dict[str, dict[tuple[str, int], int]] = {}
    for row in read_rows(folder / "episodes.jsonl"):
        found.setdefault(row.arm, {})[row.task, row.episode] = int(bool(row.success))
    starts = sorted(found["dense"])
    if any(sorted(of) != starts for of in found.values()):
        raise SystemExit(f"{folder}: arms differ in their starts")
    outcomes = {arm: np.array([of[start] for start in starts]) for arm, of in found.items()}
    subsets = load_study(folder / "study.toml").comparisons[0].prereg.subsets
    return outcomes, {name: np.array([task in of for task, _ in starts]) for name, of in subsets.items()}


def training_spread(outcomes: Outcomes) -> dict[str, Any]:
    """The standard deviation that the training seed gives an arm, beside what all arms share.

    Method of moments: with k arms and e[a, i] = d[a, i] − the mean of d over the arms, the sum over arms of mean(e)²
    has the expectation 2 σ² (k − 1) + the sum of var(e) / n. The upper bound takes that sum as a multiple of χ²
    with k − 1 degrees of freedom.
    """
    d = np.stack([outcomes[arm] - outcomes[arm + FIRST] for arm in ARMS]).astype(float)
    e = d - d.mean(axis=0)
    k, n = d.shape
    between = float((e.mean(axis=1) ** 2).sum())
    sampling = float((e.var(axis=1, ddof=1) / n).sum())
    upper = between / chi2.ppf(0.05, k - 1) * (k - 1)
    sigma = float(np.sqrt(max(0.0, between - sampling) / (2 * (k - 1))))
    return {
        "shared_shift": float(d.mean()),
        "observed_sd": float(np.sqrt(between / (k - 1))),
        "sampling_sd": float(np.sqrt(sampling / (k - 1))),
        "sigma": sigma,
        "sigma_upper_95": float(np.sqrt(max(0.0, upper - sampling) / (2 * (k - 1)))),
        "equal_arms_pass": {
            f"{margin:.2f}": equal_arms_pass(margin, sigma) for margin in (MARGIN, MARGIN / 2)
        },
    }


def equal_arms_pass(margin: float, sigma: float) -> float:
    """The chance that two equal arms, trained once each and run without end, pass a test that knows σ, at alpha .05."""
    spread = 2**0.5 * sigma
    room = margin - norm.ppf(0.95) * spread
    if room <= 0.0:
        return 0.0
    return float(2 * norm.cdf(room / spread) - 1) if spread > 0.0 else 1.0


def analyse(outcomes: Outcomes, subsets: dict[str, NDArray[np.bool_]]) -> dict[str, Any]:
    """By arm and by comparison, each seed, both, and what differs between the seeds."""
    groups = {"ALL": np.ones(outcomes["dense"].size, dtype=bool), **subsets}
    arms = {}
    for arm in ARMS:
        one, zero = outcomes[arm], outcomes[arm + FIRST]
        table = PairedTable.from_outcomes(one, zero)
        arms[arm] = {
            "seed0": int(zero.sum()),
            "seed1": int(one.sum()),
            "n": int(one.size),
            "groups": {
                name: [int(zero[of].sum()), int(one[of].sum()), int(of.sum())] for name, of in subsets.items()
            },
            "delta": table.delta,
            "interval": list(tango(table, 0.95)),
            "p": mcnemar_exact_p(table.lean_only, table.anchor_only),
        }
    spread = training_spread(outcomes)
    comparisons = []
    for lean, anchor in PAIRS:
        by_seed = [outcomes[lean + end] - outcomes[anchor + end] for end in (FIRST, "")]
        pooled = PairedTable.from_outcomes(
            np.concatenate([outcomes[lean + FIRST], outcomes[lean]]),
            np.concatenate([outcomes[anchor + FIRST], outcomes[anchor]]),
        )
        change = (by_seed[1] - by_seed[0]).astype(float)
        error = float(change.std(ddof=1) / np.sqrt(change.size))
        # both seeds ran the same starts: the mean of the two differences at one start is one observation
        both = (by_seed[0] + by_seed[1]) / 2.0
        sampling = float(both.std(ddof=1) / np.sqrt(both.size))
        whole = float(np.hypot(sampling, spread["sigma"]))  # 2 σ² over two seeds
        half = float(norm.ppf(0.95))
        comparisons.append(
            {
                "lean": lean,
                "anchor": anchor,
                "delta": [float(found.mean()) for found in by_seed],
                "by_seed": {
                    name: [
                        of_seed(outcomes[lean + end][of], outcomes[anchor + end][of]) for end in (FIRST, "")
                    ]
                    for name, of in groups.items()
                },
                "pooled": {
                    "delta": pooled.delta,
                    "interval_90": list(tango(pooled, 0.90)),
                    "tost_p": tango_tost_p(pooled, MARGIN),
                    "difference_p": mcnemar_exact_p(pooled.lean_only, pooled.anchor_only),
                },
                "change": float(change.mean()),
                "change_interval": [
                    float(change.mean() + sign * norm.ppf(0.975) * error) for sign in (-1, 1)
                ],
                "change_p": float(2 * norm.sf(abs(change.mean()) / error)) if error > 0 else 1.0,
                "with_training": [pooled.delta - half * whole, pooled.delta + half * whole],
            }
        )
    for p in ("tost_p", "difference_p"):
        for entry, adjusted in zip(comparisons, holm([entry["pooled"][p] for entry in comparisons])):
            entry["pooled"][f"{p}_holm"] = adjusted
    for entry, adjusted in zip(comparisons, holm([entry["change_p"] for entry in comparisons])):
        entry["change_p_holm"] = adjusted
    return {"arms": arms, "training_spread": spread, "comparisons": comparisons}


def of_seed(lean: NDArray[np.int64], anchor: NDArray[np.int64]) -> dict[str, Any]:
    """One comparison in one training, as its card has it."""
    table = PairedTable.from_outcomes(lean, anchor)
    return {
        "delta": table.delta,
        "interval_90": list(tango(table, 0.90)),
        "interval_95": list(tango(table, 0.95)),
        "tost_p": tango_tost_p(table, MARGIN),
    }


def render(result: dict[str, Any]) -> str:
    """seeds.md."""
    spread = {
        name: 100 * value for name, value in result["training_spread"].items() if isinstance(value, float)
    }
    groups = list(result["arms"]["dense"]["groups"])
    lines = [
        "# Two trainings of every arm on the same starts",
        "",
        "Command: `python studies/frames-3/seeds.py`. Points; paired by start.",
        "",
        "| arm | seed 0 | seed 1 | seed 1 − seed 0, 95 % interval | p | "
        + " | ".join(f"{name}, seed 0 and 1" for name in groups)
        + " |",
        "|---|---|---|---|---|" + "---|" * len(groups),
    ]
    for arm, of in result["arms"].items():
        low, high = of["interval"]
        lines.append(
            f"| `{arm}` | {of['seed0']} of {of['n']} | {of['seed1']} of {of['n']} | "
            f"{100 * of['delta']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] | {of['p']:.3g} | "
            + " | ".join("{} and {} of {}".format(*counts) for counts in of["groups"].values())
            + " |"
        )
    passing = result["training_spread"]["equal_arms_pass"]
    lines += [
        "",
        f"All arms together move by {spread['shared_shift']:+.1f} from seed 0 to seed 1; what they share cancels in a "
        "comparison within a seed. "
        f"Around that, the arms' changes scatter with a standard deviation of {spread['observed_sd']:.1f}, of which "
        f"the starts and the noise explain {spread['sampling_sd']:.1f}: the training seed gives one arm σ = "
        f"{spread['sigma']:.1f} (upper 95 % bound {spread['sigma_upper_95']:.1f}; four degrees of freedom), so a "
        f"difference of two arms trained once each carries √2 σ = {2**0.5 * spread['sigma']:.1f} that no number of "
        "rollouts shows. With that in the error, two equal arms would pass a margin of "
        + ", ".join(
            f"{100 * float(margin):.0f} points with probability {p:.2f}" for margin, p in passing.items()
        )
        + ", run without end.",
        "",
        "*Both*: the 800 pairs of both trainings (margin 10 points; 90 % Tango interval); *with σ*: by the mean over "
        "both trainings at each start, with the variance of two trainings added. Holm over the five comparisons.",
        "",
        "| comparison | seed 0 | seed 1 | both, 90 % interval | p, equivalent (Holm) | p, different (Holm) "
        "| seed 1 − seed 0, 95 % interval | p (Holm) | both, 90 % interval with σ |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in result["comparisons"]:
        zero, one = (100 * value for value in entry["delta"])
        both, (low, high) = entry["pooled"], entry["pooled"]["interval_90"]
        below, above = entry["change_interval"]
        wide_low, wide_high = entry["with_training"]
        lines.append(
            f"| `{entry['lean']}` − `{entry['anchor']}` | {zero:+.1f} | {one:+.1f} | "
            f"{100 * both['delta']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] | {both['tost_p_holm']:.3g} | "
            f"{both['difference_p_holm']:.3g} | {100 * entry['change']:+.1f} "
            f"[{100 * below:+.1f}, {100 * above:+.1f}] | {entry['change_p_holm']:.3g} | "
            f"[{100 * wide_low:+.1f}, {100 * wide_high:+.1f}] |"
        )
    lines += [
        "",
        "The same by training: difference, 90 % interval of the equivalence test.",
        "",
        "| comparison | "
        + " | ".join(f"{name}, seed 0 | {name}, seed 1" for name in ("ALL", *groups))
        + " |",
        "|---|" + "---|" * (2 * len(groups) + 2),
    ]
    for entry in result["comparisons"]:
        cells = [
            "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * x for x in (found["delta"], *found["interval_90"])))
            for both_seeds in entry["by_seed"].values()
            for found in both_seeds
        ]
        lines.append(f"| `{entry['lean']}` − `{entry['anchor']}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files."""
    result = analyse(*load(HERE))
    (HERE / "seeds.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    (HERE / "seeds.md").write_text(render(result))


if __name__ == "__main__":
    main()
