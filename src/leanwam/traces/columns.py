"""The one-dimensional arrays of a trace: timesteps, solver weights and what is known of each call."""

from __future__ import annotations

import math
from io import FileIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from leanwam.errors import InputError
from leanwam.traces.chunks import ArrayFile, open_array, read_raw, read_through_zarr

#: What calls/NAME holds; all but the task are int64.
CALL_FIELDS = ("episode", "index", "seed", "task")


def read_vector(path: Path, length: int) -> NDArray[np.float64] | None:
    """A float64 vector of ``length`` finite numbers, or None where there is no such array."""
    array = open_array(path)
    if array is None:
        return None
    if array.shape != (length,):
        raise InputError(f"must be shaped [{length}]", file=path, value=list(array.shape))
    values = _read_column(array, length)
    if values.dtype.kind not in "iuf":
        raise InputError("must hold numbers", file=path, value=str(values.dtype))
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InputError("must be finite", file=path)
    return numbers


def read_call_field(root: Path, name: str, n_calls: int) -> NDArray[Any] | None:
    """calls/NAME of the complete calls: int64, ``task`` as str; None where there is no such array."""
    path = root / "calls" / name
    array = open_array(path)
    if array is None:
        return None
    if len(array.shape) != 1 or array.shape[0] < n_calls:
        raise InputError(
            f"must hold one entry for each of the {n_calls} calls", file=path, value=list(array.shape)
        )
    values = _read_column(array, n_calls)
    if name != "task":
        if values.dtype.kind not in "iu":
            raise InputError("must hold integers", file=path, value=str(values.dtype))
        return values.astype(np.int64)
    texts = [value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()]
    return np.array(texts, dtype=np.str_)


def _read_column(array: ArrayFile, stop: int) -> NDArray[Any]:
    """The first ``stop`` entries; leanwam's own layout is read without zarr, which takes long to import."""
    strings = array.codecs == ("vlen-utf8", "crc32c")
    if array.chunks is None or stop == 0 or not (array.raw or strings):
        return read_through_zarr(array.path, 0, stop)
    names = [array.chunk_name(number) for number in range(math.ceil(stop / array.chunks[0]))]
    if strings:
        return np.array([text for name in names for text in decode_strings(name)], dtype=object)[:stop]
    assert array.dtype is not None
    values = np.empty((len(names), *array.chunks), dtype=array.dtype.newbyteorder("<"))
    for name, part in zip(names, values):
        read_raw(array, name, part)
    return values.reshape(-1, *array.chunks[1:])[:stop]


def encode_strings(values: list[str]) -> bytes:
    """A ``vlen-utf8`` chunk with crc32c: the count, then each string's length and bytes (uint32, little)."""
    import google_crc32c

    parts = [len(values).to_bytes(4, "little")]
    for value in values:
        text = value.encode()
        parts += [len(text).to_bytes(4, "little"), text]
    data = b"".join(parts)
    return data + cast(int, google_crc32c.value(data)).to_bytes(4, "little")


def decode_strings(name: str) -> list[str]:
    """The strings of a chunk file of ``encode_strings``; ``InputError`` where it is missing or damaged."""
    import google_crc32c

    try:
        with FileIO(name) as stream:
            content = stream.readall()
    except FileNotFoundError as error:
        raise InputError("missing chunk: it is not on disk", file=Path(name)) from error
    data, trailer = content[:-4], content[-4:]
    if len(data) < 4 or google_crc32c.value(data) != int.from_bytes(trailer, "little"):
        raise InputError("truncated or damaged chunk: its bytes do not match its checksum", file=Path(name))
    texts: list[str] = []
    at = 4
    for _ in range(int.from_bytes(data[:4], "little")):
        size = int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return texts
