"""What each head costs on the live model: floating-point operations, executions and its share of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import nn

from leanwam.errors import InputError
from leanwam.models.flops import flop_counter
from leanwam.models.patching import InstancePatch
from leanwam.models.protocol import resolve_heads
from leanwam.models.shares import measure_shares


@dataclass(frozen=True)
class HeadCost:
    """One head's cost.

    Attributes:
        flops_per_execution: of one execution of matrix products, convolutions and attention (``flop_counter``),
            multiply and add as two.
        share_of_step: measured, see ``measure_shares``.
        n_executions: in one dense call.
    """

    flops_per_execution: int
    share_of_step: float
    n_executions: int


def head_costs(
    model: object,
    call: Callable[[], Any],
    heads: Mapping[str, nn.Module | str] | None = None,
    *,
    n_calls: int = 3,
) -> dict[str, HeadCost]:
    """Count and measure a dense sampling call, head by head.

    Args:
        model: fits ``WorldActionModel``, or ``heads`` names its heads.
        call: makes one whole dense sampling call.
        n_calls: calls over which the share's median is taken.

    Raises:
        InputError: a head does not run in this call.
    """
    modules = resolve_heads(model, heads)
    counts, flops = dict.fromkeys(modules, 0), dict.fromkeys(modules, 0)

    def counting(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **kwargs: Any) -> Any:
                with flop_counter() as mode:
                    output = forward(*args, **kwargs)
                counts[name] += 1
                flops[name] += mode.get_total_flops()
                return output

            return counted

        return wrap

    with ExitStack() as stack:
        for name, module in modules.items():
            stack.enter_context(InstancePatch(module, "forward", counting(name)))
        call()
    for name, count in counts.items():
        if not count:
            raise InputError("does not run in a sampling call", field=f"heads[{name!r}]")
    shares = measure_shares(model, call, modules, n_calls=n_calls, n_warmup=0)
    return {name: HeadCost(flops[name] // counts[name], shares[name], counts[name]) for name in modules}
