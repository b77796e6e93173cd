"""Sketches: what any plan's error at the solver level needs of a trace, whatever the size of its outputs.

Per call and head the Gram matrix of [x_T, out_0, …, out_{n-1}], kept in the basis

    b_0 = x_T - out_0,  b_1 = out_0,  b_{j+1} = out_j - out_{j-1}  (j = 1 … n - 1),

formed in float64 before anything is squared: an error is a combination of the differences alone, so solver
weights of 2·10⁴ with opposite signs do not amplify rounding. ``natural_gram`` gives the matrix of the outputs
themselves. Sketches of shards are joined by ``merge_sketches``; mean Gram matrices add.

On disk a sketch is a folder: ``sketch.json`` and, per head, ``HEAD.gram.npy`` (float64 [call, packed upper
triangle]) and, if asked for, ``HEAD.dims.npy`` (float64 [dim, packed], summed over calls and positions).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from leanwam.errors import InputError
from leanwam.replay.metrics import Floats

#: Version of the sketch folder.
SKETCH_VERSION = 1


class DroppedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call left out of a head's sketch, and why."""

    source: str
    call: int
    why: str


class HeadSketchMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sketch says of one head.

    Attributes:
        shape: of one output.
        has_x_T: whether x_T was in the trace; without it cosines cannot be had, squared errors can.
        weights: solver weights [n + 1], or None with ``why``.
        solver: what the weights come from, in words.
        share_of_step: the head's measured share of a step, or None.
        has_dims: whether the per-dimension sketch is there.
    """

    shape: tuple[int, ...]
    has_x_T: bool
    weights: tuple[float, ...] | None
    solver: str | None
    why: str | None
    share_of_step: float | None
    has_dims: bool
    scale: tuple[float, ...] | None = None
    dropped: tuple[DroppedCall, ...] = ()


class SketchMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``sketch.json``: sources with their content hashes, and the calls in order."""

    leanwam_sketch: int
    sources: tuple[tuple[str, str], ...]
    model: str
    n_steps: int
    heads: dict[str, HeadSketchMeta]
    episodes: tuple[tuple[str, int], ...]
    tasks: tuple[str, ...]


def packed_size(n_basis: int) -> int:
    """Entries of the packed upper triangle of a matrix [n_basis, n_basis]."""
    return n_basis * (n_basis + 1) // 2


def pack(matrices: Floats) -> Floats:
    """Upper triangles [..., packed] of symmetric matrices [..., b, b], row by row."""
    size = matrices.shape[-1]
    flat = matrices.reshape(*matrices.shape[:-2], size * size)
    return np.asarray(np.take(flat, _places(size), axis=-1), dtype=np.float64)


@lru_cache(maxsize=8)
def _places(size: int) -> NDArray[np.intp]:
    """Where the entries of the packed triangle are in the flattened matrix [size, size]."""
    rows, columns = np.triu_indices(size)
    places = np.asarray(rows * size + columns)
    places.setflags(write=False)
    return places


def unpack(packed: Floats, n_basis: int) -> Floats:
    """Symmetric matrices [..., b, b] from packed upper triangles."""
    rows, columns = np.triu_indices(n_basis)
    result = np.zeros((*packed.shape[:-1], n_basis, n_basis))
    result[..., rows, columns] = packed
    result[..., columns, rows] = packed
    return result


