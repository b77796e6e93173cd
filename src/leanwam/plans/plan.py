"""The plan as frozen data: a spec (before the number of steps is known) and its resolution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from leanwam.errors import InputError
from leanwam.plans.caches import CACHES, parse_cache
from leanwam.plans.families import family_steps
from leanwam.plans.standins import HOLDS, Hold, standin_weights

#: Streams that a plan given without head names leaves dense: they carry the world model itself.
BACKBONE_STREAMS = ("video", "depth")


class HeadPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one head does: the computed steps, as named by the plan, and the hold for the others."""

    n_steps: int
    computed: tuple[int, ...]
    hold: Hold = "hold"

    def __post_init__(self) -> None:
        if self.n_steps < 1:
            raise InputError("must be at least 1", field="n_steps", value=self.n_steps)
        steps = self.computed
        if not steps or list(steps) != sorted(set(steps)) or steps[0] < 0 or steps[-1] >= self.n_steps:
            raise InputError(
                f"computed steps must be distinct, rising and within 0…{self.n_steps - 1}", value=list(steps)
            )
        if self.hold not in HOLDS:
            raise InputError(f"a hold is one of {', '.join(HOLDS)}", field="hold", value=self.hold)

    @property
    def executed(self) -> tuple[int, ...]:
        """The steps that really run: the computed ones and step 0, which has nothing to hold."""
        return self.computed if self.computed[0] == 0 else (0, *self.computed)

    @property
    def forced_first_step(self) -> bool:
        """Whether the plan leaves step 0 out and so really costs one more."""
        return self.computed[0] != 0

    @property
    def is_dense(self) -> bool:
        return len(self.computed) == self.n_steps

    def standins(self) -> NDArray[np.float64]:
        """The stand-in matrix [n_steps, n_steps] of ``plans.standin_weights``."""
        return standin_weights(self.executed, self.n_steps, self.hold)


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan resolved for a model: one ``HeadPlan`` per head; ``frames`` names a frame plan or is None.

    ``cache`` names another's cache (``first_block:threshold=0.1``), which only a host model runs, or is None.
    """

    name: str
    heads: dict[str, HeadPlan]
    frames: str | None = None
    cache: str | None = None

    def head(self, name: str) -> HeadPlan:
        """The plan of one head; an unknown head names those that are known."""
        if name not in self.heads:
            raise InputError(
                f"the plan has no such head (it has {', '.join(self.heads)})", field="head", value=name
            )
        return self.heads[name]

    @property
    def forced_first_step(self) -> bool:
        return any(head.forced_first_step for head in self.heads.values())

    def to_json(self) -> dict[str, Any]:
        """The object that ``leanwam plan show --json`` prints (cli.md)."""
        steps = {head.n_steps for head in self.heads.values()}
        return {
            "name": self.name,
            "n_steps": steps.pop() if len(steps) == 1 else {h: p.n_steps for h, p in self.heads.items()},
            "heads": {h: {"computed": list(p.computed), "hold": p.hold} for h, p in self.heads.items()},
            "n_computed": {h: len(p.computed) for h, p in self.heads.items()},
            "n_executed": {h: len(p.executed) for h, p in self.heads.items()},
            "forced_first_step": self.forced_first_step,
            "frames": self.frames,
            "cache": self.cache,
        }


class HeadSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule by name (``sparse_10``) or by explicit steps, and its hold, before n is known."""

    plan: str | None = None
    computed: tuple[int, ...] | None = None
    hold: Hold = "hold"

    def __post_init__(self) -> None:
        if (self.plan is None) == (self.computed is None):
            raise InputError("give either plan or computed, not both and not neither", field="plan")

    def resolve(self, n_steps: int) -> HeadPlan:
        steps = family_steps(self.plan, n_steps) if self.plan is not None else self.computed
        assert steps is not None
        return HeadPlan(n_steps=n_steps, computed=tuple(steps), hold=self.hold)


class PlanSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan as written by a person.

    Attributes:
        name: what reports call it.
        default: for every head that is not named and is no backbone stream (video, depth).
        heads: per head.
        frames: a frame plan's text, e.g. ``drop_middle``.
        sampler_steps: for ``plain_K``: run the plain sampler with K steps instead of gating.
        cache: another's cache by name, e.g. ``first_block:threshold=0.1``; see ``plans.caches``.

    Raises:
        InputError: no such cache or parameter, or one that a head plan would lead astray.
    """

    name: str
    default: HeadSpec | None = None
    heads: dict[str, HeadSpec] = msgspec.field(default_factory=dict)
    frames: str | None = None
    sampler_steps: int | None = None
    cache: str | None = None

    def __post_init__(self) -> None:
        if self.cache is None:
            return
        name, _ = parse_cache(self.cache)
        why = CACHES[name].not_with_steps
        gated = [spec for spec in (self.default, *self.heads.values()) if spec and spec.plan != "dense"]
        if why is not None and gated:
            raise InputError(
                f"{name} cannot be combined with a head plan, which leaves calls out: {why}",
                field="plan",
                value=self.name,
            )

    def resolve(self, n_steps: int | Mapping[str, int], heads: Iterable[str]) -> Plan:
        """The plan for a model whose heads take ``n_steps`` steps (one number, or one per head).

        Heads that the plan does not mention stay dense. ``plain_K`` resolves to a dense plan of K steps.

        Raises:
            InputError: the plan names a head that the model lacks, or a step that does not exist.
        """
        names = list(heads)
        unknown = [head for head in self.heads if head not in names]
        if unknown:
            raise InputError(
                f"plan {self.name}: no such head (there is {', '.join(names)})", value=unknown[0]
            )
        resolved: dict[str, HeadPlan] = {}
        for head in names:
            steps = n_steps if isinstance(n_steps, int) else n_steps[head]
            if self.sampler_steps is not None:
                steps = self.sampler_steps
            spec = self.heads.get(head)
            if spec is None and head not in BACKBONE_STREAMS:
                spec = self.default
            resolved[head] = (spec or HeadSpec(plan="dense")).resolve(steps)
        return Plan(name=self.name, heads=resolved, frames=self.frames, cache=self.cache)
