"""Reading a trace: open it, check its layout, read whole calls."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanwam.errors import InputError
from leanwam.traces.chunks import ArrayFile, open_array, read_json, read_rows, read_trailer
from leanwam.traces.columns import CALL_FIELDS, read_call_field, read_vector
from leanwam.traces.meta import QUANTITIES, HeadMeta, TraceMeta, parse_attributes

#: Memory that a block of ``Trace.iter_calls`` may take unless told otherwise. Small, since the system clears the
#: pages of a large block each time it is allocated: at 64 MiB that took longer than the reading.
DEFAULT_BLOCK_BYTES = 4 * 2**20


@dataclass(frozen=True)
class CallBlock:
    """Consecutive calls of one head: ``arrays[quantity]`` is [stop − start, step(+1), *shape]."""

    start: int
    stop: int
    arrays: dict[str, NDArray[Any]]


class Checksums:
    """The checksums that ``Trace.read`` met, so that ``Trace.content_hash`` need not open those files again.

    Only for arrays of which every complete call is read. ``seen[head, quantity]`` is uint8 [call, 4].
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], NDArray[np.uint8]] = {}

    def of(self, head: str, quantity: str, n_calls: int) -> NDArray[np.uint8]:
        """Where the checksums of an array are put."""
        return self.seen.setdefault((head, quantity), np.zeros((n_calls, 4), dtype=np.uint8))


