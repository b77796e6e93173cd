"""Do the predicted frames beat copying the present one? PSNR at every horizon, on demonstrations not trained on.

An error is the mean squared error (MSE) of a frame pair in grey levels, over views, pixels and colours. The gate
compares the PSNR of the mean MSE, ``10 log10(255² / mean MSE)``: a mean of PSNRs over pairs rewards still scenes, in
which copying is exact and its PSNR unbounded. That mean is reported beside it, errors floored at the rounding
error of whole grey levels (1/12).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from leanwam.errors import InputError
from leanwam.models.reference.dataset import Episodes
from leanwam.models.reference.model import ReferenceWAM
from leanwam.models.reference.observation import ObservationBatch
from leanwam.plans import resolve_frames

ROUNDING_MSE = 1.0 / 12.0
_N_RESAMPLES = 2000

Errors = NDArray[np.float64]


@dataclass(frozen=True)
class FramePairs:
    """Presents with futures that lie within their episodes.

    Attributes:
        row: int64 [pair], the present's row.
        episode: int64 [pair], index of its episode.
        task: of each pair.
    """

    row: NDArray[np.int64]
    episode: NDArray[np.int64]
    task: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """What gates: the mean of ``n_samples`` predictions, each sampled in ``n_steps`` video steps."""

    n_steps: int = 10
    n_samples: int = 1

    def __str__(self) -> str:
        what = "one sample" if self.n_samples == 1 else f"the mean of {self.n_samples} samples"
        return f"PSNR of the mean squared error of {what}, {self.n_steps} video steps, above copying's at every horizon"

    @classmethod
    def parse(cls, text: str) -> Rule:
        """``10:1`` → 10 video steps, one sample."""
        parts = text.split(":")
        if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
            raise InputError("wants STEPS:SAMPLES like 10:1", field="--rule", value=text)
        return cls(int(parts[0]), int(parts[1]))


def draw_pairs(episodes: Episodes, n_per_task: int, horizon: int, seed: int) -> FramePairs:
    """Presents drawn uniformly from all of a task's, each with a true frame ``horizon`` steps later.

    Raises:
        InputError: no episode of a task is that long.
    """
    random = np.random.default_rng(seed)
    rows, chosen = [], []
    for name in sorted(set(episodes.task)):
        mine = [index for index, task in enumerate(episodes.task) if task == name]
        here = [np.arange(max(int(episodes.length[e]) - horizon, 0)) + episodes.start[e] for e in mine]
        of = np.repeat(mine, [len(part) for part in here])
        if not len(of):
            raise InputError(f"no episode of {name} is longer than {horizon} steps", field="demos")
        picked = random.choice(len(of), min(n_per_task, len(of)), replace=False)
        rows.append(np.concatenate(here)[picked])
        chosen.append(of[picked])
    episode = np.concatenate(chosen)
    return FramePairs(np.concatenate(rows), episode, tuple(episodes.task[e] for e in episode))


def gate(
    model: ReferenceWAM,
    episodes: Episodes,
    *,
    rule: Rule,
    steps: Sequence[int] = (1, 4, 10),
    n_samples: int = 4,
    n_pairs: int = 24,
    frames: str | None = None,
    seed: int = 0,
    batch: int = 32,
    advance: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure and judge; plain data.

    Args:
        model: on pixels.
        episodes: demonstrations that it was not trained on.
        rule: what gates; its step count and its number of samples are measured too.
        steps: numbers of video sampling steps to report.
        n_samples: samples per pair; single ones and their mean are reported.
        n_pairs: frame pairs per task.
        frames: frame plan; a horizon without a kept and trained token is reported and does not gate.
        seed: of pairs and noise.
        batch: pairs that are sampled together.
        advance: called with network passes done and in all.

    Raises:
        InputError: a model on keypoints, or demonstrations without pixels.
    """
    pixels, codec = episodes.pixels, model.codec
    if codec is None or pixels is None:
        raise InputError("frames are predicted by a model on pixels only", field="checkpoint")
    video = model.config.streams["video"]
    horizons = [int(t) for t in video.times[video.n_clean :]]
    pairs = draw_pairs(episodes, n_pairs, max(horizons), seed)
    now = pixels[pairs.row]
    true = np.stack([pixels[pairs.row + horizon] for horizon in horizons], axis=1)
    copied = squared_error(now[:, None], true)
    ceiling = squared_error(_through_codec(model, now, true), true)
    summary = _Summary(pairs, horizons, copied)
    wanted = dict.fromkeys(steps, n_samples)
    wanted[rule.n_steps] = max(rule.n_samples, wanted.get(rule.n_steps, 1))
    n_passes, done = sum(n * k for n, k in wanted.items()), 0
    predictions: list[dict[str, Any]] = []
    gating: dict[str, Any] | None = None
    for n, k in sorted(wanted.items()):
        single = np.zeros_like(copied)
        total = np.zeros(true.shape, np.float32)
        for sample in range(k):
            made = _predicted(model, episodes, pairs, now, n, frames, [seed, sample], batch)
            single += squared_error(made, true) / k
            total += made
            if sample + 1 == rule.n_samples and n == rule.n_steps:
                gating = summary.row(squared_error(total / rule.n_samples, true))
            done += n
            if advance is not None:
                advance(done, n_passes)
        predictions.append(
            {"video_steps": n, "what": f"one sample (mean error of {k})", **summary.row(single)}
        )
        if k > 1:
            mean = summary.row(squared_error(total / k, true))
            predictions.append({"video_steps": n, "what": f"mean of {k} samples", **mean})
    assert gating is not None
    gated = _trained_horizons(model, frames, horizons)
    beaten = {str(h): gating["horizons"][str(h)]["gain_db"] > 0.0 for h in gated}
    return {
        "rule": str(rule),
        "passes": bool(gated) and all(beaten.values()),
        "beats_copy_current": beaten,
        "does_not_gate": [h for h in horizons if h not in gated],
        "frames": frames or "keep_all",
        "n_pairs": len(pairs.row),
        "n_episodes": len(set(pairs.episode.tolist())),
        "copy_current": summary.row(copied),
        "codec_ceiling": summary.row(ceiling),
        "gate": gating,
        "predictions": predictions,
    }


