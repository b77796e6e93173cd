"""diffusers itself, at tiny size with random weights: a Wan transformer in a loop and in a pipeline."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
from diffusers.hooks.first_block_cache import FBCHeadBlockHook
from torch import nn

from leanwam.errors import InputError, LeanwamError
from leanwam.models.frames import fill_dropped
from leanwam.models.hosts import host
from leanwam.plans import TokenLayout, resolve_frames
from leanwam.traces import open_trace

SHAPE = (4, 3, 8, 8)
LAYOUT = TokenLayout(t=3, v=1, h=4, w=4)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
        text_dim=16, freq_dim=16, ffn_dim=32, num_layers=3, rope_max_seq_len=32,
    ).eval()  # fmt: skip


class Loop:
    """A loop of the user's own around a denoiser and a scheduler; ``branches=2`` is guidance in two calls."""

    def __init__(self, net, steps=8, branches=1, per_token=False):
        self.net, self.steps, self.branches, self.per_token = net, steps, branches, per_token
        self.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)

    def __call__(self, seed=0):
        noise = torch.Generator().manual_seed(seed)
        x = torch.randn(2, *SHAPE, generator=noise)
        texts = [torch.randn(2, 5, 16, generator=noise) for _ in range(self.branches)]
        self.scheduler.set_timesteps(self.steps)
        with torch.no_grad():
            for t in self.scheduler.timesteps:
                time = t.expand(2, LAYOUT.n_tokens).clone() if self.per_token else t.expand(2)
                outs = [
                    self.net(hidden_states=x, timestep=time, encoder_hidden_states=text, return_dict=False)[0]
                    for text in texts
                ]
                out = outs[0] if self.branches == 1 else outs[1] + 2 * (outs[0] - outs[1])
                x = self.scheduler.step(out, t, x, return_dict=False)[0]
        return x


def assert_clean(net):
    for module in net.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


@pytest.mark.parametrize(("branches", "per_token"), [(1, False), (2, False), (1, True)])
def test_dense_and_keep_all_are_the_untouched_model(net, branches, per_token):
    loop = Loop(net, branches=branches, per_token=per_token)
    untouched, keys = loop(), list(net.state_dict())
    for plan in ("dense", "frames=keep_all"):
        with host(net, scheduler=loop.scheduler).execute(plan, n_branches=branches) as running:
            assert torch.equal(loop(), untouched)
            assert list(net.state_dict()) == keys
        assert running.executions == {"video": 8 * branches}
    assert_clean(net)
    assert torch.equal(loop(), untouched)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("frames", ["drop_middle", "keep:0.5:seed=1"])
def test_a_frame_plan_equals_attention_masked_by_hand(net, frames, per_token):
    """The oracle leaves the sequence whole: dropped tokens are hidden from every query's attention."""
    keep = resolve_frames(frames, LAYOUT)
    gone = torch.from_numpy(~keep.mask().ravel())
    x, text = torch.randn(1, *SHAPE), torch.randn(1, 5, 16)
    time = torch.linspace(100, 900, LAYOUT.n_tokens)[None] if per_token else torch.tensor([500.0])
    call = lambda: net(x, time, text, return_dict=False)[0]  # noqa: E731
    with torch.no_grad(), host(net).frames(frames) as thinning:
        thin = call()
    assert thinning.n_calls == 1
    attention = torch.nn.functional.scaled_dot_product_attention

    def masked(query, key, value, attn_mask=None, **options):
        if key.shape[-2] == LAYOUT.n_tokens:
            attn_mask = torch.zeros(1, key.shape[-2]).masked_fill(gone, float("-inf"))
        return attention(query, key, value, attn_mask=attn_mask, **options)

    torch.nn.functional.scaled_dot_product_attention = masked
    try:
        with torch.no_grad():
            whole = call()
    finally:
        torch.nn.functional.scaled_dot_product_attention = attention
    kept = torch.from_numpy(keep.mask()[:, 0]).repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert torch.allclose(thin[0, :, kept], whole[0, :, kept], atol=1e-5)
    assert bool((thin[0, :, ~kept] == 0).all())


