"""A diffusers WanTransformer3DModel at tiny size with random weights, for ``leanwam bench generate``.

    leanwam bench generate --model host:bench/wan_tiny.py:wan --plans "dense;video=sparse_5"

It shows what plans and caches leave out and what they cost to run. Random weights say nothing about quality.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel

from leanwam.bench.hosts import HostSubject

LATENT = (4, 5, 8, 8)
N_STEPS = 20


def network() -> Any:
    """Six blocks of width 48, 80 video tokens."""
    torch.manual_seed(0)
    net = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=24, in_channels=4, out_channels=4,
        text_dim=32, freq_dim=32, ffn_dim=192, num_layers=6, rope_max_seq_len=64,
    )  # fmt: skip
    return net.eval().requires_grad_(False)


def wan(batch: int = 1, device: str = "cpu") -> HostSubject:
    """Euler sampling of a flow model in 20 steps, text fixed, no guidance."""
    net = network().to(device)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    text = torch.randn(batch, 16, 32, generator=torch.Generator().manual_seed(1)).to(device)

    @torch.no_grad()
    def run(seed: int, n_steps: int = N_STEPS) -> torch.Tensor:
        x = torch.randn(batch, *LATENT, generator=torch.Generator().manual_seed(seed)).to(device)
        scheduler.set_timesteps(n_steps, device=device)
        for t in scheduler.timesteps:
            out = net(x, t.expand(batch), text, return_dict=False)[0]
            x = scheduler.step(out, t, x, return_dict=False)[0]
        return x

    return HostSubject(net, run, {"scheduler": scheduler}, {"n_steps": N_STEPS})
