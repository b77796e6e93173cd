"""``leanwam bench generate``: whole sampling calls under plans, against the untouched model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from leanwam.bench.backends import compiled
from leanwam.bench.bounds import Machine, bounds
from leanwam.bench.clock import Arm, Samples, interleave
from leanwam.bench.counts import device_synchroniser, operations
from leanwam.bench.parts import Work, ceiling, count_work, measure_shares, networks
from leanwam.bench.rows import raw, row
from leanwam.bench.subjects import random_observation
from leanwam.errors import InputError
from leanwam.models.reference.caching import LosslessCache, asked_only
from leanwam.plans import PlanSpec
from leanwam.rollouts.policy import planned_model

if TYPE_CHECKING:
    from leanwam.models.reference import ObservationBatch, ReferenceWAM

BASELINE = "untouched"
#: What an arm's name ends in: streams that nobody asked for are left out; that and everything else of ``caching``.
ASKED = " + asked only"
CACHED = " + caches"


@dataclass(frozen=True)
class Options:
    """How a comparison runs.

    Attributes:
        until: streams that are asked for; None for all. The same for every arm.
        caches: also each plan with the lossless caches on, and the untouched model with them. Where ``until``
            names streams, the baselines (the untouched model, plain samplers) also run with nothing but the
            streams left out that nobody asked for: so it can be told how much of a plan's gain is that.
        n_rounds, n_warmup, n_inner, seed: see ``clock.interleave``.
    """

    until: tuple[str, ...] | None = None
    caches: bool = False
    n_rounds: int = 20
    n_warmup: int = 2
    n_inner: int = 1
    n_share_repeats: int = 5
    seed: int = 0
    progress: Callable[[int], None] | None = None


@dataclass
class Counted:
    """A way to run ``generate``, and what was counted while it was timed."""

    name: str
    plan: PlanSpec | None
    cache: LosslessCache | None = None
    asked_only: bool = False
    n_calls: int = 0
    executions: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def open(self, model: ReferenceWAM, call: Callable[..., Any]) -> Iterator[Callable[[], Any]]:
        """Yield the call to time: ``call`` with this way's options; gates count while it is open."""
        with ExitStack() as stack:
            options: dict[str, Any] = {}
            counts = resolved = None
            if self.plan is not None:
                spec, counts, options = stack.enter_context(planned_model(model, self.plan))
                resolved = spec.resolve(model.n_steps, model.heads())
            if self.cache is not None:
                stack.enter_context(self.cache.active(resolved))
            elif self.asked_only:
                stack.enter_context(asked_only(model, resolved))
            begun = 0

            def run() -> Any:
                nonlocal begun
                begun += 1
                return call(**options)

            yield run
            self.n_calls += begun
        if counts is not None:
            for head, count in counts.executions.items():
                self.executions[head] = self.executions.get(head, 0) + count

    @property
    def lossless(self) -> str:
        """Which lossless savings this way has: ``none``, ``asked only`` or ``all``."""
        return "all" if self.cache is not None else "asked only" if self.asked_only else "none"

    def per_call(self) -> dict[str, float]:
        """Executions of each head per call, as its gate counted them during the timed calls."""
        return {head: count / max(self.n_calls, 1) for head, count in self.executions.items()}


def is_plain(plan: PlanSpec) -> bool:
    """Whether a plan is the plain sampler with fewer steps: what every other plan has to beat."""
    return plan.sampler_steps is not None and not plan.heads and plan.default is None and plan.frames is None


def compare(
    model: ReferenceWAM,
    plans: Sequence[PlanSpec],
    batch: int,
    options: Options,
    *,
    backend: str = "eager",
    machine: Machine | None = None,
    observation: ObservationBatch | None = None,
) -> dict[str, Any]:
    """Time plans at one batch size on one backend.

    Returns:
        plain data: ``rows``, ``samples`` (raw), ``parts`` (measured shares of the dense call), ``bounds``.
    """
    if backend not in ("eager", "compile"):
        raise InputError("generate runs eager or compiled here", field="backend", value=backend)
    seen = random_observation(model.config, batch) if observation is None else observation
    seeds = list(range(batch))

    def call(**more: Any) -> Any:
        return model.generate(seen, seeds, until=options.until, **more)

    ways = [Counted(BASELINE, None), *(Counted(plan.name, plan) for plan in plans)]
    if options.caches:
        if options.until is not None:
            ways.append(Counted(BASELINE + ASKED, None, asked_only=True))
            ways += [Counted(plan.name + ASKED, plan, asked_only=True) for plan in plans if is_plain(plan)]
        ways.append(Counted(BASELINE + CACHED, None, LosslessCache(model)))
        ways += [Counted(plan.name + CACHED, plan, LosslessCache(model)) for plan in plans]
    works: dict[str, Work] = {}
    dispatched: dict[str, int] = {}
    for way in ways:  # counted eagerly: a compiled network hides its operations
        with way.open(model, call) as run:
            works[way.name] = count_work(model, run)
        with way.open(model, call) as run:
            counted = operations(run)
        dispatched[way.name] = counted.n_dispatched
        if way.name == BASELINE:
            dense_operations = counted
        way.n_calls, way.executions = 0, {}
    where = model.device
    with ExitStack() as stack:
        if backend == "compile":
            stack.enter_context(compiled(list(networks(model).values())))
        wait = device_synchroniser(where)
        arms = [Arm(way.name, partial(way.open, model, call)) for way in ways]
        samples = interleave(
            arms,
            n_rounds=options.n_rounds,
            n_warmup=options.n_warmup,
            n_inner=options.n_inner,
            seed=options.seed,
            synchronise=wait,
            n_threads=torch.get_num_threads(),
            progress=options.progress,
        )
        shares = measure_shares(model, call, n_repeats=options.n_share_repeats, wait=wait)
    rows = _rows(samples, ways, works, dispatched, shares, batch, backend)
    label = f"bs{batch} {backend}"
    limits = {}
    if machine is not None:
        measured = float(samples.of(BASELINE).min())
        limits[label] = bounds(dense_operations, machine, measured)
    return {"rows": rows, "samples": {label: raw(samples)}, "parts": {label: shares}, "bounds": limits}


def _rows(
    samples: Samples,
    ways: Sequence[Counted],
    works: dict[str, Work],
    dispatched: dict[str, int],
    shares: dict[str, float],
    batch: int,
    backend: str,
) -> list[dict[str, Any]]:
    dense = works[BASELINE]
    rows = []
    for way in ways[1:]:
        work = works[way.name]
        flops_ratio = _flops(dense) / max(_flops(work), 1)
        by_dispatch = dispatched[BASELINE] / max(dispatched[way.name], 1)
        promised = ceiling(shares, dense, work)
        source = "end-to-end ceiling: measured shares of the dense call, counted work"
        if way.cache is not None:
            source += "; what the caches save beside it (solvers, tables, small operations) comes on top"
        rows.append(
            row(
                samples,
                name=f"{way.name} bs{batch}" + ("" if backend == "eager" else f" {backend}"),
                arm=way.name,
                baseline=BASELINE,
                expected_ratio=promised,
                expected_from=source,
                target="generate",
                plan=way.plan.name if way.plan is not None else "dense",
                lossless=way.lossless,
                batch=batch,
                backend=backend,
                flops_ratio=flops_ratio,
                dispatch_ratio=by_dispatch,
                executions=way.per_call() or dict(work.executions),
                network_executions=work.executions,
            )
        )
    return rows


def _flops(work: Work) -> int:
    return sum(amount for name, amount in work.amount.items() if name.startswith("network "))
