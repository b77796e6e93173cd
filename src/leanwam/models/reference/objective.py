"""The training loss: noise at a time per stream, the network's prediction, mean squared error per stream.

Times are shared by the streams for half of the samples and independent for the other half, so that held
features and asynchronous steps are what the network has seen.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from leanwam.models.reference.config import Config, Stream
from leanwam.models.reference.dataset import Batch
from leanwam.models.reference.model import Conditions, ReferenceWAM, StreamTokens

_N_TRAIN = 1000


class NoiseSchedules:
    """Per stream, what the scheduler of its sampler says about noising."""

    def __init__(self, model: ReferenceWAM) -> None:
        self.alphas: dict[str, Tensor | None] = {
            name: None if stream.sampler.is_flow else model.schedulers[name].alphas_cumprod.float()
            for name, stream in model.config.streams.items()
        }

    def noised(self, name: str, stream: Stream, data: Tensor, noise: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        """x_t, the target of the prediction, and the network's time, from uniform u in [0, 1)."""
        shape = (-1, *[1] * (data.ndim - 1))
        alphas = self.alphas[name]
        if alphas is None:
            sigma = u.reshape(shape)
            return torch.lerp(data, noise, sigma), noise - data, u
        index = (u * _N_TRAIN).long().clamp(max=_N_TRAIN - 1)
        signal, spread = alphas[index].sqrt().reshape(shape), (1.0 - alphas[index]).sqrt().reshape(shape)
        x = signal * data + spread * noise
        if stream.sampler.prediction_type == "epsilon":
            target = noise
        elif stream.sampler.prediction_type == "v_prediction":
            target = signal * noise - spread * data
        else:
            target = data
        return x, target, (index + 1.0) / _N_TRAIN


def draw_times(
    config: Config, batch: int, generator: torch.Generator
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Per stream, uniform times [batch] and where the stream is exactly clean (bool [batch])."""
    names = list(config.streams)
    together = torch.rand(batch, generator=generator)
    apart = torch.rand(len(names), batch, generator=generator)
    is_shared = torch.rand(batch, generator=generator) < 0.5
    is_clean = torch.rand(len(names), batch, generator=generator) < config.training.share_clean
    times = {name: torch.where(is_shared, together, apart[i]) for i, name in enumerate(names)}
    return times, {name: is_clean[i] & ~is_shared for i, name in enumerate(names)}


def stream_losses(
    model: ReferenceWAM,
    schedules: NoiseSchedules,
    batch: Batch,
    generator: torch.Generator,
    keep: Tensor | None = None,
    counted_video: Tensor | None = None,
    tokens: Mapping[str, StreamTokens] | None = None,
) -> dict[str, Tensor]:
    """Mean squared error per stream; over the kept tokens only where a frame plan leaves video tokens out.

    Args:
        model: in training mode or not; noise and times do not depend on it.
        schedules: of the model.
        batch: normalised.
        generator: of times and noise: the same draws whatever is left out.
        keep: rising indices of the video tokens that are computed; all by default.
        counted_video: indices among the noisy video tokens of those that carry loss, a part of the kept ones;
            all the kept ones by default.
        tokens: ``token_sets`` of ``keep``, where they are known already.
    """
    config = model.config
    times, clean = draw_times(config, len(batch.task), generator)
    samples, targets, network_times = {}, {}, {}
    for name, stream in config.streams.items():
        data = batch.target[name]
        noise = torch.randn(data.shape, generator=generator)
        x, targets[name], t = schedules.noised(name, stream, data, noise, times[name])
        shape = (-1, *[1] * (data.ndim - 1))
        samples[name] = torch.where(clean[name].reshape(shape), data, x)
        network_times[name] = t.masked_fill(clean[name], 0.0)
    conditions = Conditions(model, batch.task, batch.present, keep, tokens)
    outputs = model.step(conditions, samples, network_times)
    losses = {}
    for name in config.streams:
        error = (outputs[name] - targets[name]).square().flatten(1, -2)
        with_loss = conditions.kept_noisy[name]
        if name == "video" and counted_video is not None:
            with_loss = counted_video
        if with_loss is not None:
            error = error[:, with_loss]
        counted = (~clean[name]).float()
        if error.shape[1] == 0:  # no noisy token is kept: nothing to learn here
            losses[name] = error.sum()
            continue
        losses[name] = (error.mean(dim=(1, 2)) * counted).sum() / counted.sum().clamp(min=1.0)
    return losses


def weighted(config: Config, losses: Mapping[str, Tensor]) -> Tensor:
    """The sum that is minimised."""
    return torch.stack([stream.loss_weight * losses[name] for name, stream in config.streams.items()]).sum()
