"""How X-WAM's operations divide: counted from its configuration, multiply and add as two.

The same convention as ``torch.utils.flop_counter``: matrix products, convolutions and attention count;
norms, activations and rotary embeddings do not. ``docs/hosts/xwam.md`` names the run of torch's counter on
the real configuration that this agrees with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leanwam.models.hosts.descriptions import HeadDescription, HostDescription, Lever
from leanwam.plans import TokenLayout, resolve_frames


@dataclass(frozen=True)
class XWAMShape:
    """The sizes that decide the count; the defaults are the released RoboCasa model."""

    dim: int = 3072
    ffn_dim: int = 14336
    n_layers: int = 30
    n_depth_layers: int = 10
    n_depth_branches: int = 1
    text_len: int = 512
    text_dim: int = 4096
    freq_dim: int = 256
    in_dim: int = 48
    out_dim: int = 48
    action_dim: int = 14
    proprio_dim: int = 16
    patch: tuple[int, int, int] = (1, 2, 2)

    @classmethod
    def of(cls, network: Any) -> XWAMShape:
        """Read off an ``XWAMModel``."""
        return cls(
            dim=network.dim,
            ffn_dim=network.ffn_dim,
            n_layers=network.num_layers,
            n_depth_layers=network.num_extra_layers,
            n_depth_branches=network.num_modalities - 1,
            text_len=network.text_len,
            text_dim=network.text_dim,
            freq_dim=network.freq_dim,
            in_dim=network.in_dim,
            out_dim=network.out_dim,
            action_dim=network.action_dim,
            proprio_dim=network.proprio_dim,
            patch=tuple(network.patch_size),
        )


def count_forward(
    shape: XWAMShape, layout: TokenLayout, *, n_kept_video: int | None = None, depth: bool = False
) -> dict[str, int]:
    """FLOPs of one forward of one sample, by part; ``total`` is their sum.

    Parts: ``blocks``, ``text`` (the embedding and every block's keys and values of it: the same at every
    step), ``time``, ``patches`` (embedding and head), ``coders`` (action and proprio), ``depth``.
    """
    d, text = shape.dim, shape.text_len
    n_extra = sum(layout.extra.values())
    video = layout.n_video if n_kept_video is None else n_kept_video
    tokens = video + n_extra

    def block(n: int, n_keys: int) -> int:
        projections = 2 * n * d * d * 6  # q k v o of self-attention, q and o of cross-attention
        attention = 4 * n * n_keys * d + 4 * n * text * d
        return projections + attention + 4 * n * d * shape.ffn_dim

    text_kv = 4 * text * d * d
    patch = math.prod(shape.patch)
    counts = {
        "blocks": shape.n_layers * block(tokens, tokens),
        "text": shape.n_layers * text_kv + 2 * text * d * (shape.text_dim + d),
        "time": 2 * tokens * d * (shape.freq_dim + d + 6 * d),
        "patches": 2 * layout.n_video * d * patch * shape.in_dim + 2 * video * d * patch * shape.out_dim,
        "coders": sum(coder_flops(shape, layout.extra).values()),
    }
    if depth:
        one = shape.n_depth_layers * (block(video, video + tokens) + text_kv)
        counts["depth"] = shape.n_depth_branches * (one + 2 * video * d * patch * shape.out_dim)
    return {**counts, "total": sum(counts.values())}


def coder_flops(shape: XWAMShape, lengths: Mapping[str, int]) -> dict[str, int]:
    """What encodes and decodes the action and the proprio tokens: two layers each."""
    sizes = {"action": shape.action_dim, "proprio": shape.proprio_dim}
    return {
        name: 4 * shape.dim * length * (sizes[name] + shape.dim)
        for name, length in lengths.items()
        if name in sizes
    }


def describe_xwam(network: Any, layout: TokenLayout, n_steps: dict[str, int], model: str) -> HostDescription:
    """Heads, shares and ceilings of one ``XWAMModel`` on a token layout."""
    shape = XWAMShape.of(network)
    plain = count_forward(shape, layout)
    total = plain["total"]
    coders = coder_flops(shape, layout.extra)
    skipped = "the whole network call, at steps where every stream that is being denoised holds"
    heads = {
        "video": HeadDescription(
            prediction_type="flow",
            gated_by=skipped,
            why=f"{layout.n_video} of {layout.n_tokens} tokens",
            flops=total - sum(coders.values()),
            share=1 - sum(coders.values()) / total,
        ),
    }
    for name, flops in coders.items():
        why = "its tokens run through the shared blocks; alone it has its coders"
        heads[name] = HeadDescription("flow", skipped, why=why, flops=flops, share=flops / total)
    if shape.n_depth_branches:
        with_depth = count_forward(shape, layout, depth=True)
        heads["depth"] = HeadDescription(
            prediction_type=None,
            gated_by=None,
            why="only its last step is read: execute(..., depth_last_only=True)",
            flops=with_depth["depth"],
            share=with_depth["depth"] / with_depth["total"],
        )
    return HostDescription(
        host="X-WAM",
        model=model,
        heads=heads,
        n_steps=n_steps,
        layout=layout,
        flops_per_step=total,
        levers=tuple(_levers(shape, layout, plain, n_steps)),
        counted="analytic, from the configuration; one sample, no guidance, no depth",
    )


def _levers(
    shape: XWAMShape, layout: TokenLayout, plain: dict[str, int], n_steps: dict[str, int]
) -> list[Lever]:
    total = plain["total"]
    levers = [
        Lever(
            "text keys and values",
            "they do not change over the steps",
            plain["text"] / total,
            "a forward",
            True,
        )
    ]
    if layout.t >= 3:
        kept = len(resolve_frames("drop_middle", layout).video)
        thin = count_forward(shape, layout, n_kept_video=kept)["total"]
        levers.append(Lever("middle frames", "frames=drop_middle", 1 - thin / total, "a forward", False))
    steps = n_steps.get("video")
    if shape.n_depth_branches and steps:
        with_depth = count_forward(shape, layout, depth=True)
        saved = (steps - 1) * with_depth["depth"] / (steps * with_depth["total"])
        levers.append(Lever("depth branch", "depth_last_only=True", saved, "a full generation", True))
    return levers