def squared_error(made: NDArray[Any], true: NDArray[np.uint8]) -> Errors:
    """MSE per pair and horizon, [pair, horizon], from frames [pair, horizon, view, height, width, colour]."""
    errors = np.empty(true.shape[:2])
    for index in range(len(true)):  # pair by pair: the whole difference would not be small
        difference = made[index].astype(np.float32) - true[index]
        errors[index] = np.square(difference).mean(axis=(1, 2, 3, 4), dtype=np.float64)
    return errors


def psnr(mse: Any) -> Any:
    """Peak signal-to-noise ratio in dB of errors in grey levels of 0…255."""
    return 10.0 * np.log10(255.0**2 / np.maximum(mse, ROUNDING_MSE))


class _Summary:
    """Errors [pair, horizon] as figures, each compared with copying on the same pairs."""

    def __init__(self, pairs: FramePairs, horizons: Sequence[int], copied: Errors) -> None:
        self.pairs, self.horizons, self.copied = pairs, horizons, copied
        names, place = np.unique(pairs.episode, return_inverse=True)
        counts = np.random.default_rng(0).multinomial(
            len(names), np.full(len(names), 1 / len(names)), _N_RESAMPLES
        )
        self.weights = counts[:, place].astype(np.float64)  # [resample, pair]

    def row(self, errors: Errors) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for index, horizon in enumerate(self.horizons):
            mine, copy = errors[:, index], self.copied[:, index]
            resampled = psnr(self.weights @ mine / self.weights.sum(1)) - psnr(
                self.weights @ copy / self.weights.sum(1)
            )
            low, high = np.quantile(resampled, [0.025, 0.975])
            found[str(horizon)] = {
                "psnr_of_mean_mse_db": float(psnr(mine.mean())),
                "mean_psnr_db": float(psnr(mine).mean()),
                "n_exact": int((mine < ROUNDING_MSE).sum()),
                "gain_db": float(psnr(mine.mean()) - psnr(copy.mean())),
                "gain_interval_db": [float(low), float(high)],
                "tasks_db": {name: float(psnr(mine[of].mean())) for name, of in self._tasks().items()},
            }
        return {"horizons": found}

    def _tasks(self) -> dict[str, NDArray[np.bool_]]:
        names = np.array(self.pairs.task)
        return {str(name): names == name for name in np.unique(names)}


def _predicted(
    model: ReferenceWAM,
    episodes: Episodes,
    pairs: FramePairs,
    now: NDArray[np.uint8],
    n_steps: int,
    frames: str | None,
    entropy: Sequence[int],
    batch: int,
) -> NDArray[np.uint8]:
    """One sample of every pair's futures, uint8 [pair, horizon, view, height, width, colour]."""
    keep = None if frames is None else resolve_frames(frames, model.config.layout()).video
    seeds = np.random.default_rng(entropy).integers(2**31, size=len(now)).tolist()
    made = []
    for first in range(0, len(now), batch):
        part = slice(first, first + batch)
        seen = ObservationBatch(pairs.task[part], episodes.proprio[pairs.row[part]], pixels=now[part])
        generated = model.generate(seen, seeds[part], n_steps={"video": n_steps}, keep=keep, until=("video",))
        made.append(np.asarray(generated.video))
    return np.concatenate(made)


def _through_codec(model: ReferenceWAM, now: NDArray[np.uint8], true: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The present plus the true change as the codec can express it: what a perfect prediction would show."""
    codec, grid = model.codec, model.config.streams["video"].grid
    assert codec is not None
    made = np.empty_like(true)
    for index in range(true.shape[1]):
        for part in np.array_split(np.arange(len(now)), max(len(now) // 64, 1)):
            present, future = (codec.encode(torch.from_numpy(x)) for x in (now[part], true[part, index]))
            shown = torch.from_numpy(now[part]).float() + codec.decode_change(future - present, grid)
            made[part, index] = shown.round().clamp(0.0, 255.0).to(torch.uint8).numpy()
    return made


def _trained_horizons(model: ReferenceWAM, frames: str | None, horizons: Sequence[int]) -> list[int]:
    """The horizons of which the model computes a token that carried loss in training."""
    layout, training = model.config.layout(), model.config.training
    kept = np.ones((layout.t, layout.n_per_frame), dtype=bool)
    for plan in (frames, training.loss_frames):
        if plan is not None:
            kept &= resolve_frames(plan, layout).mask().reshape(kept.shape)
    n_clean = layout.t - len(horizons)
    return [horizon for index, horizon in enumerate(horizons) if kept[n_clean + index].any()]
