"""X-WAM on a stand-in of our own: the same classes by name, the same calling conventions, tiny sizes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from leanwam.errors import InputError
from leanwam.models.frames import fill_dropped
from leanwam.models.hosts import host
from leanwam.models.hosts.counting import count_on_meta
from leanwam.models.hosts.xwam import ROBOCASA_LAYOUT, upstream_sigmas
from leanwam.models.hosts.xwam_counts import XWAMShape, count_forward, describe_xwam
from leanwam.plans import TokenLayout, resolve_frames
from leanwam.traces import open_trace

DIM, HEADS, LATENT = 24, 2, (3, 3, 4, 6)  # T, V, H, W of the latents: 3 frames of 3 views of 2 x 3 tokens


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.q, self.kv = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM)
        self.ffn = nn.Sequential(nn.Linear(DIM, 40), nn.GELU(), nn.Linear(40, DIM))

    def forward(self, x, e, freqs, context, save_kv_cache=False, cache_k=None, cache_v=None):
        assert x.shape[1] == e.shape[1] == freqs.shape[0]
        q, k, v = (self.qkv(x * (1 + e[:, :, 0]) + e[:, :, 1])).chunk(3, dim=-1)
        q, k = q * freqs, k * freqs
        keys = k if cache_k is None else torch.cat([k, cache_k], 1)
        values = v if cache_v is None else torch.cat([v, cache_v], 1)
        x = x + self.out(attend(q, keys, values)) * e[:, :, 2]
        ck, cv = self.kv(context).chunk(2, dim=-1)
        x = x + attend(self.q(x), ck, cv)
        x = x + self.ffn(x)
        return (x, k, v) if save_kv_cache else x


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1) @ v


class Head(nn.Module):
    def __init__(self, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, out)

    def forward(self, x, e):
        return self.linear(x * (1 + e))


class XWAMModel(nn.Module):
    """Video [B,C,T,V,H,W], action and proprio tokens in one sequence; depth branches at the end."""

    def __init__(self, num_modalities: int = 2) -> None:
        super().__init__()
        self.patch_size, self.num_layers, self.num_extra_layers = (1, 2, 2), 4, 2
        self.num_modalities, self.num_views, self.in_dim = num_modalities, 3, 4
        self.dim, self.ffn_dim, self.text_len, self.text_dim, self.freq_dim = DIM, 40, 5, 8, 4
        self.out_dim, self.action_dim, self.proprio_dim, self.action_num = 4, 5, 6, 4
        self.patch = nn.Linear(16, DIM)
        self.action_in, self.action_out = nn.Linear(5, DIM), nn.Linear(DIM, 5)
        self.proprio_in, self.proprio_out = nn.Linear(6, DIM), nn.Linear(DIM, 6)
        self.text = nn.Linear(8, DIM)
        self.time_embedding, self.time_projection = nn.Linear(4, DIM), nn.Linear(DIM, 3 * DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = Head(16)
        branches = num_modalities - 1
        self.extra_blocks = nn.ModuleList(nn.ModuleList(Block() for _ in range(2)) for _ in range(branches))
        self.extra_heads = nn.ModuleList(Head(16) for _ in range(branches))
        self.keep = None  # an oracle of our own: the same frame plan written into the forward itself

    def forward(
        self,
        x,
        t,
        context,
        actions=None,
        t_actions=None,
        proprios=None,
        t_proprios=None,
        cfg=0.0,
        run_depth=True,
    ):
        if cfg > 0:
            twice = [torch.cat([v, v]) for v in (x, t, actions, t_actions, proprios, t_proprios)]
            out = self.once(twice[0], twice[1], context, *twice[2:], run_depth)
            n = len(x)
            guided = [o[n:] + cfg * (o[:n] - o[n:]) for o in out[:3]]
            return (*guided, [o[:n] for o in out[3]])
        return self.once(x, t, context, actions, t_actions, proprios, t_proprios, run_depth)

    def once(self, x, t, context, actions, t_actions, proprios, t_proprios, run_depth):
        b, c, T, V, H, W = x.shape
        grid = x.reshape(b, c, T, V, H // 2, 2, W // 2, 2).permute(0, 2, 3, 4, 6, 1, 5, 7)
        video = self.patch(grid.reshape(b, T * V * (H // 2) * (W // 2), c * 4))
        n_video, n_rest = video.shape[1], actions.shape[1] + proprios.shape[1]
        seq = torch.cat([video, self.action_in(actions), self.proprio_in(proprios)], 1)
        freqs = torch.cos(
            torch.arange(seq.shape[1], dtype=torch.float32)[:, None] * torch.arange(1, DIM + 1) / 9
        )
        context = self.text(context)
        times = torch.cat([t.repeat_interleave(n_video // T, 1), t_actions, t_proprios], 1)
        feats = torch.stack([torch.sin(times / s) for s in (10, 100, 300, 1000)], -1)
        video_freqs = freqs[:n_video]
        index = None
        if self.keep is not None:
            index = torch.from_numpy(self.keep.sequence())
            feats, seq, freqs = feats[:, index], seq[:, index], freqs[index]
            video_freqs = video_freqs[list(self.keep.video)]
        e = self.time_embedding(feats)
        e0 = self.time_projection(e).unflatten(2, (3, DIM))
        n_kept = e.shape[1] - n_rest
        first_depth = 4 - 2 if run_depth else 4
        extras = []
        for i, block in enumerate(self.blocks):
            if i == first_depth:
                extras = [seq[:, :n_kept] for _ in range(self.num_modalities - 1)]
            if i < first_depth:
                seq = block(seq, e=e0, freqs=freqs, context=context)
                continue
            seq, k, v = block(seq, e=e0, freqs=freqs, context=context, save_kv_cache=True)
            extras = [
                self.extra_blocks[n][i - first_depth](
                    s, e=e0[:, :n_kept], freqs=video_freqs, context=context, cache_k=k, cache_v=v
                )
                for n, s in enumerate(extras)
            ]
        n_now = seq.shape[1] - n_rest
        outs = [self.head(seq[:, :n_now], e[:, :n_kept])]
        outs += [self.extra_heads[n](s, e=e[:, :n_kept]) for n, s in enumerate(extras)]
        if index is not None:
            full = [o.new_zeros(b, n_video, o.shape[-1]) for o in outs]
            for whole, o in zip(full, outs):
                whole[:, list(self.keep.video)] = o
            outs = full
        outs = [
            o.reshape(b, T, V, H // 2, W // 2, c, 2, 2)
            .permute(0, 5, 1, 2, 3, 6, 4, 7)
            .reshape(b, c, T, V, H, W)
            for o in outs
        ]
        action, proprio = seq[:, n_now:].split([actions.shape[1], proprios.shape[1]], 1)
        return outs[0], self.action_out(action), self.proprio_out(proprio), outs[1:] if run_depth else [None]


class XWAMRunner(nn.Module):
    """Asynchronous sampling: the action takes fewer steps than the video; UniPC for every stream."""

    def __init__(self, steps: int = 12, action_steps: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = XWAMModel().eval()
        self.config = SimpleNamespace(
            sample_steps=steps,
            action_denoise_steps=action_steps,
            use_decoupled_inference=True,
            flow_matching_num_train_timesteps=1000,
            time_shifting=5.0,
            frame_num=3,
        )
        self.run_depth = True
        self.really: int | None = None

    def scheduler(self, n):
        from diffusers import UniPCMultistepScheduler

        made = UniPCMultistepScheduler(
            use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=5.0
        )
        made.set_timesteps(n)
        made.sigmas = upstream_sigmas(n, 5.0)
        made.timesteps = (made.sigmas[:-1] * 1000).long()
        return made

    def forward(self, batch, seeds=None, early_stop=False, cfg=0.0):
        n = len(seeds)
        noise = [torch.Generator().manual_seed(s) for s in seeds]
        draw = lambda *shape: torch.stack([torch.randn(*shape, generator=g) for g in noise])  # noqa: E731
        first, state = torch.ones(n, 4, 1, *LATENT[1:]) * 0.3, torch.ones(n, 1, 6) * 0.5
        x, a, p = draw(4, *LATENT), draw(8, 5), draw(3, 6)
        x[:, :, :1], p[:, :1] = first, state
        context = torch.ones(2 * n if cfg > 0 else n, 5, 8)
        context[n:] = 0.0
        steps, few = self.config.sample_steps, self.config.action_denoise_steps
        sx, sa, sp = self.scheduler(steps), self.scheduler(few), self.scheduler(few)
        depth = None
        for i in range(self.really or steps):
            tv = sx.timesteps[i]
            if i >= few and early_stop:
                break
            ta = sa.timesteps[i] if i < few else torch.tensor(0)
            t = tv * torch.ones(n, 3).long()
            tp = ta * torch.ones(n, 3).long()
            t[:, 0] = tp[:, 0] = 0
            vx, va, vp, depth = self.model(
                x=x, t=t, context=context, actions=a, t_actions=ta * torch.ones(n, 8).long(),
                proprios=p, t_proprios=tp, cfg=cfg, run_depth=self.run_depth,
            )  # fmt: skip
            x = sx.step(vx, tv, x, return_dict=False)[0]
            x = torch.cat([first, x[:, :, 1:]], 2)
            if i < few:
                a = sa.step(va, ta, a, return_dict=False)[0]
                p = sp.step(vp, ta, p, return_dict=False)[0]
                p = torch.cat([state, p[:, 1:]], 1)
        return x, a, p, depth[0] if self.run_depth else None

    def generate(self, seeds=(1, 2), early_stop=False, cfg=0.0, run_depth=True):
        self.run_depth = run_depth
        with torch.no_grad():
            return self.forward(None, seeds=seeds, early_stop=early_stop, cfg=cfg)


def same(first, second):
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(first, second, strict=True))


SETTINGS = [
    {"early_stop": False, "cfg": 0.0, "run_depth": True},
    {"early_stop": False, "cfg": 0.0, "run_depth": False},
    {"early_stop": False, "cfg": 2.0, "run_depth": True},
    {"early_stop": True, "cfg": 0.0, "run_depth": False},
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("plan", ["dense", "frames=keep_all"])
def test_dense_and_keep_all_are_the_untouched_model(setting, plan):
    runner = XWAMRunner()
    untouched, keys = runner.generate(**setting), list(runner.state_dict())
    with host(runner, early_stop=setting["early_stop"]).execute(plan) as running:
        assert same(runner.generate(**setting), untouched)
        assert list(runner.state_dict()) == keys
    assert running.executions["action"] == 4
    assert running.executions["video"] == (4 if setting["early_stop"] else 12)
    assert running.counters["network"] == running.executions["video"]
    assert same(runner.generate(**setting), untouched)
    assert_clean(runner)


def assert_clean(runner):
    for module in runner.modules():
        assert "forward" not in module.__dict__
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("frames", ["drop_middle", "keep:0.5:seed=3", "drop_view:1", "tokens:0-17,20,40-53"])
def test_frame_plans_equal_the_gather_written_into_the_model(setting, frames):
    runner = XWAMRunner()
    layout = TokenLayout(t=3, v=3, h=2, w=3, extra={"action": 8, "proprio": 3})
    keep = resolve_frames(frames, layout)
    runner.model.keep = keep
    wanted = runner.generate(**setting)
    runner.model.keep = None
    with host(runner, early_stop=setting["early_stop"]).execute(f"frames={frames}") as running:
        got = runner.generate(**setting)
    assert torch.allclose(got[1], wanted[1], atol=1e-5)
    assert torch.allclose(got[0], fill_dropped(wanted[0], keep, (1, 2, 2)), atol=1e-5)
    if setting["run_depth"]:
        assert torch.allclose(got[3], wanted[3], atol=1e-5)
    assert running.thinning.n_calls == (4 if setting["early_stop"] else 12)
    assert_clean(runner)


def test_dropped_tokens_are_exactly_zero_and_kept_ones_keep_their_place():
    runner = XWAMRunner()
    seen = []
    runner.model.register_forward_hook(lambda module, args, output: seen.append(output))
    with host(runner).frames("drop_middle"):
        runner.generate()
    for video, _, _, depth in seen:
        for grid in (video, depth[0]):
            assert bool((grid[:, :, 1] == 0).all())
            assert bool((grid[:, :, 0] != 0).any())
            assert bool((grid[:, :, 2] != 0).any())


def test_a_network_call_is_left_out_where_every_stream_holds():
    runner = XWAMRunner()
    plan = "action=sparse_2,proprio=sparse_2,video=sparse_4"
    with host(runner).execute(plan) as running:
        runner.generate(run_depth=False)
    # video computes 0, 3, 6, 9; action and proprio 0, 2: their union
    assert running.counters["network"] == 5
    assert running.executions == {"video": 4, "action": 2, "proprio": 2}
    assert running.executions_per_call == {"video": [4], "action": [2], "proprio": [2]}


def test_a_held_velocity_goes_through_the_solver():
    """Executed equals the sampler run by hand on the held velocities of the same model."""
    runner = XWAMRunner(steps=4, action_steps=4)
    with host(runner).execute("action=at:0,2,proprio=at:0,2,video=at:0,2"):
        got = runner.generate(run_depth=False)
    original, calls, last = runner.model.forward, [], []

    def held(**kwargs):
        if len(calls) % 4 in (0, 2):
            last[:] = original(**kwargs)
        calls.append(1)
        return tuple(last)

    runner.model.forward = held
    assert same(runner.generate(run_depth=False)[:3], got[:3])


@pytest.mark.parametrize("cfg", [0.0, 2.0])
def test_depth_at_the_last_step_only_is_bit_identical(cfg):
    runner = XWAMRunner()
    untouched = runner.generate(cfg=cfg)
    with host(runner).execute("dense", depth_last_only=True) as running:
        assert same(runner.generate(cfg=cfg), untouched)
        assert same(runner.generate(cfg=cfg), untouched)
    assert running.counters == {"network": 24, "depth": 2}
    assert runner.model.num_modalities == 2


def test_a_wrong_number_of_steps_cannot_lose_the_depth():
    runner = XWAMRunner()
    runner.really = 11  # the loop ends earlier than the configuration says
    with (
        pytest.raises(InputError, match="11 steps, not the 12"),
        host(runner).execute("dense", depth_last_only=True),
    ):
        runner.generate()
    assert_clean(runner)


def test_an_exception_leaves_the_model_as_it_was():
    runner = XWAMRunner()
    untouched = runner.generate()
    broken = runner.model.blocks[1].register_forward_hook(lambda *a: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(ValueError, match="no"), host(runner).execute("action=sparse_2,frames=drop_middle"):
        runner.generate()
    broken.remove()
    assert_clean(runner)
    assert same(runner.generate(), untouched)


@pytest.mark.parametrize("early", [True, False])
def test_a_trace_holds_what_the_sampler_did(tmp_path, early):
    runner = XWAMRunner()
    adapter = host(runner, early_stop=early)
    out = tmp_path / "x.trace.zarr"
    with adapter.record(out) as recorder:
        for k in range(2):
            with recorder.call(seed=[2 * k, 2 * k + 1], task="go"):
                result = runner.generate(seeds=(2 * k, 2 * k + 1), early_stop=early, run_depth=False)
    trace = open_trace(out)
    assert trace.n_calls == 4
    assert trace.n_steps == 4
    assert list(trace.calls["seed"]) == [0, 1, 2, 3]
    for head, final in (("action", result[1]), ("proprio", result[2])):
        sample, output = trace.read(head, "sample"), trace.read(head, "model_output")
        np.testing.assert_array_equal(sample[2:, -1], final.numpy())
        rows = np.concatenate([sample[:, :1], output], axis=1)
        ended = np.einsum("i,ci...->c...", trace.solver_weights(head), rows)
        np.testing.assert_allclose(ended, sample[:, -1], atol=2e-5)  # the clean condition included
    weights = np.abs(trace.solver_weights("action")[1:])
    assert weights[-2:].sum() > weights[:2].sum()


def test_the_video_is_recorded_apart(tmp_path):
    runner = XWAMRunner()
    with host(runner).record(tmp_path / "v.trace.zarr", heads=["video"]):
        final = runner.generate(run_depth=False)[0]
    trace = open_trace(tmp_path / "v.trace.zarr")
    assert (trace.n_calls, trace.n_steps) == (2, 12)
    np.testing.assert_array_equal(trace.read("video", "sample")[:, -1], final.numpy())
    with (
        pytest.raises(InputError, match="record them apart"),
        host(runner).record(tmp_path / "w.trace.zarr", heads=["video", "action"]),
    ):
        pass


def test_what_it_refuses():
    runner = XWAMRunner()
    with pytest.raises(InputError, match="no such head"), host(runner).execute("state=sparse_2"):
        pass
    with pytest.raises(InputError, match="no such option"), host(runner).execute("dense", cash=1):
        pass
    with pytest.raises(InputError, match="n_steps"), host(runner.model).execute("action=sparse_2"):
        pass
    with pytest.raises(InputError, match="drop_middle"), host(runner).execute("frames=drop_midle"):
        runner.generate()
    assert_clean(runner)


def test_the_count_gives_the_published_shares():
    """Figures of the frame-sparsity source and of torch's counter on the real configuration."""
    shape = XWAMShape()
    plain = count_forward(shape, ROBOCASA_LAYOUT)
    thin = count_forward(shape, ROBOCASA_LAYOUT, n_kept_video=480)
    deep = count_forward(shape, ROBOCASA_LAYOUT, depth=True)
    thin_deep = count_forward(shape, ROBOCASA_LAYOUT, n_kept_video=480, depth=True)
    assert plain["total"] / 1e12 == pytest.approx(7.672, abs=5e-4)
    assert thin["total"] / 1e12 == pytest.approx(5.397, abs=5e-4)
    assert plain["total"] / thin["total"] == pytest.approx(1.42, abs=5e-3)
    assert deep["total"] / thin_deep["total"] == pytest.approx(1.43, abs=5e-3)
    assert plain["text"] / plain["total"] == pytest.approx(0.079, abs=5e-4)
    assert 49 * deep["depth"] / (50 * deep["total"]) == pytest.approx(0.238, abs=5e-4)
    assert ROBOCASA_LAYOUT.n_video / ROBOCASA_LAYOUT.n_tokens == pytest.approx(0.946, abs=5e-4)
    assert plain["coders"] / plain["total"] == pytest.approx(0.0002, abs=5e-5)


