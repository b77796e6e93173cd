"""Operation counts of one call: floating-point operations, dispatched operations, bytes moved.

What a plan promises is read from here; what it keeps is read from the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from leanwam.models.flops import flop_counter
from leanwam.models.patching import InstancePatch

#: Operations that only describe a tensor anew: dispatched like the others, but nothing is computed or moved.
_VIEWS = frozenset(
    {
        "view", "_unsafe_view", "reshape", "transpose", "permute", "t", "expand", "slice", "select", "split",
        "split_with_sizes", "chunk", "unsqueeze", "squeeze", "detach", "alias", "as_strided", "unbind", "narrow",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Operations:
    """What one call does.

    Attributes:
        flops: matrix products, convolutions and attention as ``flops.flop_counter`` counts them, multiply
            and add as two.
        n_dispatched: operations that went through torch's dispatcher, views included.
        n_kernels: of these, the ones that compute or move something (launches, on an accelerator).
        bytes_moved: read and written by those, each operand counted once per operation: an upper bound of
            the memory traffic, since caches and fusion save some.
    """

    flops: int
    n_dispatched: int
    n_kernels: int
    bytes_moved: int


def operations(run: Callable[[], Any]) -> Operations:
    """Count the operations of one call of ``run`` (eager: a compiled part counts as what it dispatches)."""
    counter = _Counter()
    with flop_counter() as flops, counter:
        run()
    return Operations(flops.get_total_flops(), counter.n_dispatched, counter.n_kernels, counter.bytes_moved)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n_dispatched = self.n_kernels = self.bytes_moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.n_dispatched += 1
        if func.overloadpacket.__name__ not in _VIEWS:
            self.n_kernels += 1
            for leaf in (*tree_leaves((args, kwargs)), *tree_leaves(output)):
                if isinstance(leaf, Tensor):
                    self.bytes_moved += leaf.numel() * leaf.element_size()
        return output


@dataclass
class PartCount:
    """What one part of a model did in one call."""

    n_executions: int = 0
    flops: int = 0


def count_parts(run: Callable[[], Any], parts: Mapping[str, nn.Module]) -> dict[str, PartCount]:
    """Executions and floating-point operations of modules within one call; a part may not run at all."""
    counts = {name: PartCount() for name in parts}

    def counted(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
            def inner(*args: Any, **kwargs: Any) -> Any:
                with flop_counter() as mode:
                    output = forward(*args, **kwargs)
                counts[name].n_executions += 1
                counts[name].flops += mode.get_total_flops()
                return output

            return inner

        return wrap

    with ExitStack() as stack:
        for name, module in parts.items():
            stack.enter_context(InstancePatch(module, "forward", counted(name)))
        run()
    return counts


def device_synchroniser(device: torch.device | str) -> Callable[[], None] | None:
    """What waits for the device: None on the CPU, where nothing runs behind."""
    kind = torch.device(device).type
    return torch.cuda.synchronize if kind == "cuda" else None
