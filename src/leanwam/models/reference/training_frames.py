"""Which video tokens a training update computes, and which of them carry loss: ``Training.frames, loss_frames``."""

from __future__ import annotations

import re

import numpy as np
import torch
from torch import Tensor

from leanwam.models.reference.config import Config
from leanwam.plans import FrameKeep, resolve_frames

_RANDOM = re.compile(r"(keep:\d*\.?\d+|mae25)(?::seed=(\d+))?")


def without_seed(plan: str) -> str:
    """A frame plan's text without the seed of its mask; of a plan with a fixed mask, the text itself."""
    match = _RANDOM.fullmatch(plan)
    return plan if match is None else match.group(1)


class TrainingFrames:
    """The two frame plans of a configuration, for every update.

    A plan with a fixed mask (``drop_middle``) is the same in all updates. A random one (``mae25:seed=S``) is
    drawn anew for each from (training seed, S, update number), as masked autoencoders do (arXiv 2111.06377,
    section 3), so that every token is learnt; what a mask is drawn from does not touch batches and noise.

    Args:
        config: with the plans in ``config.training``.
    """

    def __init__(self, config: Config) -> None:
        training, self._layout = config.training, config.layout()
        self._seed = training.seed
        self._plans = (training.frames, training.loss_frames)
        self._n_clean = config.streams["video"].n_clean_tokens
        self.is_fixed = all(plan is None or without_seed(plan) == plan for plan in self._plans)
        self._fixed = self._drawn(0) if self.is_fixed else None

    def at(self, update: int) -> tuple[Tensor | None, Tensor | None]:
        """For update number ``update``: the video tokens that are computed, and the ones with loss.

        Returns:
            int64 rising indices of kept video tokens (t, v, h, w), and int64 rising indices among the noisy
            video tokens; None where that is all of them, or all that are kept.
        """
        return self._drawn(update) if self._fixed is None else self._fixed

    def _drawn(self, update: int) -> tuple[Tensor | None, Tensor | None]:
        frames, loss = (self._resolved(plan, update) for plan in self._plans)
        keep = None if frames is None or frames.is_all else torch.tensor(frames.video)
        if loss is None or loss.is_all:
            return keep, None
        computed = range(self._layout.n_video) if frames is None else frames.video
        counted = sorted(set(computed) & set(loss.video))
        return keep, torch.tensor([token - self._n_clean for token in counted if token >= self._n_clean])

    def _resolved(self, plan: str | None, update: int) -> FrameKeep | None:
        if plan is None:
            return None
        match = _RANDOM.fullmatch(plan)
        if match is not None:
            entropy = [self._seed, int(match.group(2) or 0), update]
            drawn = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
            plan = f"{match.group(1)}:seed={drawn}"
        return resolve_frames(plan, self._layout)