@dataclass(frozen=True)
class Trace:
    """An opened trace; only complete calls are seen. Made by ``open_trace``.

    Attributes:
        path: the store's folder.
        meta: its root attributes.
        n_calls: complete calls.
        skipped: heads left out because their arrays break a rule, with the reason
            (only with ``open_trace(…, skip_broken_heads=True)``).
    """

    path: Path
    meta: TraceMeta
    n_calls: int
    skipped: dict[str, str]
    _arrays: dict[str, dict[str, ArrayFile]]

    @property
    def n_steps(self) -> int:
        return self.meta.n_steps

    @cached_property
    def heads(self) -> dict[str, HeadMeta]:
        """The heads that can be read, by name."""
        return {name: head for name, head in self.meta.heads.items() if name not in self.skipped}

    @cached_property
    def timesteps(self) -> NDArray[np.float64] | None:
        """float64 [n_steps] as the sampler counts them, or None where the trace does not say."""
        return read_vector(self.path / "timesteps", self.n_steps)

    def quantities(self, head: str) -> tuple[str, ...]:
        """The quantities that the trace holds of a head, in the order of ``QUANTITIES``."""
        return tuple(self._head(head))

    def read(
        self,
        head: str,
        quantity: str,
        start: int = 0,
        stop: int | None = None,
        *,
        checksums: Checksums | None = None,
    ) -> NDArray[Any]:
        """Calls ``start … stop − 1`` of one quantity: [call, step, *shape]; ``sample`` has one step more.

        float32 and float64 are kept, float16 becomes float32. ``start`` and ``stop`` count as in a slice.
        ``checksums`` takes those of the chunks read, for ``content_hash``.

        Raises:
            InputError: no such head or quantity; a chunk is missing, truncated or damaged.
        """
        array = self._array(head, quantity)
        begin, end, _ = slice(start, stop).indices(self.n_calls)
        seen = None if checksums is None else checksums.of(head, quantity, self.n_calls)
        values = read_rows(array, begin, max(begin, end), seen)
        return np.ascontiguousarray(values, dtype=np.float64 if values.dtype.itemsize == 8 else np.float32)

    def iter_calls(
        self,
        head: str,
        quantities: Sequence[str] | None = None,
        *,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        start: int = 0,
        stop: int | None = None,
    ) -> Iterator[CallBlock]:
        """All calls in order, in blocks of at most ``block_bytes`` (never less than one call or chunk).

        ``quantities`` defaults to all that the trace holds of the head.
        """
        names = tuple(quantities) if quantities is not None else self.quantities(head)
        per_call = sum(self.call_bytes(head, name) for name in names)
        chunk = max((self._array(head, name).rows_per_chunk for name in names), default=1)
        step = max(1, block_bytes // max(1, per_call) // chunk) * chunk
        begin, end, _ = slice(start, stop).indices(self.n_calls)
        for low in range(begin, end, step):
            high = min(low + step, end)
            yield CallBlock(low, high, {name: self.read(head, name, low, high) for name in names})

    def dtype(self, head: str, quantity: str) -> np.dtype[Any]:
        """The type in which a quantity is stored (``read`` widens float16)."""
        dtype = self._array(head, quantity).dtype
        assert dtype is not None
        return dtype

    def call_bytes(self, head: str, quantity: str) -> int:
        """Memory of one call of one quantity as ``read`` returns it."""
        shape = self._array(head, quantity).shape
        return math.prod(shape[1:]) * max(4, self.dtype(head, quantity).itemsize)

    def calls_per_chunk(self, head: str, quantity: str) -> int:
        """Calls that a chunk of one quantity holds: a block of calls should be a multiple of it."""
        return self._array(head, quantity).rows_per_chunk

    def solver_weights(self, head: str) -> NDArray[np.float64] | None:
        """float64 [n_steps + 1]: c, w_0 … w_{n−1} of x_final = c·x_T + Σ w_i·out_i; None where absent."""
        self._head(head)
        return read_vector(self.path / "heads" / head / "solver_weights", self.n_steps + 1)

    @cached_property
    def calls(self) -> dict[str, NDArray[Any] | None]:
        """``episode``, ``index``, ``seed`` (int64 [call]) and ``task`` (str [call]); None where absent."""
        return {name: read_call_field(self.path, name, self.n_calls) for name in CALL_FIELDS}

    def content_hash(self, checksums: Checksums | None = None) -> str:
        """A digest of what the model yielded: attributes, timesteps, call fields and all complete calls.

        Stable under copying and under growth of the arrays beyond the complete calls. Solver weights are
        left out, so probing a trace later keeps what was cached under its hash. Where chunks carry a
        crc32c that is what is digested (a read of four bytes a chunk), else the values themselves.
        With ``checksums`` of arrays that were read whole, these files are not opened again.
        """
        digest = hashlib.blake2b(digest_size=16)
        attributes = self.meta.to_attributes(self.n_calls)
        digest.update(json.dumps(attributes, sort_keys=True, ensure_ascii=False).encode())
        for vector in (self.timesteps, *self.calls.values()):
            digest.update(b"-" if vector is None else json.dumps(vector.tolist()).encode())
        for head in sorted(self.heads):
            for quantity, array in self._arrays[head].items():
                digest.update(f"{head}/{quantity}:{array.dtype}:{array.shape[1:]}".encode())
                seen = None if checksums is None else checksums.seen.get((head, quantity))
                for part in self._fingerprints(array, seen):
                    digest.update(part)
        return digest.hexdigest()

    def _fingerprints(self, array: ArrayFile, seen: NDArray[np.uint8] | None) -> Iterator[bytes]:
        if not array.fingerprinted:
            for start in range(0, self.n_calls, array.rows_per_chunk):
                yield read_rows(array, start, min(start + array.rows_per_chunk, self.n_calls)).tobytes()
            return
        if seen is not None:
            size = np.frombuffer(array.chunk_bytes.to_bytes(8, "little"), dtype=np.uint8)
            yield np.hstack([np.tile(size, (len(seen), 1)), seen]).tobytes()
            return
        for call in range(self.n_calls):
            yield read_trailer(array.chunk_name(call))

    def _head(self, head: str) -> dict[str, ArrayFile]:
        if head in self.skipped:
            raise InputError(self.skipped[head], file=self.path)
        if head not in self._arrays:
            raise InputError(
                f"the trace has no such head (it has {', '.join(self.heads)})", file=self.path, value=head
            )
        return self._arrays[head]

    def _array(self, head: str, quantity: str) -> ArrayFile:
        arrays = self._head(head)
        if quantity not in QUANTITIES:
            raise InputError(
                f"a quantity is one of {', '.join(QUANTITIES)}", field="quantity", value=quantity
            )
        if quantity not in arrays:
            raise InputError(
                f"the trace does not hold {quantity} of this head (it holds {', '.join(arrays)})",
                file=self.path,
                field=f"heads/{head}",
            )
        return arrays[quantity]


def open_trace(path: str | Path, *, skip_broken_heads: bool = False) -> Trace:
    """Open a trace store and check its layout (metadata only; ``verify`` reads every chunk).

    Args:
        path: the folder of the store.
        skip_broken_heads: leave out heads whose arrays break a rule, naming each in ``Trace.skipped``,
            as long as one head is left.

    Raises:
        InputError: no trace, another version, unknown attributes, missing or ill-shaped arrays.
    """
    root = Path(path)
    meta, complete = parse_attributes(read_root(root), root)
    arrays: dict[str, dict[str, ArrayFile]] = {}
    problems: dict[str, InputError] = {}
    steps = _steps_per_head(root, meta)
    for name, head in meta.heads.items():
        try:
            if steps.get(name, meta.n_steps) != meta.n_steps and len(set(steps.values())) > 1:
                said = ", ".join(f"{head} {n}" for head, n in steps.items())
                raise InputError(
                    f"the heads differ in their number of steps: {said}; n_steps is {meta.n_steps}",
                    file=root,
                    field=f"heads/{name}",
                )
            arrays[name] = _head_arrays(root, name, head, meta.n_steps, complete)
        except InputError as error:
            problems[name] = error
    if problems and not (skip_broken_heads and arrays):
        raise next(iter(problems.values()))
    return Trace(root, meta, complete, {name: str(error) for name, error in problems.items()}, arrays)


def read_root(root: Path) -> dict[str, Any]:
    """The attributes of the root group; ``InputError`` says what the path is instead of a trace."""
    if not root.exists():
        raise InputError("there is no such trace", file=root)
    if not root.is_dir():
        raise InputError(_what_file(root), file=root)
    if not (root / "zarr.json").is_file():
        if any((root / name).exists() for name in (".zgroup", ".zarray", ".zattrs")):
            raise InputError("not a trace: a zarr v2 store, version 3 is wanted", file=root)
        raise InputError("not a trace: the folder holds no zarr.json", file=root)
    meta = read_json(root / "zarr.json")
    if meta.get("zarr_format") != 3 or meta.get("node_type") != "group":
        raise InputError("not a trace: the root must be a zarr v3 group", file=root / "zarr.json")
    attributes = meta.get("attributes", {})
    if not isinstance(attributes, dict):
        raise InputError("must be an object", file=root / "zarr.json", field="attributes")
    return attributes


def _what_file(path: Path) -> str:
    with path.open("rb") as stream:
        head = stream.read(4)
    if path.suffix in (".pkl", ".pickle") or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05"):
        return "not a trace but a pickle; leanwam never loads one"
    if path.suffix in (".npz", ".npy", ".pt", ".pth", ".safetensors", ".h5", ".hdf5"):
        return "not a trace but a file of arrays; make one with: leanwam trace import"
    return "not a trace: a folder (NAME.trace.zarr) is wanted"


def _steps_per_head(root: Path, meta: TraceMeta) -> dict[str, int]:
    """The number of steps that the first array of each head speaks for."""
    found: dict[str, int] = {}
    for name in meta.heads:
        for quantity, extra in QUANTITIES.items():
            path = root / "heads" / name / quantity
            with suppress(InputError):
                if (array := open_array(path)) is not None and len(array.shape) > 1:
                    found.setdefault(name, array.shape[1] - extra)
    return found


def _head_arrays(root: Path, name: str, head: HeadMeta, n_steps: int, complete: int) -> dict[str, ArrayFile]:
    """The arrays of one head, each checked against the attributes."""
    found: dict[str, ArrayFile] = {}
    for quantity, extra in QUANTITIES.items():
        array = open_array(root / "heads" / name / quantity)
        if array is None:
            continue
        where = f"heads/{name}/{quantity}"
        if array.dtype is None or array.dtype.kind != "f":
            raise InputError(
                "must be float16, float32 or float64", file=root, field=where, value=_dtype_name(array)
            )
        if len(array.shape) < 2 or array.shape[1] != n_steps + extra:
            raise InputError(
                f"wrong step count: n_steps is {n_steps}, so the step axis wants {n_steps + extra} entries",
                file=root,
                field=where,
                value=list(array.shape),
            )
        if array.shape[2:] != head.shape:
            raise InputError(
                f"must be shaped [call, step, *{list(head.shape)}] as the head's attributes say",
                file=root,
                field=where,
                value=list(array.shape),
            )
        if array.shape[0] < complete:
            raise InputError(
                f"holds {array.shape[0]} calls where {complete} are said to be complete",
                file=root,
                field=where,
            )
        found[quantity] = array
    if not found and complete:
        raise InputError(f"holds none of {', '.join(QUANTITIES)}", file=root, field=f"heads/{name}")
    return found


def _dtype_name(array: ArrayFile) -> str:
    return (
        str(array.dtype) if array.dtype is not None else str(read_json(array.path / "zarr.json")["data_type"])
    )