def test_shares_of_a_step_at_the_real_configuration():
    """The host's own description, of the released sizes: the source's figures to the precision it gives."""
    sizes = {
        "dim": 3072, "ffn_dim": 14336, "num_layers": 30, "num_extra_layers": 10, "num_modalities": 2,
        "text_len": 512, "text_dim": 4096, "freq_dim": 256, "in_dim": 48, "out_dim": 48, "action_dim": 14,
        "proprio_dim": 16, "patch_size": (1, 2, 2),
    }  # fmt: skip
    found = describe_xwam(SimpleNamespace(**sizes), ROBOCASA_LAYOUT, {"video": 50}, "XWAMModel")
    shares = found.share_of_step
    assert found.flops_per_step == 7_671_645_904_896  # torch's counter on the real class, docs/hosts/xwam.md
    assert 49 / 50 * shares["depth"] == pytest.approx(0.238, abs=5e-4)
    assert shares["action"] + shares["proprio"] == pytest.approx(0.0002, abs=5e-5)
    assert shares["video"] + shares["action"] + shares["proprio"] == pytest.approx(1)
    saves = {lever.name: lever.saves for lever in found.levers}
    assert saves["text keys and values"] == pytest.approx(0.079, abs=5e-4)
    assert saves["depth branch"] == pytest.approx(0.238, abs=5e-4)
    assert saves["middle frames"] == pytest.approx(0.297, abs=5e-4)
    assert found.to_json()["share_of_step"] == shares


