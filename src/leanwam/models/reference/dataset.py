"""Training data in memory: normalised arrays over all observations, batches by indexing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leanwam.errors import InputError
from leanwam.models.reference.codec import PatchCodec
from leanwam.models.reference.config import Affine, Config
from leanwam.models.reference.observation import fit_affine, normalise


@dataclass(frozen=True)
class Episodes:
    """Demonstrations as arrays over observations; episode e owns rows ``start[e] : start[e] + length[e]``.

    Attributes:
        task: names, one per episode.
        proprio: float32 [row, 4].
        action: float32 [row, 4]: the clean label at each observation.
        world: float32 [row, 3, 7], or None.
        pixels: uint8 [row, view, height, width, 3], or None.
    """

    start: NDArray[np.int64]
    length: NDArray[np.int64]
    task: Sequence[str]
    proprio: NDArray[np.float32]
    action: NDArray[np.float32]
    world: NDArray[np.float32] | None = None
    pixels: NDArray[np.uint8] | None = None

    def digest(self) -> str:
        """SHA-256 over everything, 32 hexadecimal digits."""
        hashed = hashlib.sha256("\n".join(self.task).encode())
        for array in (self.start, self.length, self.proprio, self.action, self.world, self.pixels):
            if array is not None:
                hashed.update(np.ascontiguousarray(array).tobytes())
        return hashed.hexdigest()[:32]

    def only(self, tasks: Sequence[str]) -> Episodes:
        """The episodes of these tasks; rows of others stay in memory, unused.

        Raises:
            InputError: a task of which there is no episode.
        """
        missing = [name for name in tasks if name not in set(self.task)]
        if missing:
            raise InputError("there is no demonstration of the task", field="tasks", value=missing[0])
        return self._chosen(np.array([name in set(tasks) for name in self.task]))

    def split(self, n_held_out: int) -> tuple[Episodes, Episodes]:
        """All but the last ``n_held_out`` episodes of each task, in their order, and those; rows are shared.

        Raises:
            InputError: a task would have no episode left.
        """
        left = {name: list(self.task).count(name) for name in set(self.task)}
        for name in sorted(left):
            if left[name] <= n_held_out:
                raise InputError(
                    f"leaves no demonstration of {name}, of which there are {left[name]}",
                    field="training.held_out_episodes",
                    value=n_held_out,
                )
        is_held_out = np.zeros(len(self.task), dtype=bool)
        for index, name in enumerate(self.task):
            is_held_out[index] = left[name] <= n_held_out
            left[name] -= 1
        return self._chosen(~is_held_out), self._chosen(is_held_out)

    def _chosen(self, chosen: NDArray[np.bool_]) -> Episodes:
        kept = [name for name, good in zip(self.task, chosen) if good]
        return Episodes(
            self.start[chosen], self.length[chosen], kept, self.proprio, self.action, self.world, self.pixels
        )


@dataclass(frozen=True)
class Batch:
    """One training batch, normalised.

    Attributes:
        task: int64 [batch].
        present: per stream with clean entries [batch, n_clean_tokens, width].
        target: per stream the data x_0 [batch, *shape].
    """

    task: Tensor
    present: dict[str, Tensor]
    target: dict[str, Tensor]


def prepare_config(
    config: Config,
    episodes: Episodes,
    codec: PatchCodec | None,
    normalization: dict[str, Affine] | None = None,
) -> Config:
    """The configuration with tasks (in alphabetical order) and the given normalisation, or that of these data."""
    tasks = tuple(sorted(set(episodes.task)))
    return msgspec.structs.replace(
        config, tasks=tasks, normalization=normalization or _fit_normalization(config, episodes, codec)
    )


def _fit_normalization(config: Config, episodes: Episodes, codec: PatchCodec | None) -> dict[str, Affine]:
    """Positions of hand, objects and goal share one affine map, so that equal numbers mean equal places."""
    rows = _rows(episodes)
    proprio = episodes.proprio[rows]
    normalization = {"action": Affine((1.0,) * 4, (0.0,) * 4)}
    if codec is None:
        if episodes.world is None:
            raise InputError("this model needs demonstrations with keypoints", field="observation")
        points = episodes.world[rows][:, :, :3].reshape(-1, 3)
        places = np.concatenate([points[np.abs(points).sum(axis=1) > 0], proprio[:, :3]])
        shared = fit_affine(places)
        normalization["video"] = Affine(
            (*shared.scale, 1.0, 1.0, 1.0, 1.0), (*shared.offset, 0.0, 0.0, 0.0, 0.0)
        )
    else:
        shared = fit_affine(proprio[:, :3])
        width = config.streams["video"].width
        normalization["video"] = Affine((1.0,) * width, (0.0,) * width)
    grip = fit_affine(proprio[:, 3:4])
    normalization["proprio"] = Affine((*shared.scale, *grip.scale), (*shared.offset, *grip.offset))
    return normalization


class TrainingData:
    """All observations as tensors, ready to be indexed.

    Args:
        config: prepared (``prepare_config``).
        episodes: the demonstrations.
        codec: for pixels, the fitted codec.
    """

    def __init__(self, config: Config, episodes: Episodes, codec: PatchCodec | None = None) -> None:
        self.config = config
        rows = _rows(episodes)
        if codec is None:
            assert episodes.world is not None
            video = normalise(torch.from_numpy(episodes.world[rows]), config.normalization["video"])
        else:
            if episodes.pixels is None:
                raise InputError("this model needs demonstrations with pixels", field="observation")
            chunks = [
                codec.encode(torch.from_numpy(episodes.pixels[part]))
                for part in np.array_split(rows, max(len(rows) // 512, 1))
            ]
            video = torch.cat(chunks)
        self.entries = {
            "video": video,
            "proprio": normalise(torch.from_numpy(episodes.proprio[rows]), config.normalization["proprio"])[
                :, None
            ],
            "action": normalise(torch.from_numpy(episodes.action[rows]), config.normalization["action"])[
                :, None
            ],
        }
        ends = np.cumsum(episodes.length) - 1
        self.last = np.repeat(ends, episodes.length)
        self.residual_scale = codec.residual_scale if codec is not None else None
        places = {name: index for index, name in enumerate(config.tasks)}
        self.task = np.repeat([places[name] for name in episodes.task], episodes.length)
        weights = np.array([config.training.task_weights.get(name, 1.0) for name in config.tasks])
        self.task_share = weights / weights.sum()
        self.rows_of_task = [np.flatnonzero(self.task == index) for index in range(len(config.tasks))]

    def batch(self, random: np.random.Generator, size: int) -> Batch:
        """Draw tasks by their weights, then observations of them uniformly."""
        tasks = random.choice(len(self.rows_of_task), size=size, p=self.task_share)
        share = random.random(size)
        counts = np.array([len(rows) for rows in self.rows_of_task])
        picked = (share * counts[tasks]).astype(np.int64)
        return self.at(np.array([self.rows_of_task[task][k] for task, k in zip(tasks, picked)]))

    def at(self, rows: NDArray[np.int64]) -> Batch:
        """The batch of these observations; beyond an episode's end its last entry repeats."""
        present: dict[str, Tensor] = {}
        target: dict[str, Tensor] = {}
        for name, stream in self.config.streams.items():
            offsets = np.array(stream.times, dtype=np.int64)
            index = np.minimum(rows[:, None] + offsets, self.last[rows][:, None])
            values = self.entries[name][torch.from_numpy(index)]
            clean, noisy = values[:, : stream.n_clean], values[:, stream.n_clean :]
            if stream.n_clean:
                present[name] = clean.flatten(1, 2)
            if stream.residual:
                noisy = noisy - clean[:, -1:]
                if self.residual_scale is not None:
                    noisy = noisy / self.residual_scale
            target[name] = noisy.reshape(len(rows), *stream.shape)
        return Batch(torch.from_numpy(self.task[rows]), present, target)


def _rows(episodes: Episodes) -> NDArray[np.int64]:
    parts = [np.arange(start, start + length) for start, length in zip(episodes.start, episodes.length)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
