"""Experts, groups and heads: the mixture of transformers.

An expert holds one stream's weights. A group runs its streams' experts layer by layer with joint attention;
beside its own keys and values it reads those of an earlier group (``memory``). A head is what runs once per
denoising step for one stream: where a stream is alone in its group the whole group belongs to its head, so
that skipping the head skips the computation; where streams read each other the group is shared, and runs as
soon as one of their heads does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leanwam.models.reference.config import Config, Stream
from leanwam.models.reference.layers import Block, fourier_features, rotary_table, time_features

#: Per layer, the keys and values [batch, token, head, head_width] of a group.
Memory = tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True)
class StreamInput:
    """What an expert gets at one step.

    Attributes:
        tokens: [batch, token, width], clean ones first, then the noisy ones.
        times: [batch, level] denoising times, 1 = noise, 0 = data.
        level: [token] which of the times a token has; None where there is only one.
        context: [batch, expert width]: task and present proprio, the same at every step.
        table: rotary table of the tokens' original positions.
        n_clean: how many of the tokens are clean.
        embedded: what ``Expert.time`` makes of the times, where that is known already.
    """

    tokens: Tensor
    times: Tensor
    level: Tensor | None
    context: Tensor
    table: tuple[Tensor, Tensor]
    n_clean: int
    embedded: Tensor | None = None


class Expert(nn.Module):
    """One stream's own weights: embedding, context, modulation, blocks, output."""

    def __init__(self, config: Config, stream: Stream) -> None:
        super().__init__()
        width = config.width
        features = 1 + 2 * config.n_fourier
        self.n_fourier, self.width, self.skip = config.n_fourier, width, stream.skip
        self.embed = nn.Linear(stream.width * features, width)
        self.task = nn.Embedding(max(len(config.tasks), 1), width)
        self.present = nn.Sequential(
            nn.Linear(config.streams["proprio"].width * features, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.modulation = nn.Linear(width, 6 * width)
        self.blocks = nn.ModuleList(
            Block(width, config.n_heads, config.mlp_ratio) for _ in range(config.n_layers)
        )
        self.out_modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, stream.width)
        nn.init.normal_(self.task.weight, std=0.5)
        for layer in (self.modulation, self.out_modulation, self.out):
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.modulation.weight, std=0.02)
        nn.init.normal_(self.out_modulation.weight, std=0.02)
        nn.init.normal_(self.out.weight, std=0.02)

    def context(self, task: Tensor, present: Tensor) -> Tensor:
        """Task and present proprio as one vector [batch, width]."""
        context: Tensor = self.task(task) + self.present(fourier_features(present, self.n_fourier))
        return context

    def enter(self, given: StreamInput) -> tuple[Tensor, Tensor]:
        """Token states [batch, token, width] and the conditioning [batch, level, width] of the modulations."""
        x = self.embed(fourier_features(given.tokens, self.n_fourier)) + given.context[:, None]
        embedded = self.embed_times(given.times) if given.embedded is None else given.embedded
        return x, F.silu(embedded + given.context[:, None])

    def embed_times(self, times: Tensor) -> Tensor:
        """Denoising times [batch, level] as vectors [batch, level, width]; the same whatever is observed."""
        embedded: Tensor = self.time(time_features(times, self.width))
        return embedded

    def leave(self, x: Tensor, condition: Tensor, given: StreamInput) -> Tensor:
        """The model output of the noisy tokens [batch, noisy token, width]; they have the last level's time."""
        shift, scale = self.out_modulation(condition[:, -1:]).chunk(2, dim=-1)
        x = F.layer_norm(x[:, given.n_clean :], x.shape[-1:])
        output: Tensor = self.out(torch.addcmul(shift, x, scale + 1.0))
        if self.skip:
            output = torch.addcmul(
                output, linear_flow(given.times[:, -1:, None]), given.tokens[:, given.n_clean :]
            )
        return output