def test_steps_are_skipped_and_counted(net):
    loop = Loop(net)
    untouched = loop()
    with host(net, scheduler=loop.scheduler).execute("video=sparse_4/taylor2,frames=drop_middle") as running:
        assert not torch.equal(loop(), untouched)
    assert running.executions == {"video": 4}
    assert running.counters == {"network": 4, "blocks": 4 * 3, "attention": 4 * 3}
    assert running.thinning.n_calls == 4


@pytest.mark.parametrize("branches", [1, 2])
def test_a_cache_of_diffusers_is_named_by_the_plan(net, branches):
    loop = Loop(net, branches=branches)
    untouched = loop()
    adapter = host(net, scheduler=loop.scheduler)
    with adapter.execute("cache:first_block:threshold=0.5", n_branches=branches) as running:
        first, second = loop(), loop()
    assert torch.equal(first, second)  # its state starts anew with every call
    assert not torch.equal(first, untouched)
    counters = running.counters
    n_calls = 2 * 8 * branches
    assert counters["network"] == n_calls
    assert n_calls < counters["blocks"] < 3 * n_calls
    assert (counters["blocks"] - n_calls) % 2 == 0  # one block each time, and the other two or not
    with adapter.execute("cache:first_block:threshold=0.0", n_branches=branches) as running:
        assert torch.allclose(loop(), untouched, atol=1e-5)
    assert running.counters["blocks"] == running.counters["attention"] == 8 * branches * 3
    assert_clean(net)
    assert torch.equal(loop(), untouched)


@pytest.mark.parametrize(
    "text",
    [
        "taylorseer:cache_interval=3:disable_cache_before_step=2:cache_identifiers=['blocks.*attn1']",
        "pab:spatial_attention_block_skip_range=2",
        "seacache:threshold=0.5",
        "magcache:mag_ratios=[1.0,0.99,0.98,0.97,0.96,0.95,0.94,0.93]:num_inference_steps=8:threshold=0.5",
    ],
)
def test_other_caches_run_and_leave_the_model_as_it_was(net, text):
    loop = Loop(net)
    untouched = loop()
    with host(net, scheduler=loop.scheduler).execute("dense", cache=text) as running:
        assert bool(torch.isfinite(loop()).all())
    assert running.counters["attention"] < 8 * 3
    assert torch.equal(loop(), untouched)


def test_a_cache_that_fails_in_its_own_code_is_one_line(net, monkeypatch):
    """As FasterCache of diffusers 0.42 does on some loops; a failure of the caller's own code stays what it is."""
    loop = Loop(net)
    loop()
    scope = {"__name__": "diffusers.hooks.broken"}
    exec("def new_forward(self, module, *args, **kwargs):\n    return args[9]", scope)
    monkeypatch.setattr(FBCHeadBlockHook, "new_forward", scope["new_forward"])
    adapter = host(net, scheduler=loop.scheduler)
    message = "cache:first_block does not work on this model: IndexError in diffusers.hooks.broken, line 2"
    with pytest.raises(LeanwamError, match=message), adapter.execute("cache:first_block"):
        loop()
    assert not net.is_cache_enabled
    with pytest.raises(ZeroDivisionError), adapter.execute("cache:first_block"):
        _ = 1 / 0


def test_what_a_cache_plan_refuses(net, monkeypatch):
    monkeypatch.setitem(sys.modules, "cache_dit", None)
    for text, rule in (
        ("cache:magcache", "mag_ratios"),
        ("cache:cache_dit:Fn_compute_blocks=1", "pip install cache-dit"),
        ("cache:taylorseer", "found nothing to cache in WanTransformer3DModel"),
        ("cache:taylorseer:taylor_factors_dtype=float33", "dtype like float32"),
    ):
        with pytest.raises(InputError, match=rule), host(net).execute(text, n_steps=8):
            pass
    with (
        pytest.raises(InputError, match="names a cache already"),
        host(net).execute("cache:first_block", cache="first_block", n_steps=8),
    ):
        pass
    monkeypatch.delattr("diffusers.hooks.FirstBlockCacheConfig")
    with (
        pytest.raises(InputError, match="installed diffusers has no FirstBlockCacheConfig"),
        host(net).execute("cache:first_block", n_steps=8),
    ):
        pass
    assert not net.is_cache_enabled
    assert_clean(net)