@dataclass(frozen=True)
class HeadSketch:
    """One head of an opened sketch.

    Attributes:
        name: of the head.
        meta: see ``HeadSketchMeta``.
        n_steps: n.
        grams: [call, packed] in the basis above, memory-mapped; NaN rows are dropped calls.
        dims: [dim, packed] sums over calls and positions, or None.
    """

    name: str
    meta: HeadSketchMeta
    n_steps: int
    grams: Floats
    dims: Floats | None

    @property
    def n_elements(self) -> int:
        return int(np.prod(self.meta.shape, dtype=np.int64))

    @cached_property
    def kept(self) -> np.ndarray:
        """The calls [bool] that are not dropped."""
        return ~np.isnan(np.asarray(self.grams[:, 0]))

    def weights(self) -> Floats:
        """Solver weights [n + 1]; an InputError says why there are none."""
        if self.meta.weights is None:
            raise InputError(f"no solver level: {self.meta.why}", field=f"heads/{self.name}")
        return np.asarray(self.meta.weights)

    def mean_gram(self, calls: np.ndarray | None = None) -> Floats:
        """Mean over calls and elements of the Gram matrix [n + 1, n + 1] in the basis above."""
        keep = self.kept if calls is None else self.kept & calls
        total, count = np.zeros(self.grams.shape[1]), 0
        for start in range(0, len(self.grams), 4096):
            rows = keep[start : start + 4096]
            total += np.asarray(self.grams[start : start + 4096])[rows].sum(axis=0)
            count += int(rows.sum())
        if count == 0:
            raise InputError("no call is left", field=f"heads/{self.name}")
        return unpack(total / (count * self.n_elements), self.n_steps + 1)

    def natural_gram(self, calls: np.ndarray | None = None) -> Floats:
        """Mean over calls and elements of the Gram matrix of [x_T, out_0, …, out_{n-1}]."""
        gram = self.mean_gram(calls)
        change = np.tril(np.ones((self.n_steps + 1, self.n_steps + 1)))
        change[1:, 0] = 0.0
        change[0, :2] = 1.0
        return np.asarray(change @ gram @ change.T)


@dataclass(frozen=True)
class Sketch:
    """An opened sketch."""

    path: Path
    meta: SketchMeta
    heads: dict[str, HeadSketch]

    @property
    def n_calls(self) -> int:
        return len(self.meta.episodes)

    def head(self, name: str | None) -> HeadSketch:
        """A head by name; None takes the only one there is."""
        if name is None and len(self.heads) == 1:
            return next(iter(self.heads.values()))
        if name is None or name not in self.heads:
            known = ", ".join(self.heads)
            raise InputError(f"name one of the heads ({known})", file=self.path, field="head", value=name)
        return self.heads[name]

    def episode_numbers(self) -> np.ndarray:
        """[call] consecutive numbers: calls of one episode (of one source) share one."""
        numbers: dict[tuple[str, int], int] = {}
        return np.array([numbers.setdefault(e, len(numbers)) for e in self.meta.episodes], dtype=np.int64)


def open_sketch(path: str | Path) -> Sketch:
    """Open a sketch folder; an InputError says what is wrong with it."""
    root = Path(path)
    file = root / "sketch.json"
    try:
        meta = msgspec.json.decode(file.read_bytes(), type=SketchMeta)
    except FileNotFoundError as error:
        raise InputError("not a sketch: the folder holds no sketch.json", file=root) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file) from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(str(error), file=file) from error
    if meta.leanwam_sketch != SKETCH_VERSION:
        raise InputError(f"this leanwam reads version {SKETCH_VERSION}", file=file, value=meta.leanwam_sketch)
    heads = {name: _open_head(root, name, head, meta) for name, head in meta.heads.items()}
    return Sketch(root, meta, heads)


def _open_head(root: Path, name: str, head: HeadSketchMeta, meta: SketchMeta) -> HeadSketch:
    packed = packed_size(meta.n_steps + 1)
    grams = _load(root / f"{name}.gram.npy", (len(meta.episodes), packed))
    n_dims = head.shape[-1] if head.shape else 1
    dims = _load(root / f"{name}.dims.npy", (n_dims, packed)) if head.has_dims else None
    return HeadSketch(name, head, meta.n_steps, grams, dims)


def _load(file: Path, shape: tuple[int, ...]) -> Floats:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", file=file) from error
    if array.shape != shape or array.dtype != np.float64:
        raise InputError(f"must be float64 {list(shape)}", file=file, value=list(array.shape))
    return np.asarray(array) if array.ndim < 2 else array


