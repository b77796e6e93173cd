"""A small frozen patch codec for pixel observations: principal components of image patches.

A patch of ``patch`` × ``patch`` pixels is one token; its latent are its coordinates along the leading
principal components of the training patches, divided by a common scale so that the leading ones stay the
largest. Futures are predicted as differences from the present latent, divided by ``residual_scale``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from leanwam.errors import InputError

if TYPE_CHECKING:
    from leanwam.models.reference.config import Config
    from leanwam.models.reference.dataset import Episodes


class PatchCodec(nn.Module):
    """Encode views to patch latents and back; fitted once (``fit``), then frozen.

    Args:
        patch: edge of a patch in pixels.
        width: numbers per patch.
    """

    mean: Tensor
    components: Tensor
    scale: Tensor
    residual_scale: Tensor

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch, self.width = patch, width
        n = patch * patch * 3
        if width > n:
            raise InputError(f"a patch has only {n} numbers", field="codec.width", value=width)
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("components", torch.eye(width, n))
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("residual_scale", torch.ones(width))

    def fit(self, pixels: Tensor, later: Tensor, residual_clamp: float = 0.0) -> None:
        """Fit on uint8 views [n, view, height, width, 3] and the same scenes some steps later.

        ``residual_clamp``: see ``config.Codec``.
        """
        patches = self._patches(pixels).flatten(0, 1)
        self.mean.copy_(patches.mean(dim=0))
        centred = patches - self.mean
        _, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
        self.components.copy_(vectors[:, -self.width :].flip(1).T)
        self.scale.fill_(1.0)
        self.residual_scale.fill_(1.0)
        latent = self.encode(pixels)
        deviation = latent.flatten(0, -2).std(dim=0)
        self.scale.copy_(deviation.clamp(min=0.1 * float(deviation.max())) * 2.0)
        moved = self.encode(later) - self.encode(pixels)
        rms = moved.flatten(0, -2).pow(2).mean(dim=0).sqrt().clamp(min=1e-3)
        if residual_clamp > 0.0:
            in_pixels = rms * self.scale
            rms = in_pixels.clamp(min=residual_clamp * float(in_pixels.max())) / self.scale
        self.residual_scale.copy_(rms)

    def encode(self, pixels: Tensor) -> Tensor:
        """uint8 [batch, view, height, width, 3] → float32 [batch, token, width], tokens as (view, row, column)."""
        return ((self._patches(pixels) - self.mean) @ self.components.T) / self.scale

    def decode(self, latent: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """float32 [batch, token, width] → uint8 [batch, view, height, width, 3]."""
        image = self._image((latent * self.scale) @ self.components + self.mean, grid)
        return ((image.clamp(-1.0, 1.0) + 1.0) * 127.5).round().to(torch.uint8)

    def decode_change(self, difference: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """A difference of latents as a difference of grey levels, float32 [batch, view, height, width, 3]."""
        return self._image((difference * self.scale) @ self.components, grid) * 127.5

    def _image(self, patches: Tensor, grid: tuple[int, int, int]) -> Tensor:
        views, rows, columns = grid
        image = patches.reshape(-1, views, rows, columns, self.patch, self.patch, 3).transpose(3, 4)
        return image.reshape(-1, views, rows * self.patch, columns * self.patch, 3)

    def _patches(self, pixels: Tensor) -> Tensor:
        batch, views, height, width, _ = pixels.shape
        if height % self.patch or width % self.patch:
            raise InputError(
                f"the views' height and width must be multiples of {self.patch}",
                field="pixels",
                value=(height, width),
            )
        image = pixels.float() / 127.5 - 1.0
        rows, columns = height // self.patch, width // self.patch
        cut = image.reshape(batch, views, rows, self.patch, columns, self.patch, 3).transpose(3, 4)
        return cut.reshape(batch, views * rows * columns, -1)


def fit_codec(config: Config, episodes: Episodes, *, seed: int, n_frames: int = 2000) -> PatchCodec:
    """The codec of a configuration, fitted on frames drawn from the demonstrations and those 8 steps later."""
    if config.codec is None or episodes.pixels is None:
        raise InputError("this model needs demonstrations with pixels", field="observation")
    rows = np.concatenate(
        [
            np.arange(start, start + max(length - 8, 1))
            for start, length in zip(episodes.start, episodes.length)
        ]
    )
    last = np.repeat(episodes.start + episodes.length - 1, [max(length - 8, 1) for length in episodes.length])
    picked = np.sort(np.random.default_rng(seed).choice(len(rows), min(n_frames, len(rows)), replace=False))
    codec = PatchCodec(config.codec.patch, config.codec.width)
    now, later = rows[picked], np.minimum(rows[picked] + 8, last[picked])
    codec.fit(
        torch.from_numpy(episodes.pixels[now]),
        torch.from_numpy(episodes.pixels[later]),
        config.codec.residual_clamp,
    )
    return codec
