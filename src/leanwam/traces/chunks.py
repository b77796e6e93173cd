"""Arrays of a local zarr v3 store: their metadata, their chunk files, and writing that survives a kill.

Leanwam's own arrays have one chunk per call, raw little-endian bytes and a crc32c at the end (both from
the zarr v3 core specification). Such a chunk is read and written here directly, since a call of zarr's
own machinery per chunk costs about a millisecond; any other layout is read through zarr itself.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from leanwam.errors import InputError

_NUMBER_TYPES = {
    *("float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}
_CRC_BYTES = 4


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ``InputError`` where it is none."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"is not valid JSON: {error}", file=path) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from error
    if not isinstance(value, dict):
        raise InputError("must hold a JSON object", file=path)
    return value


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file so that a reader or a kill sees the old content or the new one, never a part.

    ``durable`` also waits for the disk (fsync of the file, then of the folder).
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable, where the system knows how."""
    with suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class ArrayFile:
    """One zarr array on disk.

    Attributes:
        path: its folder.
        shape: as its metadata say; the first axis may reach beyond the complete calls.
        dtype: NumPy's, or None where only zarr can tell (strings, extensions).
        chunks: the regular chunk shape, or None for another grid.
        key_prefix, separator: of the chunk keys.
        codecs: their names, in order.
        raw: whether chunks are plain little-endian bytes (with or without crc32c), C order.
        checksum: whether a raw chunk ends in a crc32c.
        fill_value: of a chunk that is not there.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    chunks: tuple[int, ...] | None
    key_prefix: tuple[str, ...]
    separator: str
    codecs: tuple[str, ...]
    raw: bool
    checksum: bool
    fill_value: Any

    @property
    def one_call_per_chunk(self) -> bool:
        """Whether a chunk holds exactly one entry of the first axis, and all of it."""
        return bool(self.shape) and self.chunks == (1, *self.shape[1:])

    @property
    def rows_per_chunk(self) -> int:
        """Entries of the first axis that a chunk holds (1 where the grid does not tell)."""
        return min(self.chunks[0], self.shape[0]) if self.chunks and self.shape[0] else 1

    @property
    def fingerprinted(self) -> bool:
        """Whether each entry of the first axis is a file that ends in its checksum."""
        return self.checksum and self.raw and self.one_call_per_chunk

    @property
    def chunk_bytes(self) -> int:
        """Size of the file of a raw chunk."""
        assert self.chunks is not None
        assert self.dtype is not None
        return math.prod(self.chunks) * self.dtype.itemsize + (_CRC_BYTES if self.checksum else 0)

    def chunk_path(self, *index: int) -> Path:
        """The file of a chunk; the axes that are not given have one chunk."""
        return Path(self.chunk_name(*index))

    def chunk_name(self, *index: int) -> str:
        """``chunk_path`` as a string: making a path takes as long as opening the file."""
        if len(index) == 1:
            before, after = self._around_first
            return f"{before}{index[0]}{after}"
        rest = [0] * (len(self.shape) - len(index))
        return f"{self.path}/{self.separator.join([*self.key_prefix, *map(str, [*index, *rest])])}"

    @cached_property
    def _around_first(self) -> tuple[str, str]:
        """What a chunk's name has before and after its first number, where the others are 0."""
        before = "".join(part + self.separator for part in self.key_prefix)
        return f"{self.path}/{before}", f"{self.separator}0" * (len(self.shape) - 1)

    def missing(self, call: int) -> Path | None:
        """The file that is not there, where none of a call's chunks is on disk, else None.

        A single absent chunk among others may stand for its fill value; a whole call may not.
        """
        if self.chunks is None or not self.chunks:
            return None
        grid = [range(-(-size // chunk)) for size, chunk in zip(self.shape[1:], self.chunks[1:])]
        row = call // self.chunks[0]
        if any(self.chunk_path(row, *index).is_file() for index in itertools.product(*grid)):
            return None
        return self.chunk_path(row)


def open_array(path: Path) -> ArrayFile | None:
    """The metadata of an array, or None where there is none.

    Raises:
        InputError: the metadata are broken, or name a pickle among the codecs.
    """
    source = path / "zarr.json"
    if not source.is_file():
        return None
    meta = read_json(source)
    if meta.get("zarr_format") != 3 or meta.get("node_type") != "array":
        raise InputError("must be a zarr v3 array", file=source)
    try:
        shape = tuple(int(size) for size in meta["shape"])
        codecs = [codec if isinstance(codec, str) else codec["name"] for codec in meta["codecs"]]
        data_type = meta["data_type"]
        grid = meta["chunk_grid"]
        keys = meta.get("chunk_key_encoding", {"name": "default"})
        chunks = tuple(grid["configuration"]["chunk_shape"]) if grid["name"] == "regular" else None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"is not the metadata of a zarr v3 array ({error!r})", file=source) from error
    if any("pickle" in name for name in codecs) or data_type in ("object", "numcodecs.object"):
        raise InputError("holds pickled objects; leanwam never loads a pickle from a trace", file=source)
    dtype = np.dtype(data_type) if isinstance(data_type, str) and data_type in _NUMBER_TYPES else None
    default_keys = keys.get("name") == "default"
    separator = keys.get("configuration", {}).get("separator", "/" if default_keys else ".")
    little = all(
        codec.get("configuration", {}).get("endian", "little") == "little"
        for codec in meta["codecs"]
        if isinstance(codec, dict)
    )
    raw = (
        codecs in (["bytes"], ["bytes", "crc32c"])
        and little
        and dtype is not None
        and not meta.get("storage_transformers")
    )
    return ArrayFile(
        path=path,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        key_prefix=("c",) if default_keys else (),
        separator=separator,
        codecs=tuple(codecs),
        raw=raw,
        checksum=codecs[-1] == "crc32c",
        fill_value=meta.get("fill_value"),
    )


def encode_raw(values: NDArray[Any]) -> bytes:
    """The bytes of a raw chunk: little-endian C order, then the crc32c of them."""
    import google_crc32c

    data = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()
    return data + cast(int, google_crc32c.value(data)).to_bytes(_CRC_BYTES, "little")


def read_raw(array: ArrayFile, name: str, out: NDArray[Any]) -> bytes:
    """Read one raw chunk file into ``out`` (C order, little-endian) and return its checksum's bytes, if any.

    Raises:
        InputError: the chunk is missing, truncated or damaged.
    """
    n_trailer = _CRC_BYTES if array.checksum else 0
    try:
        with FileIO(name) as stream:
            n_read = stream.readinto(memoryview(cast(Any, out))) if out.nbytes else 0
            while 0 < n_read < out.nbytes:  # the system returns 2 GiB at once at most
                more = stream.readinto(memoryview(cast(Any, out.reshape(-1).view(np.uint8)[n_read:])))
                if not more:
                    break
                n_read += more
            trailer = stream.read(_CRC_BYTES + 1) or b""
            if n_read != out.nbytes or len(trailer) != n_trailer:
                found, wanted = stream.seek(0, os.SEEK_END), out.nbytes + n_trailer
                raise InputError(f"truncated chunk: {found} bytes where {wanted} are wanted", file=Path(name))
    except FileNotFoundError as error:
        raise InputError("missing chunk: it is not on disk", file=Path(name)) from error
    if array.checksum:
        import google_crc32c

        if google_crc32c.value(cast(bytes, out)) != int.from_bytes(trailer, "little"):
            raise InputError("damaged chunk: its bytes do not match its checksum", file=Path(name))
    return trailer


def read_trailer(name: str) -> bytes:
    """Size of a chunk file (8 bytes, little-endian) and its last four bytes, read without the rest."""
    try:
        descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise InputError("missing chunk: it is not on disk", file=Path(name)) from error
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        os.lseek(descriptor, max(0, size - _CRC_BYTES), os.SEEK_SET)
        return size.to_bytes(8, "little") + os.read(descriptor, _CRC_BYTES)
    finally:
        os.close(descriptor)


def read_rows(
    array: ArrayFile, start: int, stop: int, trailers: NDArray[np.uint8] | None = None
) -> NDArray[Any]:
    """Entries ``start … stop − 1`` of the first axis, in the array's own type.

    ``trailers`` [entry, 4] takes the checksums of the chunks read, where ``fingerprinted``.

    Raises:
        InputError: a chunk is missing, truncated or damaged; the file is named.
    """
    if array.raw and array.one_call_per_chunk:
        assert array.dtype is not None
        out = np.empty((stop - start, *array.shape[1:]), dtype=array.dtype.newbyteorder("<"))
        for row in range(start, stop):
            trailer = read_raw(array, array.chunk_name(row), out[row - start : row - start + 1])
            if trailers is not None and array.checksum:
                trailers[row] = np.frombuffer(trailer, dtype=np.uint8)
        return out
    for row in range(start, stop):
        if (absent := array.missing(row)) is not None:
            raise InputError("missing chunk: it is not on disk", file=absent)
    return read_through_zarr(array.path, start, stop)


def read_through_zarr(path: Path, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """Entries of the first axis through zarr itself, whatever codecs and chunks the array has."""
    import zarr

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(zarr.open_array(path, mode="r")[start:stop])
    except InputError:
        raise
    except Exception as error:  # codecs raise whatever they like on damaged bytes
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"cannot be decoded, a chunk is truncated or damaged ({reason})",
            file=path,
            field=f"entries {start}…{'' if stop is None else stop - 1}",
        ) from error


def array_json(
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: DTypeLike | None,
    dimension_names: list[str | None],
    *,
    checksum: bool = True,
) -> bytes:
    """The ``zarr.json`` of an array of leanwam's layout; ``dtype`` None means strings (vlen-utf8)."""
    if dtype is None:
        data_type, fill, codec = "string", "", {"name": "vlen-utf8", "configuration": {}}
    else:
        kind = np.dtype(dtype)
        data_type, fill = kind.name, ("NaN" if kind.kind == "f" else 0)  # type: ignore[assignment]
        codec = {"name": "bytes", "configuration": {"endian": "little"}}
    return to_json(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": fill,
            "codecs": [codec, {"name": "crc32c"}] if checksum else [codec],
            "attributes": {},
            "dimension_names": dimension_names,
            "storage_transformers": [],
        }
    )


def group_json(attributes: dict[str, Any] | None = None) -> bytes:
    """The ``zarr.json`` of a group."""
    return to_json({"zarr_format": 3, "node_type": "group", "attributes": attributes or {}})


def to_json(value: dict[str, Any]) -> bytes:
    """Indented JSON as bytes; NaN as a number is a defect and raises."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
