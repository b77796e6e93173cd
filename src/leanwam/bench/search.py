"""The fastest plans whose action chunks stay within the dense model's own noise-seed spread.

Two steps, in this order. Fidelity: each candidate's chunk on the same observations and the same noise as the
dense model's, its error beside the difference that another noise seed makes in the dense model itself. Time:
the candidates that stay within it, the plain few-step samplers and the untouched model, interleaved. What
comes out is a list of candidates for a closed-loop test, not a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from leanwam.bench.clock import Arm, Samples, interleave
from leanwam.bench.counts import device_synchroniser
from leanwam.bench.generate import ASKED, BASELINE, CACHED, Counted, is_plain
from leanwam.bench.ratio import paired_ratio, spread_ms
from leanwam.bench.rows import raw
from leanwam.errors import InputError
from leanwam.models.reference.caching import LosslessCache
from leanwam.plans import HeadSpec, PlanSpec

if TYPE_CHECKING:
    from leanwam.models.reference import ObservationBatch, ReferenceWAM

#: Sampler steps that are tried, and of these the steps at which the video stream computes.
STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20)
VIDEO_STEPS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Query:
    """One sampling call: an observation of one sample and its noise seed."""

    observation: ObservationBatch
    seed: int


@dataclass(frozen=True)
class Fidelity:
    """How far a plan's action chunks are from the dense model's.

    Attributes:
        error: mean absolute difference of actions, environment units (clipped to ±1), over calls.
        in_noise_units: ``error`` / the same difference between two noise seeds of the dense model.
        share_beyond: share of the calls whose own error exceeds their own spread over seeds.
    """

    error: float
    in_noise_units: float
    share_beyond: float


def candidates(model: ReferenceWAM, *, frames: Sequence[str] = ()) -> list[PlanSpec]:
    """Plans that combine fewer sampler steps, video features held from early steps, and frame plans.

    Args:
        frames: frame plans to combine each with, e.g. ``drop_middle``; the whole video always is among them.
    """
    found = []
    longest = max(model.n_steps[name] for name in ("action", "video"))
    for n in [*(k for k in STEPS if k < longest), None]:
        for v in [*VIDEO_STEPS, None]:
            if v is not None and n is not None and v >= n:
                continue
            if n is None and v is None and not frames:
                continue
            for frame in (None, *frames):
                if n is None and v is None and frame is None:
                    continue
                heads = {} if v is None else {"video": HeadSpec(plan=f"prefix:{v}")}
                parts = [
                    "" if n is None else f"steps-{n}",
                    "" if v is None else f"video-{v}",
                    "" if frame is None else frame.replace(":", "-").replace("=", "-"),
                ]
                name = "_".join(part for part in parts if part)
                if n is not None and v is None and frame is None:
                    name = f"plain_{n}"
                found.append(PlanSpec(name=name, heads=heads, frames=frame, sampler_steps=n))
    return found


def action_chunks(
    model: ReferenceWAM, queries: Sequence[Query], plan: PlanSpec | None, *, batch: int, noise: int = 0
) -> NDArray[np.float64]:
    """The chunks [call, 16, 4] as the environment takes them; batches of one size, the last one filled up.

    Args:
        noise: 0 takes each query's own seed, another number other noise.
    """
    way = Counted("", plan, LosslessCache(model))
    chunks = []
    for first in range(0, len(queries), batch):
        mine = list(queries[first : first + batch])
        filled = mine + [mine[-1]] * (batch - len(mine))
        whole = _stacked(filled)
        seeds = [query.seed + 1_000_003 * noise for query in filled]

        def call(whole: Any = whole, seeds: Any = seeds, **options: Any) -> Any:
            return model.generate(whole, seeds, until=("action",), **options)

        with way.open(model, call) as run:
            chunks.append(run().action[: len(mine)])
    return np.clip(np.concatenate(chunks).astype(np.float64), -1.0, 1.0)


def fidelity(
    model: ReferenceWAM,
    queries: Sequence[Query],
    plans: Sequence[PlanSpec],
    *,
    n_seeds: int = 3,
    batch: int = 8,
    progress: Callable[[int], None] | None = None,
) -> tuple[dict[str, Fidelity], float]:
    """Every plan's error beside the dense model's spread over noise seeds.

    Returns:
        the fidelity by plan name, and the spread itself: the mean absolute difference between two seeds.

    Raises:
        InputError: no queries, fewer than two seeds, or a dense model that does not spread at all.
    """
    if not queries or n_seeds < 2:
        raise InputError("at least one call and two seeds are needed", field="queries, n_seeds")
    dense = [action_chunks(model, queries, None, batch=batch, noise=k) for k in range(n_seeds)]
    pairs = [(i, j) for i in range(n_seeds) for j in range(i)]
    per_call = np.mean([np.abs(dense[i] - dense[j]).mean(axis=(1, 2)) for i, j in pairs], axis=0)
    spread = float(per_call.mean())
    if spread == 0.0:
        raise InputError("the dense model's actions do not depend on the noise: nothing to judge by")
    found = {}
    for plan in plans:
        error = np.abs(action_chunks(model, queries, plan, batch=batch) - dense[0]).mean(axis=(1, 2))
        beyond = float((error > per_call).mean())
        found[plan.name] = Fidelity(float(error.mean()), float(error.mean()) / spread, beyond)
        if progress is not None:
            progress(1)
    return found, spread


def time_candidates(
    model: ReferenceWAM,
    queries: Sequence[Query],
    plans: Sequence[PlanSpec],
    *,
    batch: int = 1,
    n_rounds: int,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Times of plans (with the lossless caches), interleaved with those of plain samplers and the untouched
    model: as they are, without the streams that nobody asked for, and with the lossless caches.

    Args:
        queries: the first ``batch`` of them are sampled together, over and over where there are fewer.

    Returns:
        ``times`` by arm (milliseconds), ``executions`` per call by arm, and the ``Samples``.
    """
    mine = [queries[place % len(queries)] for place in range(batch)]
    seen, seeds = _stacked(mine), [query.seed for query in mine]

    def call(**options: Any) -> Any:
        return model.generate(seen, seeds, until=("action",), **options)

    ways = [Counted(BASELINE, None), Counted(BASELINE + CACHED, None, LosslessCache(model))]
    for plan in plans:
        if is_plain(plan):
            ways.append(Counted(plan.name, plan))
            ways.append(Counted(plan.name + ASKED, plan, asked_only=True))
        ways.append(Counted(plan.name + CACHED, plan, LosslessCache(model)))
    samples = interleave(
        [Arm(way.name, partial(way.open, model, call)) for way in ways],
        n_rounds=n_rounds,
        synchronise=device_synchroniser(model.device),
        n_threads=torch.get_num_threads(),
        progress=progress,
    )
    return {
        "samples": samples,
        "times": {way.name: spread_ms(samples.of(way.name)) for way in ways},
        "executions": {way.name: way.per_call() for way in ways},
    }


