"""Operation counts of a live model without running it: torch's counter on the meta device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leanwam.models.flops import flop_counter


class UndecidedIsFalse(TorchFunctionMode):
    """A question about a meta tensor's values is answered with no: such questions guard against bad input
    (``if (std == 0).any()``), and there is no input."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__bool__ and args[0].device.type == "meta":
            return False
        return func(*args, **(kwargs or {}))


def count_on_meta(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """FLOPs of one call, by dotted submodule name; ``""`` is the whole model.

    Parameters and buffers are replaced for the call by meta tensors of the same shape: nothing is computed
    and no weight is copied. Multiply and add count as two; matrix products, convolutions and attention
    count, as in ``torch.utils.flop_counter``.

    Args:
        model: its state is not touched.
        args, kwargs: of its forward; tensors on any device, of which only shape and type are used.
    """

    state = {
        name: torch.empty_like(tensor, device="meta")
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    counter = flop_counter()
    with torch.no_grad(), counter, UndecidedIsFalse():
        torch.func.functional_call(
            model, state, tuple(_meta(a) for a in args), {k: _meta(v) for k, v in (kwargs or {}).items()}
        )
    root = type(model).__name__
    counts: dict[str, int] = {"": int(counter.get_total_flops())}
    for path, operations in counter.get_flop_counts().items():
        if path.startswith(f"{root}."):
            counts[path.removeprefix(f"{root}.")] = int(sum(operations.values()))
    return counts


def part_of(counts: Mapping[str, int], name: str) -> int:
    """The count of one submodule; 0 where it ran no counted operation."""
    return counts.get(name, 0)


def _meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_like(value, device="meta")
    if isinstance(value, tuple | list):
        return type(value)(_meta(item) for item in value)
    if isinstance(value, dict):
        return {key: _meta(item) for key, item in value.items()}
    return value