@pytest.mark.parametrize("branches", [1, 2])
def test_recording_and_the_solver_weights(net, tmp_path, branches):
    loop = Loop(net, branches=branches)
    with host(net, scheduler=loop.scheduler).record(tmp_path / "w.trace.zarr", n_steps=8) as recorder:
        for seed in range(2):
            with recorder.call(seed=[seed, seed]):
                final = loop(seed)
    trace = open_trace(tmp_path / "w.trace.zarr")
    assert (trace.n_calls, trace.n_steps) == (4, 8)
    np.testing.assert_array_equal(trace.read("video", "sample")[2:, -1], final.numpy())
    rows = np.concatenate([trace.read("video", "sample")[:, :1], trace.read("video", "model_output")], axis=1)
    ended = np.einsum("i,ci...->c...", trace.solver_weights("video"), rows)
    np.testing.assert_allclose(ended[2:], final.numpy(), atol=1e-4)


class DiffusionPipeline:
    """By name what every pipeline of diffusers derives from."""


class WanPipeline(DiffusionPipeline):
    def __init__(self, net):
        self.transformer, self.transformer_2 = net, None
        self.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
        self.vae = SimpleNamespace(decode=lambda z: z)

    def __call__(self):
        loop = Loop(self.transformer)
        loop.scheduler = self.scheduler
        return self.vae.decode(loop())


def test_a_pipeline_decodes_filled_latents(net):
    pipeline = WanPipeline(net)
    untouched = pipeline()
    with host(pipeline).execute("frames=drop_middle"):
        got = pipeline()
    assert torch.equal(got[:, :, 1], got[:, :, 0])  # the dropped frame holds the one before it
    with host(pipeline).execute("frames=drop_middle"):
        raw = Loop(net)()
    keep = resolve_frames("drop_middle", LAYOUT)
    assert torch.equal(fill_dropped(raw, keep, (1, 2, 2)), got)
    noise = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    assert torch.equal(raw[:, :, 1], noise[:, :, 1])  # unfilled it is the initial noise
    assert torch.equal(pipeline(), untouched)


def test_describe_counts_on_the_meta_device(net):
    found = host(net).describe((3, 8, 8), text_len=5)
    assert found.layout == LAYOUT
    d, n, text = 24, 48, 5
    block = 12 * n * d * d + 4 * text * d * d + 4 * n * n * d + 4 * n * text * d + 4 * n * d * 32
    patches = 2 * 2 * n * d * 16
    rest = 2 * d * (16 + d + 6 * d) + 2 * text * d * (16 + d)
    assert found.flops_per_step == 3 * block + patches + rest
    assert 0.3 < next(lever.saves for lever in found.levers if "drop_middle" in lever.how) < 0.4


def test_shares_at_the_real_configuration_of_wan():
    """Wan2.1-T2V-1.3B on the meta device: 81 frames of 480 x 832, as released."""
    with torch.device("meta"):
        net = WanTransformer3DModel(num_attention_heads=12, num_layers=30, ffn_dim=8960)
    assert sum(p.numel() for p in net.parameters()) / 1e9 == pytest.approx(1.42, abs=0.005)
    found = host(net).describe()
    assert found.share_of_step == {"video": 1.0}
    d, n, text = 12 * 128, 21 * 30 * 52, 512
    assert found.layout.n_tokens == n
    block = 12 * n * d * d + 4 * text * d * d + 4 * n * n * d + 4 * n * text * d + 4 * n * d * 8960
    rest = 2 * 2 * n * d * 64 + 2 * d * (256 + d + 6 * d) + 2 * text * d * (4096 + d)
    assert found.flops_per_step == 30 * block + rest
    # attention grows with the square of the tokens: 1 of 21 frames left out saves more than 1/21
    assert 1 / 21 < next(lever.saves for lever in found.levers if "drop_middle" in lever.how) < 0.08


