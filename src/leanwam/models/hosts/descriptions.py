"""What an adapter says of its model: heads, their shares of a step, what can be left out and its ceiling."""

from __future__ import annotations

from typing import Any

import msgspec

from leanwam.plans import TokenLayout


class HeadDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One head of a host.

    Attributes:
        prediction_type: as in diffusers, or None where unknown.
        gated_by: what ``execute`` really skips when this head is held; None: it cannot be gated.
        why: the reason where it cannot, or a remark.
        flops: of one step of this head alone (multiply and add counted as two), or None if not counted.
        share: of a step's FLOPs, or of a call's (``HostDescription.shares_of``), 0…1, or None.
    """

    prediction_type: str | None
    gated_by: str | None
    why: str | None = None
    flops: int | None = None
    share: float | None = None


class Lever(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that can be left out, and the most that it can save.

    Attributes:
        name: what it is.
        how: the plan or option that pulls it.
        saves: share of the FLOPs that fall away, of what ``of`` says; None where not counted.
        of: a forward, a step, a full generation.
        lossless: bit-identical output.
    """

    name: str
    how: str
    saves: float | None
    of: str
    lossless: bool


class HostDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a host's model consists of and what can be left out of it.

    Attributes:
        n_steps: per head, of the sampler as configured.
        flops_per_step: of one step of the whole model, one sample, no guidance.
        levers: what can be left out.
        counted: how the FLOPs were counted; None: they were not.
        shares_of: what the heads' shares are shares of: ``a step``, or ``a call`` where one call was counted.
    """

    host: str
    model: str
    heads: dict[str, HeadDescription]
    n_steps: dict[str, int]
    layout: TokenLayout | None = None
    flops_per_step: int | None = None
    levers: tuple[Lever, ...] = ()
    counted: str | None = None
    shares_of: str = "a step"

    @property
    def share_of_step(self) -> dict[str, float | None]:
        """Per head, its share 0…1 of a step's FLOPs; None where no step was counted.

        A share of operations; a trace's ``share_of_step`` is one of measured time. Depth is a share of a step
        with depth, the others are shares of a step without.
        """
        of_step = self.shares_of == "a step"
        return {name: head.share if of_step else None for name, head in self.heads.items()}

    def to_json(self) -> dict[str, Any]:
        return {**msgspec.to_builtins(self), "share_of_step": self.share_of_step}
