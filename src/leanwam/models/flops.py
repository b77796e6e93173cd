"""torch's FLOP counter with the one kernel that it leaves out: attention on the CPU.

``FlopCounterMode`` knows the attention kernels of accelerators. What ``scaled_dot_product_attention`` calls on
a CPU has no formula there (torch 2.13) and counts as nothing, although it is 40 % of a forward of 761 tokens at
width 128. A promise made from such a count is too low where tokens are left out: attention falls with their
square.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

Shape = Sequence[int]


def flop_counter() -> FlopCounterMode:
    """A counter of matrix products, convolutions and attention, multiply and add as two, on any device."""
    own = {_FORWARD: _attention, _BACKWARD: _attention_backward}
    missing = {operation: formula for operation, formula in own.items() if operation not in flop_registry}
    return FlopCounterMode(display=False, custom_mapping=missing)


def _attention(query: Shape, key: Shape, value: Shape, *args: Any, **kwargs: Any) -> int:
    """Two products: queries with keys, weights with values."""
    return 2 * _rows(query) * key[-2] * (query[-1] + value[-1])


def _attention_backward(
    grad: Shape, query: Shape, key: Shape, value: Shape, *args: Any, **kwargs: Any
) -> int:
    """Five products: the scores again, then the gradients of weights, values, queries and keys."""
    return 2 * _rows(query) * key[-2] * (3 * query[-1] + 2 * value[-1])


def _rows(query: Shape) -> int:
    batch, heads, tokens, _ = query
    return batch * heads * tokens
