"""Gram matrices of calls, for sketches: formed in pieces that stay in a core's cache.

What bounds the work is not the multiplications alone but how often the float64 rows travel to memory, so a few
calls (or, of large outputs, some columns of one call) are brought into the sketch's basis and multiplied at once,
in buffers that are used again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanwam.replay.metrics import Floats
from leanwam.replay.sketch import pack, packed_size

#: Bytes of float64 rows worked on at once, so that they stay in a core's cache.
_WORK_BYTES = 2**20
#: Rows multiplied at once with themselves and all rows after them: the lower triangle is mostly left out.
_ROWS_AT_ONCE = 16


def call_grams(
    outputs: NDArray[Any], samples: NDArray[Any] | None, dims: bool
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Packed Gram matrices of calls, the calls that are not finite, and sums per entry of the last axis.

    Args:
        outputs: [call, step, *shape].
        samples: [call, step + 1, *shape], of which the first is used, or None.
        dims: whether the sums are wanted.

    Returns:
        float64 [call, packed] in the basis of ``leanwam.replay.sketch`` (NaN rows where a value is not
        finite), these rows' numbers, and float64 [last axis, packed] (no rows without ``dims``).
    """
    n_calls, n_steps = outputs.shape[:2]
    n_last = outputs.shape[-1] if outputs.ndim > 2 else 1
    flat = outputs.reshape(n_calls, n_steps, -1)
    first = None if samples is None else samples[:, 0].reshape(n_calls, -1)
    n_elements = flat.shape[2]
    row_bytes = 8 * (n_steps + 1)
    columns = max(1, n_elements if dims else min(n_elements, _WORK_BYTES // row_bytes))
    calls = max(1, min(n_calls, _WORK_BYTES // (row_bytes * columns)))
    packed = np.empty((n_calls, packed_size(n_steps + 1)))
    per_dim = np.zeros((n_last if dims else 0, packed_size(n_steps + 1)))
    basis = np.zeros((calls, n_steps + 1, columns))
    wide = np.empty((calls, n_steps, columns))
    square = np.zeros((calls, n_steps + 1, n_steps + 1))
    with np.errstate(invalid="ignore", over="ignore"):
        for low in range(0, n_calls, calls):
            high = min(low + calls, n_calls)
            total = square[: high - low]
            for left in range(0, max(1, n_elements), columns):
                part = slice(left, min(left + columns, n_elements))
                at = (slice(0, high - low), slice(None), slice(0, part.stop - part.start))
                rows = basis[at]
                _fill(
                    rows, wide[at], flat[low:high, :, part], None if first is None else first[low:high, part]
                )
                _multiply(rows, total, add=left > 0)
            packed[low:high] = pack(total)
            if dims:
                good = np.isfinite(np.einsum("cbb->c", total))
                per_dim += _per_dimension(rows[good], n_last)
        bad = np.flatnonzero(~np.isfinite(packed.sum(axis=1)))
    packed[bad] = np.nan
    return packed, bad, per_dim


def _fill(basis: Floats, wide: Floats, flat: NDArray[Any], first: NDArray[Any] | None) -> None:
    """The rows x_T − out_0, out_0 and the differences, from float64 values; row 0 stays 0 without x_T."""
    values: NDArray[Any] = flat
    if flat.dtype != np.float64:
        wide[...] = flat
        values = wide
    basis[:, 1] = values[:, 0]
    np.subtract(values[:, 1:], values[:, :-1], out=basis[:, 2:])
    if first is not None:
        np.subtract(first, values[:, 0], out=basis[:, 0])


def _multiply(rows: Floats, total: Floats, *, add: bool) -> None:
    """Upper triangles of rows · rowsᵀ into ``total`` [call, b, b]; below it only what comes along."""
    size = rows.shape[1]
    for top in range(0, size, _ROWS_AT_ONCE):
        bottom = min(top + _ROWS_AT_ONCE, size)
        target = total[:, top:bottom, top:]
        if add:
            target += np.matmul(rows[:, top:bottom], rows[:, top:].transpose(0, 2, 1))
        else:
            np.matmul(rows[:, top:bottom], rows[:, top:].transpose(0, 2, 1), out=target)


def _per_dimension(rows: Floats, n_last: int) -> Floats:
    """Packed Gram matrices [last axis, packed] of each entry of the last axis, summed over the rest."""
    n_calls, size, n_elements = rows.shape
    split = rows.reshape(n_calls, size, n_elements // n_last, n_last)
    each = np.ascontiguousarray(split.transpose(3, 1, 0, 2)).reshape(n_last, size, -1)
    return pack(np.matmul(each, each.transpose(0, 2, 1)))