def test_describe_names_heads_shares_and_levers():
    found = host(XWAMRunner()).describe()
    assert set(found.heads) == {"video", "action", "proprio", "depth"}
    assert found.heads["depth"].gated_by is None
    assert found.n_steps == {"video": 12, "action": 4, "proprio": 4}
    assert [lever.lossless for lever in found.levers] == [True, False, True]
    assert all(0 < lever.saves < 1 for lever in found.levers)
    assert found.to_json()["layout"]["extra"] == {"action": 32, "proprio": 9}


def test_counting_on_the_meta_device_agrees_with_counting_by_hand():
    layer = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7))
    assert count_on_meta(layer, (torch.zeros(2, 3),)) == {"": 2 * 2 * (15 + 35), "0": 60, "1": 140}


def test_a_trace_goes_through_simulate_search_and_execute(tmp_path, through_the_tools):
    runner = XWAMRunner()
    adapter = host(runner, early_stop=True)
    with adapter.record(tmp_path / "x.trace.zarr"):
        dense = runner.generate(seeds=(1, 2, 3), early_stop=True, run_depth=False)
    steps, predicted = through_the_tools(tmp_path / "x.trace.zarr", "action", "sparse_2")
    assert predicted["solver"]["cosine_mean"] < 1
    plan = "at:" + ",".join(map(str, steps))
    with adapter.execute(f"action={plan},proprio={plan},video={plan}") as running:
        lean = runner.generate(seeds=(1, 2, 3), early_stop=True, run_depth=False)
    assert running.counters["network"] == 2
    assert 0.5 < torch.cosine_similarity(lean[1].flatten(), dense[1].flatten(), dim=0) < 1


def test_a_compiled_network_is_gated_and_its_frame_plan_refused():
    runner = XWAMRunner()
    plain = runner.generate(early_stop=True, run_depth=False)
    runner.model = torch.compile(runner.model, backend="eager")
    adapter = host(runner, early_stop=True)
    with adapter.execute("dense"):
        dense = runner.generate(early_stop=True, run_depth=False)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(dense[:3], plain[:3], strict=True))
    with adapter.execute("action=sparse_2,proprio=sparse_2,video=sparse_2") as running:
        runner.generate(early_stop=True, run_depth=False)
    assert running.counters["network"] == 2
    with pytest.raises(InputError, match="compile within it"), adapter.execute("frames=drop_middle"):
        pass