@pytest.mark.parametrize(
    "plan",
    ["video=sparse_2,frames=drop_middle", "cache:first_block:threshold=0.5", "cache:seacache:threshold=0.5"],
)
def test_an_exception_leaves_the_model_as_it_was(net, plan):
    loop = Loop(net)
    untouched = loop()
    adapter = host(net, scheduler=loop.scheduler)
    broken = net.blocks[2].ffn.register_forward_hook(lambda *a: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(ValueError, match="no"), adapter.execute(plan):
        loop()
    broken.remove()
    assert_clean(net)
    assert not net.is_cache_enabled
    assert torch.equal(loop(), untouched)
    with adapter.execute(plan) as running:
        first = loop()
        broken = net.blocks[0].ffn.register_forward_hook(lambda *a: (_ for _ in ()).throw(ValueError("no")))
        with pytest.raises(ValueError, match="no"):
            loop()
        broken.remove()
        running.reset()
        assert torch.equal(loop(), first)  # what the cut call left behind is forgotten


def test_frames_and_a_cache_together(net):
    """Both act inside one network: a cache that leaves nothing out changes nothing of the frame plan."""
    loop = Loop(net)
    adapter = host(net, scheduler=loop.scheduler)
    with adapter.execute("frames=drop_middle", n_steps=8):
        frames = loop()
    with adapter.execute("frames=drop_middle,cache=first_block:threshold=0.0") as running:
        assert torch.equal(loop(), frames)
    assert running.counters["blocks"] == 8 * 3
    with adapter.execute("video=sparse_4,frames=drop_middle,cache=first_block:threshold=0.5") as running:
        got = loop()
    assert running.executions == {"video": 4}
    assert 4 <= running.counters["blocks"] < 4 * 3
    kept = [0, 2]
    assert not torch.equal(got[:, :, kept], frames[:, :, kept])
    assert torch.equal(got[:, :, 1], frames[:, :, 1])  # dropped: the initial noise in both
    assert_clean(net)


@pytest.mark.parametrize("branches", [1, 2])
def test_single_step_calls_are_told_apart(net, branches):
    """One step a call: the time never falls, yet every call begins anew and keeps no state of the last."""
    loop = Loop(net, steps=1, branches=branches)
    untouched = [loop(seed) for seed in range(3)]
    with host(net, scheduler=loop.scheduler).execute(
        "cache:first_block:threshold=10.0", n_branches=branches
    ) as running:
        assert all(torch.equal(loop(seed), x) for seed, x in enumerate(untouched))
    assert running.counters["blocks"] == 3 * branches * 3


def test_what_it_refuses(net):
    class Other(nn.Module):
        pass

    with pytest.raises(InputError, match=r"no adapter knows .*Other.*xwam: XWAMModel.*diffusers:"):
        host(Other())
    with (
        pytest.raises(InputError, match="number of denoising steps is unknown"),
        host(net).execute("video=sparse_2"),
    ):
        pass
    with pytest.raises(InputError, match="scheduler="), host(net).record("x.trace.zarr", heads=["video"]):
        pass
    layer = host(net).frames("drop_midle")
    with pytest.raises(InputError, match="did you mean 'drop_middle'"), layer:
        Loop(net)()
    assert_clean(net)


def test_a_trace_goes_through_simulate_search_and_execute(net, tmp_path, through_the_tools):
    loop = Loop(net)
    adapter = host(net, scheduler=loop.scheduler)
    with adapter.record(tmp_path / "w.trace.zarr", n_steps=8):
        dense = loop(1)
    steps, predicted = through_the_tools(tmp_path / "w.trace.zarr", "video", "video=sparse_2")
    assert predicted["solver"]["cosine_mean"] < 1
    with adapter.execute("video=at:" + ",".join(map(str, steps))) as running:
        lean = loop(1)
    assert running.executions["video"] == 2
    assert 0.5 < torch.cosine_similarity(lean.flatten(), dense.flatten(), dim=0) < 1
