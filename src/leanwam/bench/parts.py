"""Where a sampling call's time goes, and how much faster a plan can make it at best.

A call is made of parts: each group's network, each stream's solver, and the rest (inputs, noise, units). The
end-to-end ceiling of a plan leaves every part as expensive per operation as in the dense call, and nothing
else: T / sum over parts of T_part * (its work under the plan / its work dense). It is Amdahl's law with
measured shares; saving 80 % of a part of 2 % yields 1.6 %.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leanwam.models.flops import flop_counter
from leanwam.models.patching import InstancePatch

if TYPE_CHECKING:
    from leanwam.models.reference import ReferenceWAM

REST = "rest"


@dataclass(frozen=True)
class Work:
    """What one call does, by part.

    Attributes:
        amount: per part, floating-point operations of a network, steps of a solver, network calls for the
            rest.
        executions: per head, how often it ran; per group ``network …``, how often its network ran.
    """

    amount: dict[str, int]
    executions: dict[str, int]


def count_work(model: ReferenceWAM, run: Callable[[], Any]) -> Work:
    """Count one call of ``run``, which samples from ``model``."""
    amount: dict[str, int] = {}
    executions: dict[str, int] = {}

    def network(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **kwargs: Any) -> Any:
                with flop_counter() as mode:
                    output = forward(*args, **kwargs)
                amount[name] = amount.get(name, 0) + mode.get_total_flops()
                executions[name] = executions.get(name, 0) + 1
                return output

            return counted

        return wrap

    def tally(table: dict[str, int], name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **kwargs: Any) -> Any:
                table[name] = table.get(name, 0) + 1
                return method(*args, **kwargs)

            return counted

        return wrap

    with ExitStack() as stack:
        for name, module in networks(model).items():
            stack.enter_context(InstancePatch(module, "forward", network(name)))
        for name, scheduler in model.schedulers.items():
            stack.enter_context(_solver_patch(scheduler, tally(amount, f"solver {name}")))
        stack.enter_context(InstancePatch(model, "step", tally(amount, REST)))
        run()
    return Work(amount, executions)


def measure_shares(
    model: ReferenceWAM, run: Callable[[], Any], *, n_repeats: int = 5, wait: Callable[[], None] | None = None
) -> dict[str, float]:
    """Each part's share of the call's wall time, medians over calls, scaled to sum to 1.

    Args:
        run: a dense call.
        wait: waits for the device; called at both ends of each part, so that asynchronous work counts where
            it was asked for.
    """
    spent: dict[str, float] = {}
    pause = wait if wait is not None else _nothing

    def timed(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
            def inner(*args: Any, **kwargs: Any) -> Any:
                pause()
                began = time.perf_counter()
                output = method(*args, **kwargs)
                pause()
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
                return output

            return inner

        return wrap

    calls: list[dict[str, float]] = []
    with ExitStack() as stack:
        for name, module in networks(model).items():
            stack.enter_context(InstancePatch(module, "forward", timed(name)))
        for name, scheduler in model.schedulers.items():
            stack.enter_context(_solver_patch(scheduler, timed(f"solver {name}")))
        for number in range(n_repeats + 1):
            spent.clear()
            pause()
            began = time.perf_counter()
            run()
            pause()
            total = time.perf_counter() - began
            if number:  # the first one warms up
                shares = {name: value / total for name, value in spent.items()}
                calls.append({**shares, REST: 1.0 - sum(shares.values())})
    names = sorted({name for call in calls for name in call})
    medians = {name: statistics.median(call.get(name, 0.0) for call in calls) for name in names}
    whole = sum(medians.values())
    return {name: value / whole for name, value in medians.items()}


def ceiling(shares: Mapping[str, float], dense: Work, lean: Work) -> float:
    """The largest end-to-end ratio that the plan's counted work allows, from the dense call's shares."""
    left = 0.0
    for name, share in shares.items():
        before = dense.amount.get(name, 0)
        left += share * (lean.amount.get(name, 0) / before if before else 1.0)
    return 1.0 / left


def networks(model: ReferenceWAM) -> dict[str, Any]:
    """``network video`` → the module of that group of streams."""
    return {f"network {'+'.join(names)}": model.group(names) for names in model.group_names}


@contextmanager
def _solver_patch(scheduler: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    with InstancePatch(scheduler, "step", wrap):
        yield


def _nothing() -> None:
    """The CPU needs no waiting."""
