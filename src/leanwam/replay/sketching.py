"""One streaming pass over a trace that makes its sketch, cached beside it under its content hash."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leanwam.errors import InputError
from leanwam.replay.collect import ExternalSolvers, head_units, pick_solver
from leanwam.replay.metrics import Floats
from leanwam.replay.sketch import (
    SKETCH_VERSION,
    DroppedCall,
    GramFile,
    HeadSketchMeta,
    Sketch,
    SketchMeta,
    open_sketch,
    packed_size,
    write_meta,
)
from leanwam.replay.sketch_grams import call_grams
from leanwam.replay.solver import LinearSolver
from leanwam.traces import Checksums

if TYPE_CHECKING:
    from leanwam.traces import Trace

_BLOCK_BYTES = 4 * 2**20


def sketch_path(trace: Trace) -> Path:
    """Where a trace's sketch is kept: ``NAME.sketch`` beside ``NAME.trace.zarr``."""
    name = trace.path.resolve().name.removesuffix(".zarr").removesuffix(".trace")
    return trace.path.resolve().parent / f"{name}.sketch"


def sketch_trace(
    trace: Trace,
    out: Path | None = None,
    *,
    external: ExternalSolvers | None = None,
    dims: bool = False,
    n_threads: int = 2,
    progress: Callable[[str, int], None] | None = None,
) -> Sketch:
    """The trace's sketch: the one kept beside it if its content is the same, else a new one.

    Args:
        trace: an opened trace; heads without model_output are left out.
        out: the folder; None means ``sketch_path(trace)``.
        external: solvers made with torch, where NumPy does not know the sampler.
        dims: also sketch every entry of the last axis, for errors per dimension.
        n_threads: blocks of calls worked on at once.
        progress: called with the head and the number of calls done.

    Raises:
        InputError: the folder is there and is no sketch; no head has model_output.
    """
    root = sketch_path(trace) if out is None else out
    heads = [head for head in trace.heads if "model_output" in trace.quantities(head)]
    if not heads:
        raise InputError("a sketch needs model_output, which no head of the trace has", file=trace.path)
    metas = {head: _head_meta(trace, head, external, dims) for head in heads}
    if root.exists() and (kept := _kept(root, trace.content_hash(), metas)) is not None:
        return kept
    work = root.with_name(root.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        checksums = Checksums()
        done = {
            head: _sketch_head(trace, head, meta, work, n_threads, progress, checksums)
            for head, meta in metas.items()
        }
        write_meta(work, _meta(trace, trace.content_hash(checksums), done))
        shutil.rmtree(root, ignore_errors=True)
        work.replace(root)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return open_sketch(root)


def _kept(root: Path, content: str, metas: dict[str, HeadSketchMeta]) -> Sketch | None:
    """The sketch at ``root`` if it is that of this content, with nothing missing."""
    if not (root / "sketch.json").is_file():
        raise InputError("is there and is no sketch; choose another place", file=root)
    try:
        found = open_sketch(root)
    except InputError:
        return None
    if [known for _, known in found.meta.sources] != [content] or list(found.heads) != list(metas):
        return None
    for name, meta in metas.items():
        known = found.meta.heads[name]
        if known.weights != meta.weights or (meta.has_dims and not known.has_dims):
            return None
    return found


def _head_meta(trace: Trace, head: str, external: ExternalSolvers | None, dims: bool) -> HeadSketchMeta:
    solver = pick_solver(trace, head, external, need_x_T=False)
    weights = why = label = None
    if isinstance(solver, str):
        why = solver
    elif isinstance(solver, LinearSolver):
        weights, label = tuple(float(value) for value in solver.weights), solver.label
    else:
        why = f"{solver.label}: a sketch serves linear solvers"
    meta = trace.heads[head]
    return HeadSketchMeta(
        shape=tuple(meta.shape),
        has_x_T="sample" in trace.quantities(head),
        weights=weights,
        solver=label,
        why=why,
        share_of_step=meta.share_of_step,
        has_dims=dims,
        scale=head_units(meta).scale,
    )


def _meta(trace: Trace, content: str, heads: dict[str, HeadSketchMeta]) -> SketchMeta:
    episodes, tasks = trace.calls.get("episode"), trace.calls.get("task")
    name = trace.path.name
    numbers = range(trace.n_calls) if episodes is None else np.asarray(episodes).tolist()
    return SketchMeta(
        leanwam_sketch=SKETCH_VERSION,
        sources=((name, content),),
        model=trace.meta.model,
        n_steps=trace.n_steps,
        heads=heads,
        episodes=tuple((name, int(number)) for number in numbers),
        tasks=("",) * trace.n_calls if tasks is None else tuple(np.asarray(tasks).tolist()),
    )


def _sketch_head(
    trace: Trace,
    head: str,
    meta: HeadSketchMeta,
    root: Path,
    n_threads: int,
    progress: Callable[[str, int], None] | None,
    checksums: Checksums,
) -> HeadSketchMeta:
    width = packed_size(trace.n_steps + 1)
    n_dims = (meta.shape[-1] if meta.shape else 1) if meta.has_dims else 0
    dims = np.zeros((n_dims, width))
    dropped: list[DroppedCall] = []
    with GramFile(root / f"{head}.gram.npy", trace.n_calls, width) as grams:
        for start, block, bad, per_dim in _blocks(trace, head, meta, n_threads, checksums):
            grams.append(block)
            dims += per_dim
            why = f"{head}: values that are not finite"
            dropped += [DroppedCall(trace.path.name, start + int(row), why) for row in bad]
            if progress is not None:
                progress(head, start + len(block))
    if meta.has_dims:
        np.save(root / f"{head}.dims.npy", dims)
    return HeadSketchMeta(**{**_fields(meta), "dropped": tuple(dropped)})


def _fields(meta: HeadSketchMeta) -> dict[str, Any]:
    return {name: getattr(meta, name) for name in meta.__struct_fields__}


def _blocks(
    trace: Trace, head: str, meta: HeadSketchMeta, n_threads: int, checksums: Checksums
) -> Iterator[tuple[int, Floats, NDArray[np.int64], Floats]]:
    """Blocks in order, a few of them in flight at once, so that memory does not grow with the trace."""
    names = ["model_output", "sample"] if meta.has_x_T else ["model_output"]
    per_call = sum(trace.call_bytes(head, name) for name in names)
    chunk = max(trace.calls_per_chunk(head, name) for name in names)
    step = max(1, _BLOCK_BYTES // per_call // chunk) * chunk
    for name in names:  # before any thread asks for them
        checksums.of(head, name, trace.n_calls)
    starts = range(0, trace.n_calls, step)

    def work(start: int) -> tuple[int, Floats, NDArray[np.int64], Floats]:
        stop = min(start + step, trace.n_calls)
        outputs, *samples = [trace.read(head, name, start, stop, checksums=checksums) for name in names]
        return (start, *call_grams(outputs, samples[0] if samples else None, meta.has_dims))

    if n_threads == 1:
        yield from map(work, starts)
        return
    with ThreadPoolExecutor(max_workers=n_threads) as pool:
        waiting: deque[Future[tuple[int, Floats, NDArray[np.int64], Floats]]] = deque()
        try:
            for start in starts:
                waiting.append(pool.submit(work, start))
                if len(waiting) > n_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
