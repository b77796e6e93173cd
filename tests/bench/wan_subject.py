"""Factories as a user writes them, for ``leanwam bench generate --model host:…``; a network of two blocks."""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel

from leanwam.bench.hosts import HostSubject

N_STEPS = 6


def wan(batch=1):
    torch.manual_seed(0)
    net = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
        text_dim=16, freq_dim=16, ffn_dim=32, num_layers=2, rope_max_seq_len=32,
    ).eval().requires_grad_(False)  # fmt: skip
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    text = torch.randn(batch, 5, 16, generator=torch.Generator().manual_seed(1))

    @torch.no_grad()
    def run(seed, n_steps=N_STEPS):
        x = torch.randn(batch, 4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        scheduler.set_timesteps(n_steps)
        for t in scheduler.timesteps:
            x = scheduler.step(net(x, t.expand(batch), text, return_dict=False)[0], t, x).prev_sample
        return x

    return HostSubject(net, run, {"scheduler": scheduler}, {"n_steps": N_STEPS})


def pair():
    """The short form; its call takes no number of steps."""
    subject = wan()
    return subject.model, lambda seed: subject.run(seed)


def wrong():
    return 3