class GramFile:
    """Writes ``HEAD.gram.npy`` row by row, so that memory does not grow with the number of calls."""

    def __init__(self, path: Path, n_rows: int, width: int) -> None:
        self._stream = path.open("wb")
        header = {"descr": "<f8", "fortran_order": False, "shape": (n_rows, width)}
        np.lib.format.write_array_header_1_0(self._stream, header)

    def append(self, rows: Floats) -> None:
        """Write the next rows [row, packed]."""
        self._stream.write(np.ascontiguousarray(rows, dtype="<f8").data)

    def __enter__(self) -> GramFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def write_meta(root: Path, meta: SketchMeta) -> None:
    """Write ``sketch.json`` last: a folder without it is no sketch."""
    flat = json.dumps(msgspec.to_builtins(meta), ensure_ascii=False, allow_nan=False)
    text = msgspec.json.format(flat, indent=1)  # json.dumps with an indent takes ten times as long
    temporary = root / "sketch.json.tmp"
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(root / "sketch.json")


def merge_sketches(paths: Sequence[str | Path], out: str | Path) -> Sketch:
    """Join sketches of shards: same n, heads, shapes and solver weights; calls in the order given.

    Raises:
        InputError: fewer than two, shards that differ, a shard given twice, or an ``out`` that is there.
    """
    shards = [open_sketch(path) for path in paths]
    if len(shards) < 2:
        raise InputError("at least two sketches are wanted", field="sketches", value=len(shards))
    root = Path(out)
    if root.exists():
        raise InputError("is already there", file=root)
    first = shards[0].meta
    sources = [source for shard in shards for source in shard.meta.sources]
    contents = [content for _, content in sources]
    for name, content in sources:
        if contents.count(content) > 1:
            raise InputError("the same calls are given twice", file=name)
    for shard in shards[1:]:
        _check_same(first, shard)
    root.mkdir(parents=True)
    try:
        heads = {name: _merge_head(root, name, shards) for name in first.heads}
        meta = SketchMeta(
            leanwam_sketch=SKETCH_VERSION,
            sources=tuple(sources),
            model=first.model,
            n_steps=first.n_steps,
            heads=heads,
            episodes=tuple(episode for shard in shards for episode in shard.meta.episodes),
            tasks=tuple(task for shard in shards for task in shard.meta.tasks),
        )
        write_meta(root, meta)
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    return open_sketch(root)


def _check_same(first: SketchMeta, shard: Sketch) -> None:
    meta = shard.meta
    if (meta.n_steps, list(meta.heads)) != (first.n_steps, list(first.heads)):
        raise InputError(
            f"must have n = {first.n_steps} and the heads {', '.join(first.heads)}, as the first sketch",
            file=shard.path,
            value=[meta.n_steps, *meta.heads],
        )
    for name, head in meta.heads.items():
        for field in ("shape", "weights", "has_x_T"):
            if getattr(head, field) != getattr(first.heads[name], field):
                raise InputError(f"{field} must be as in the first sketch", file=shard.path, field=name)


def _merge_head(root: Path, name: str, shards: Sequence[Sketch]) -> HeadSketchMeta:
    heads = [shard.heads[name] for shard in shards]
    total = sum(len(head.grams) for head in heads)
    width = heads[0].grams.shape[1]
    with GramFile(root / f"{name}.gram.npy", total, width) as target:
        for head in heads:
            for start in range(0, len(head.grams), 4096):
                target.append(np.asarray(head.grams[start : start + 4096]))
    parts = [head.dims for head in heads]
    has_dims = all(part is not None for part in parts)
    if has_dims:
        summed: Any = sum(np.asarray(part) for part in parts if part is not None)
        np.save(root / f"{name}.dims.npy", summed)
    dropped = tuple(call for head in heads for call in head.meta.dropped)
    return msgspec.structs.replace(heads[0].meta, has_dims=has_dims, dropped=dropped)
