"""Lossless: what does not change over the steps of a call, or from call to call, is computed once.

Nothing here approximates. What is kept is the very result of the same operation on the same input of the
same shape, so samples are the same to the bit (tested), and every reuse is counted. Kept are

- the embedding of each denoising time: the sampler's grid is fixed, the time network does not see the
  observation;
- the rotary tables and token levels of a frame plan;
- the coefficients of each solver step (DDIM, UniPC), which the scheduler otherwise computes anew from its tables;
- streams that nobody asked for: where a call stops after some streams (``until``), only these and what they
  read are sampled, and what is read only as long as a plan computes it.

The last of these is to be had alone (``asked_only``), so that a baseline can be timed with and without it.

The task's and the observation's own encoding is computed once per call by the untouched model already.
Not kept, because it would not be the same to the bit: projections of clean tokens by themselves, or the
modulations of all steps in one product. A matrix product rounds differently with another number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from leanwam.models.patching import InstancePatch
from leanwam.models.reference.cached_solvers import SolverPatch, patched_solver
from leanwam.models.reference.model import Conditions, ReferenceWAM, StreamTokens, token_sets
from leanwam.models.reference.towers import StreamInput
from leanwam.plans import Plan


@dataclass
class Reuse:
    """What was kept, and how often it was used again.

    Attributes:
        n_made, n_reused: by kind: ``times``, ``tokens``, ``coefficients``.
        n_streams_skipped: streams left out of calls because nobody asked for them.
    """

    n_made: dict[str, int] = field(default_factory=dict)
    n_reused: dict[str, int] = field(default_factory=dict)
    n_streams_skipped: int = 0

    def note(self, kind: str, *, reused: bool) -> None:
        counts = self.n_reused if reused else self.n_made
        counts[kind] = counts.get(kind, 0) + 1


@contextmanager
def lossless(model: ReferenceWAM, plan: Plan | None = None) -> Iterator[Reuse]:
    """While open, ``model`` computes once what does not change; its samples stay the same to the bit.

    Args:
        plan: the plan that is executed, if any: a stream that nobody asked for is then not even stepped
            after the last step at which its head computes.
    """
    cache = LosslessCache(model)
    with cache.active(plan):
        yield cache.reuse


@contextmanager
def asked_only(model: ReferenceWAM, plan: Plan | None = None) -> Iterator[Reuse]:
    """While open, a call that stops after some streams (``until``) samples these and what they read, no other.

    Nothing is kept. The samples of the streams that are asked for stay the same to the bit; of a stream that
    is left out the sample is its noise, and its head is not executed once.

    Args:
        plan: as in ``lossless``.
    """
    reuse = Reuse()
    last = _last_executed(plan)

    def lean(original: Callable[..., Conditions]) -> Callable[..., Conditions]:
        def conditions(task: Tensor, present: Mapping[str, Tensor], keep: Tensor | None) -> Conditions:
            return AskedConditions(model, task, present, keep, None, reuse=reuse, last_executed=last)

        return conditions

    with InstancePatch(model, "conditions", lean):
        yield reuse


class LosslessCache:
    """What is kept between calls, by all that it depends on: a few hundred vectors per batch size.

    The weights must not change while it lives.
    """

    def __init__(self, model: ReferenceWAM) -> None:
        self.model, self.reuse = model, Reuse()
        self._made: dict[tuple[Any, ...], Any] = {}

    def get(self, kind: str, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What ``make`` yielded for this kind and key the first time."""
        whole = (kind, *key)
        found = self._made.get(whole)
        if found is None:
            found = self._made[whole] = make()
            self.reuse.note(kind, reused=False)
        else:
            self.reuse.note(kind, reused=True)
        return found

    @contextmanager
    def active(self, plan: Plan | None = None) -> Iterator[None]:
        """While open, the model looks up here what it would compute again; see ``lossless``."""
        last = _last_executed(plan)
        patches: list[SolverPatch] = []

        def remembered(original: Callable[..., Conditions]) -> Callable[..., Conditions]:
            def conditions(task: Tensor, present: Mapping[str, Tensor], keep: Tensor | None) -> Conditions:
                for scheduler in self.model.schedulers.values():
                    patch = patched_solver(scheduler, self.get)
                    if patch is not None:
                        patches.append(patch)
                return CachedConditions(self, task, present, keep, last)

            return conditions

        try:
            with InstancePatch(self.model, "conditions", remembered):
                yield
        finally:
            for patch in patches:
                patch.remove()