def search(
    model: ReferenceWAM,
    queries: Sequence[Query],
    *,
    frames: Sequence[str] = (),
    allowed: float = 1.0,
    n_seeds: int = 3,
    n_rounds: int = 20,
    n_timed: int = 24,
    batch: int = 8,
    timed_batches: Sequence[int] = (1,),
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Search the candidates and order those within the spread by their measured time.

    Args:
        allowed: largest ``in_noise_units`` of a candidate.
        timed_batches: batch sizes that are timed; the first one orders the candidates.
        n_timed: at most so many candidates are timed, the cheapest by counted network calls first; plain
            samplers are timed besides.

    Returns:
        plain data: ``spread``, ``candidates`` (fidelity, within, executions and, by batch size, time and
        ratios), ``fastest`` (names in order), ``fastest_plain``: the plain sampler within the spread that is
        fastest, or None. A plan has the lossless savings; the ratios to the fastest plain sampler are given
        against it as it is, without the streams that nobody asked for, and with the same savings.
    """
    plans = candidates(model, frames=frames)
    quality, spread = fidelity(model, queries, plans, n_seeds=n_seeds, batch=batch, progress=progress)
    within = [plan for plan in plans if quality[plan.name].in_noise_units <= allowed]
    plain = [plan for plan in plans if is_plain(plan)]
    lean = sorted((plan for plan in within if not is_plain(plan)), key=lambda plan: _price(model, plan))
    timed = [*plain, *lean[:n_timed]]
    measured = {
        size: time_candidates(model, queries, timed, batch=size, n_rounds=n_rounds, progress=progress)
        for size in timed_batches
    }
    first = measured[timed_batches[0]]
    times = {name: value["p50_ms"] for name, value in first["times"].items()}
    order = sorted((plan.name for plan in timed if plan in within), key=lambda name: times[name + CACHED])
    passing = [plan.name for plan in plain if plan in within]
    fastest_plain = min(passing, key=lambda name: times[name], default=None)
    rows = [
        {
            "plan": plan.name,
            "plain": is_plain(plan),
            "sampler_steps": plan.sampler_steps,
            "video": plan.heads["video"].plan if "video" in plan.heads else "dense",
            "frames": plan.frames,
            **{
                field: getattr(quality[plan.name], field)
                for field in ("error", "in_noise_units", "share_beyond")
            },
            "within": plan in within,
            "executions": first["executions"].get(plan.name + CACHED),
            "by_batch": {
                str(size): _timed(item, plan.name, fastest_plain)
                for size, item in measured.items()
                if plan in timed
            },
        }
        for plan in plans
    ]
    return {
        "spread": spread,
        "allowed": allowed,
        "n_calls": len(queries),
        "n_seeds": n_seeds,
        "timed_batches": list(timed_batches),
        "candidates": rows,
        "fastest": order,
        "fastest_plain": fastest_plain,
        "times": {str(size): item["times"] for size, item in measured.items()},
        "samples": {str(size): raw(item["samples"]) for size, item in measured.items()},
    }


def plan_toml(plan: PlanSpec) -> str:
    """A plan as a TOML file that ``leanwam rollouts run --plan`` and ``bench generate --plans`` read."""
    lines = [f'name = "{plan.name}"']
    if plan.sampler_steps is not None:
        lines.append(f"sampler_steps = {plan.sampler_steps}")
    if plan.frames is not None:
        lines.append(f'frames = "{plan.frames}"')
    for head, spec in plan.heads.items():
        lines += [f"[heads.{head}]", f'plan = "{spec.plan}"', f'hold = "{spec.hold}"']
    return "\n".join(lines) + "\n"


def write_plans(
    model: ReferenceWAM, names: Sequence[str], folder: Path, *, frames: Sequence[str] = ()
) -> None:
    """Write these candidates as plan files NAME.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    for plan in candidates(model, frames=frames):
        if plan.name in names:
            (folder / f"{plan.name}.toml").write_text(plan_toml(plan))


def _stacked(queries: Sequence[Query]) -> ObservationBatch:
    from leanwam.models.reference import ObservationBatch

    seen = [query.observation for query in queries]
    return ObservationBatch(
        tuple(item.task[0] for item in seen),
        np.concatenate([item.proprio for item in seen]),
        None if seen[0].world is None else np.concatenate([item.world for item in seen]),
        None if seen[0].pixels is None else np.concatenate([item.pixels for item in seen]),
    )


def _price(model: ReferenceWAM, plan: PlanSpec) -> tuple[int, int]:
    """Network calls of action and of video, as the plan says."""
    resolved = plan.resolve(plan.sampler_steps or model.n_steps, model.heads())
    action, video = resolved.heads["action"], resolved.heads["video"]
    return len(action.executed) + len(video.executed), len(video.executed)


def _timed(measured: dict[str, Any], plan: str, fastest_plain: str | None) -> dict[str, Any]:
    """A plan's time with the lossless savings, and its ratios."""
    samples, arm = measured["samples"], plan + CACHED
    found = {"ms": measured["times"][arm]["p50_ms"], "ratio_to_untouched": _ratio(samples, BASELINE, arm)}
    for field, saving in (("", ""), ("_asked_only", ASKED), ("_with_caches", CACHED)):
        found[f"ratio_to_fastest_plain{field}"] = (
            None if fastest_plain is None else _ratio(samples, fastest_plain + saving, arm)
        )
    return found


def _ratio(samples: Samples, baseline: str, arm: str) -> dict[str, Any]:
    """By the wall clock and by this process's CPU time, which other processes disturb less."""
    found: dict[str, Any] = {}
    for kind, seconds in (("", samples.wall_s), ("cpu_", samples.cpu_s)):
        pair = (np.maximum(seconds[samples.names.index(name)], 1e-9) for name in (baseline, arm))
        item = paired_ratio(*pair)
        found[f"{kind}ratio"] = item.ratio
        found[f"{kind}interval"] = None if item.interval is None else list(item.interval)
    return found