class Group(nn.Module):
    """Streams that read each other, run jointly."""

    def __init__(self, config: Config, names: tuple[str, ...]) -> None:
        super().__init__()
        self.n_layers = config.n_layers
        self.experts = nn.ModuleDict({name: Expert(config, config.streams[name]) for name in names})

    def forward(
        self, inputs: dict[str, StreamInput], memories: tuple[Memory, ...]
    ) -> tuple[dict[str, Tensor], Memory]:
        """Run all layers.

        Args:
            inputs: per stream of this group; one that is missing is not run.
            memories: of the groups that this one reads, and of its own streams that are not run.

        Returns:
            per stream the model output of its noisy tokens, and the memory of the streams that ran, joined.
        """
        names = [name for name in self.experts if name in inputs]
        experts: list[Expert] = [self.experts[name] for name in names]  # type: ignore[misc]
        states, conditions, shared = [], [], []
        for name, expert in zip(names, experts):
            x, condition = expert.enter(inputs[name])
            states.append(x)
            conditions.append(condition)
            shared.append(expert.modulation(condition))
        lengths = [x.shape[1] for x in states]
        memory: list[tuple[Tensor, Tensor]] = []
        for layer in range(self.n_layers):
            blocks: list[Block] = [expert.blocks[layer] for expert in experts]  # type: ignore[misc]
            parts = [
                block.modulate(value, inputs[name].level) for name, block, value in zip(names, blocks, shared)
            ]
            projected = [
                block.project(x, part[0], part[1], inputs[name].table)
                for name, block, x, part in zip(names, blocks, states, parts)
            ]
            q, k, v = (_joined([p[i] for p in projected]) for i in range(3))
            memory.append((k, v))
            keys = _joined([k, *(m[layer][0] for m in memories)])
            values = _joined([v, *(m[layer][1] for m in memories)])
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
            ).transpose(1, 2)
            pieces = torch.split(attended.flatten(2), lengths, dim=1)
            states = [
                block.finish(x, piece, part) for block, x, piece, part in zip(blocks, states, pieces, parts)
            ]
        outputs = {
            name: expert.leave(x, condition, inputs[name])
            for name, expert, x, condition in zip(names, experts, states, conditions)
        }
        return outputs, tuple(memory)


class GroupCall:
    """One group at one step: runs when a head first asks, then answers from what it computed."""

    def __init__(self, group: Group, inputs: dict[str, StreamInput], memories: tuple[Memory, ...]) -> None:
        self.inputs = inputs
        self._run: Callable[[], tuple[dict[str, Tensor], Memory]] = lambda: group(inputs, memories)
        self._result: tuple[dict[str, Tensor], Memory] | None = None

    def __call__(self) -> tuple[dict[str, Tensor], Memory]:
        if self._result is None:
            self._result = self._run()
        return self._result


class StreamHead(nn.Module):
    """What runs once per step for one stream.

    Args:
        name: the stream.
        group: the group, where the stream is alone in it; it is then this head's own submodule.
        is_read: the stream's memory is read by a later group, so it is part of the head's output.
    """

    def __init__(self, name: str, group: Group | None, *, is_read: bool, stream: Stream) -> None:
        super().__init__()
        self.name, self.is_read, self.stream = name, is_read, stream
        self.group = group

    def forward(
        self, call: GroupCall, timestep: Tensor, kept: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Memory]:
        """The model output [batch, *shape of the stream], and the memory where a later group reads it.

        Args:
            call: the stream's group at this step.
            timestep: [batch] time of the noisy tokens, 1 = noise (the group has it in its inputs too).
            kept: indices of the kept tokens among the noisy ones; the others are exactly zero in the output.
        """
        outputs, memory = call()
        output = outputs[self.name]
        if kept is not None:
            n_noisy = self.stream.n_noisy * self.stream.tokens_per_entry
            whole = output.new_zeros(output.shape[0], n_noisy, output.shape[2])
            output = whole.index_copy(1, kept, output)
        output = output.reshape(output.shape[0], *self.stream.shape)
        return (output, memory) if self.is_read else output


def linear_flow(t: Tensor) -> Tensor:
    """Factor k of the best linear guess k · x_t of the flow ``noise − data`` where both have variance 1.

    x_t = (1 − t) data + t noise, so k = (2t − 1) / ((1 − t)² + t²): 1 in pure noise, −1 in clean data. What an
    expert adds to it no longer has to carry the noise through its layers (compare the skip of Karras et al. 2022,
    arXiv 2206.00364, table 1).
    """
    return (2.0 * t - 1.0) / ((1.0 - t).square() + t.square())


def token_positions(stream: Stream) -> Tensor:
    """Original positions [token, 3] (time, row, column); views lie side by side, one column apart."""
    views, rows, columns = stream.grid
    cells = [
        (float(time), float(row), float(view * (columns + 1) + column))
        for time in stream.times
        for view in range(views)
        for row in range(rows)
        for column in range(columns)
    ]
    return torch.tensor(cells, dtype=torch.float32)


def stream_table(stream: Stream, head_width: int, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The rotary table of a stream's tokens, or of those kept: their original positions, never recounted."""
    positions = token_positions(stream)
    return rotary_table(positions if keep is None else positions[keep], head_width)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