@dataclass(frozen=True)
class EmbeddedTime:
    """A denoising time of a batch: as the head gets it [batch], as the expert does [batch, level], embedded."""

    time: Tensor
    levels: Tensor
    embedded: Tensor


class AskedConditions(Conditions):
    """``Conditions`` of a call in which a stream that nobody asked for is left out.

    Args:
        reuse: counts the streams left out.
        last_executed: per head the last step at which a plan computes it; all steps where it is missing.
    """

    def __init__(
        self,
        model: ReferenceWAM,
        task: Tensor,
        present: Mapping[str, Tensor],
        keep: Tensor | None,
        tokens: Mapping[str, StreamTokens] | None,
        *,
        reuse: Reuse,
        last_executed: Mapping[str, int],
    ) -> None:
        super().__init__(model, task, present, keep, tokens)
        self._reuse, self._last = reuse, last_executed
        self._needed: frozenset[str] | None = None

    def running(self, until: Sequence[str] | None, done: Mapping[str, int]) -> tuple[str, ...]:
        """The streams of ``until`` and all that they read, as long as anything of them is still to compute."""
        if until is None:
            return super().running(until, done)
        if self._needed is None:
            self._needed = self._read_by(until)
            self._reuse.n_streams_skipped += len(self.streams) - len(self._needed)
        return tuple(
            name
            for name in self.streams
            if name in self._needed and (name in until or done[name] <= self._last.get(name, done[name]))
        )

    def _read_by(self, until: Sequence[str]) -> frozenset[str]:
        found = set(until)
        while True:
            more = {other for name in found for other in self.streams[name].reads} - found
            if not more:
                return frozenset(found)
            found |= more


class CachedConditions(AskedConditions):
    """The same, and what was computed before is looked up."""

    def __init__(
        self,
        cache: LosslessCache,
        task: Tensor,
        present: Mapping[str, Tensor],
        keep: Tensor | None,
        last_executed: Mapping[str, int],
    ) -> None:
        model = cache.model
        device = present["proprio"].device
        key = (None if keep is None else tuple(keep.tolist()), device)
        tokens: dict[str, StreamTokens] = cache.get(
            "tokens", key, lambda: token_sets(model.config, keep, device)
        )
        super().__init__(model, task, present, keep, tokens, reuse=cache.reuse, last_executed=last_executed)
        self._cache = cache
        self._current: dict[str, EmbeddedTime] = {}

    def time(self, name: str, value: float, batch: int) -> Tensor:
        device = self.context[name].device
        found: EmbeddedTime = self._cache.get(
            "times", (name, value, batch, device), lambda: self._embed(name, value, batch)
        )
        self._current[name] = found
        return found.time

    def inputs(self, name: str, sample: Tensor, time: Tensor) -> StreamInput:
        current = self._current.get(name)
        if current is None or current.time is not time:
            return super().inputs(name, sample, time)
        noisy = sample.reshape(sample.shape[0], -1, sample.shape[-1])
        kept = self.kept_noisy[name]
        if kept is not None:
            noisy = noisy[:, kept]
        clean, n_clean = self.clean.get(name), 0
        if clean is not None:
            n_clean = clean.shape[1]
            noisy = torch.cat([clean, noisy], dim=1)
        level, table, context = self.level[name], self.table[name], self.context[name]
        return StreamInput(noisy, current.levels, level, context, table, n_clean, current.embedded)

    def _embed(self, name: str, value: float, batch: int) -> EmbeddedTime:
        time = super().time(name, value, batch)
        levels = time[:, None]
        if name in self.clean:
            levels = torch.stack([torch.zeros_like(time), time], dim=1)
        return EmbeddedTime(time, levels, self._cache.model.expert(name).embed_times(levels))


def _last_executed(plan: Plan | None) -> dict[str, int]:
    return {} if plan is None else {name: head.executed[-1] for name, head in plan.heads.items()}
