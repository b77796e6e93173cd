"""UnifoLM-WMA-0 on a stand-in of our own: class names, signatures and the sampling loop's conventions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler
from torch import nn

from leanwam.errors import InputError
from leanwam.models.hosts import host
from leanwam.models.hosts.unifolm import UnifoLMHost
from leanwam.traces import open_trace

FRAMES, DIM = 4, 6


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.n_runs = nn.Conv2d(3, 5, 2), 0

    def forward(self, observation):
        self.n_runs += 1
        image = self.image(observation["image"]).mean((-1, -2))
        return torch.cat([image, observation["agent_pos"]], -1)


class Unet1D(nn.Module):
    """A head: reads the noisy stream, the time, the video's features and the observation."""

    def __init__(self) -> None:
        super().__init__()
        self.obs_encoder = Encoder()
        self.mix = nn.Linear(DIM + 5 + 3 + 8, DIM)

    def forward(self, sample, timestep, imagen_cond=None, cond=None, **kwargs):
        image, position = cond
        b, o = position.shape[:2]
        observed = self.obs_encoder(
            {"image": image.permute(0, 2, 1, 3, 4).flatten(0, 1), "agent_pos": position.flatten(0, 1)}
        )
        observed = observed.view(b, o, -1).mean(1)[:, None].expand(-1, FRAMES, -1)
        features = torch.cat([f.mean((-1, -2)) for f in imagen_cond], -1)
        time = torch.sin(timestep / 100.0).view(-1, 1, 1)
        return self.mix(torch.cat([sample, observed, features], -1)) * (1 + time) + sample


class WMAModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_channels, self.temporal_length, self.n_obs_steps = 8, FRAMES, 2
        self.body, self.out, self.text = nn.Conv3d(8, 4, 1), nn.Conv3d(4, 4, 1), nn.Linear(7, 4)
        self.action_unet, self.state_unet = Unet1D(), Unet1D()
        self.n_runs = 0

    def forward(self, x, x_action, x_state, timesteps, context=None, context_action=None, fs=None, **kwargs):
        self.n_runs += 1
        h = torch.tanh(self.body(x) * (1 + timesteps.view(-1, 1, 1, 1, 1) / 1000))
        h = h + self.text(context).mean(1)[:, :, None, None, None]
        features = [f.transpose(1, 2) for f in (h, self.out(h))]
        action = self.action_unet(
            x_action, timesteps[: len(x_action)], features, context_action[:2], **kwargs
        )
        state = self.state_unet(x_state, timesteps, features, context_action[:2], **kwargs)
        return self.out(h), action, state


class Wrapper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.diffusion_model = WMAModel()


class LatentVisualDiffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = Wrapper()
        made = lambda: DDIMScheduler(beta_schedule="squaredcos_cap_v2", clip_sample=True)  # noqa: E731
        self.dp_noise_scheduler_action, self.dp_noise_scheduler_state = made(), made()

    def sample(self, steps=10, scale=1.0, seed=0):
        """Trailing timesteps; twice per step under guidance (cond, then uncond); the video has its own update."""
        noise = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=noise)  # noqa: E731
        x, action, state = draw(1, 4, FRAMES, 3, 3), draw(1, FRAMES, DIM), draw(1, FRAMES, DIM)
        conds = [
            (
                torch.ones(1, 4, FRAMES, 3, 3) * c,
                torch.ones(1, 9, 7) * c,
                [torch.ones(1, 3, 2, 4, 4) * c, torch.ones(1, 2, 3)],
            )
            for c in (1.0, 0.2)
        ]
        self.dp_noise_scheduler_action.set_timesteps(steps)
        self.dp_noise_scheduler_state.set_timesteps(steps)
        net = self.model.diffusion_model
        with torch.no_grad():
            for t in [round(1000 - i * 1000 / steps) - 1 for i in range(steps)]:
                ts = torch.full((1,), t)
                outs = [
                    net(torch.cat([x, c], 1), action, state, ts, context=text, context_action=obs)
                    for c, text, obs in conds[: 1 if scale == 1 else 2]
                ]
                out = outs[0] if scale == 1 else [u + scale * (c - u) for c, u in zip(*outs)]
                x = x - out[0] / steps
                action = self.dp_noise_scheduler_action.step(out[1], t, action).prev_sample
                state = self.dp_noise_scheduler_state.step(out[2], t, state).prev_sample
        return x, action, state


def same(first, second):
    return [torch.equal(a, b) for a, b in zip(first, second, strict=True)]


def assert_clean(model):
    for module in model.modules():
        assert "forward" not in module.__dict__
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


@pytest.fixture
def model():
    return LatentVisualDiffusion().eval()


@pytest.mark.parametrize(("scale", "branches"), [(1.0, 1), (2.0, 2)])
@pytest.mark.parametrize("steps", [50, 16])
def test_dense_is_the_untouched_model(model, scale, branches, steps):
    untouched, keys = model.sample(steps, scale), list(model.state_dict())
    for options in ({}, {"cache_encoder": True}):
        with host(model).execute("dense", n_steps=steps, n_branches=branches, **options) as running:
            assert all(same(model.sample(steps, scale), untouched))
            assert list(model.state_dict()) == keys
        assert running.executions == dict.fromkeys(("action", "state", "video"), steps * branches)
    assert running.counters["encoder_action"] == running.counters["encoder_state"] == branches
    assert_clean(model)
    assert all(same(model.sample(steps, scale), untouched))


@pytest.mark.parametrize(("scale", "branches"), [(1.0, 1), (2.0, 2)])
def test_the_video_is_bit_identical_under_every_head_plan(model, scale, branches):
    untouched = model.sample(10, scale)
    for plan in ("sparse_5", "tail_only_4", "action=sparse_2/linear"):
        with host(model).execute(plan, n_steps=10, n_branches=branches) as running:
            got = same(model.sample(10, scale), untouched)
        assert got[0]
        assert not got[1]
        assert got[2] == plan.startswith("action=")
    assert running.executions == {"action": 2 * branches, "state": 10 * branches, "video": 10 * branches}


@pytest.mark.parametrize(("scale", "branches"), [(1.0, 1), (2.0, 2)])
def test_held_features_skip_the_video_network(model, scale, branches):
    net = model.model.diffusion_model
    net.n_runs = 0
    with host(model).execute("video=sparse_2", n_steps=10, n_branches=branches) as running:
        got = model.sample(10, scale)
    assert net.n_runs == 2 * branches
    assert running.executions == {"action": 10 * branches, "state": 10 * branches, "video": 2 * branches}
    # the same by hand: a network whose video part sees the input of step 0 or 5 and whose heads see now's
    kept: dict[int, tuple] = {}
    run, n = net.forward, [0]

    def by_hand(x, x_action, x_state, timesteps, context=None, context_action=None):
        branch, step = n[0] % branches, n[0] // branches
        n[0] += 1
        if step % 5 == 0:
            kept[branch] = (x, timesteps)
        old_x, old_t = kept[branch]
        seen = []
        hook = net.action_unet.register_forward_pre_hook(lambda m, args: seen.append(args[2]))
        y = run(old_x, x_action, x_state, old_t, context=context, context_action=context_action)[0]
        hook.remove()
        return (
            y,
            net.action_unet(x_action, timesteps, seen[0], context_action[:2]),
            net.state_unet(x_state, timesteps, seen[0], context_action[:2]),
        )

    net.forward = by_hand
    assert all(same(model.sample(10, scale), got))


def test_the_encoder_cache_follows_its_input(model):
    with host(model).execute("dense", n_steps=10, cache_encoder=True) as running:
        model.sample(10)
        model.sample(10, seed=1)
    assert running.counters["encoder_action"] == 1  # the same observation twice
    encoder = model.model.diffusion_model.action_unet.obs_encoder
    with host(model).execute("dense", n_steps=10, cache_encoder=True), torch.no_grad():
        observation = {"image": torch.ones(2, 3, 4, 4), "agent_pos": torch.ones(2, 3)}
        first = encoder(observation)
        observation["image"].mul_(2)  # written in place: another input
        assert not torch.equal(encoder(observation), first)
    with (
        pytest.raises(InputError, match="training mode"),
        host(model.train()).execute("dense", n_steps=10, cache_encoder=True),
    ):
        pass


@pytest.mark.parametrize(("scale", "branches"), [(1.0, 1), (2.0, 2)])
def test_recording_action_and_state(model, tmp_path, scale, branches):
    with host(model).record(tmp_path / "u.trace.zarr", n_steps=16, n_branches=branches) as recorder:
        for seed in range(2):
            with recorder.call(seed=seed):
                _, action, state = model.sample(16, scale, seed)
    trace = open_trace(tmp_path / "u.trace.zarr")
    assert (trace.n_calls, trace.n_steps) == (2, 16)
    assert trace.meta.sampler.class_ == "DDIMScheduler"
    assert trace.solver_weights("action") is None  # clip_sample: not linear
    for head, final in (("action", action), ("state", state)):
        np.testing.assert_array_equal(trace.read(head, "sample")[1, -1], final[0].numpy())
        assert set(trace.quantities(head)) == {"model_output", "sample", "pred_original_sample"}


def test_an_exception_leaves_the_model_as_it_was(model):
    untouched = model.sample(10)
    encoder = model.model.diffusion_model.state_unet.obs_encoder
    broken = encoder.register_forward_hook(lambda *a: (_ for _ in ()).throw(ValueError("no")))
    with (
        pytest.raises(ValueError, match="no"),
        host(model).execute("sparse_2", n_steps=10, cache_encoder=True),
    ):
        model.sample(10)
    broken.remove()
    assert_clean(model)
    assert all(same(model.sample(10), untouched))


def test_where_it_finds_the_network_and_what_it_refuses(model):
    class DDIMSampler:
        def __init__(self, model):
            self.model = model

    for start in (model, model.model, model.model.diffusion_model, DDIMSampler(model)):
        assert isinstance(host(start), UnifoLMHost)
        assert host(start).network is model.model.diffusion_model
    assert set(host(DDIMSampler(model)).schedulers) == {"action", "state"}
    with (
        pytest.raises(InputError, match="convolutional U-Net"),
        host(model).execute("frames=drop_middle", n_steps=4),
    ):
        pass
    with (
        pytest.raises(InputError, match="number of denoising steps is unknown"),
        host(model).execute("sparse_2"),
    ):
        pass
    with pytest.raises(InputError, match="own function"), host(model).record("x.trace.zarr", heads=["video"]):
        pass


def test_shares_are_counted_on_the_meta_device(model):
    args = (
        torch.zeros(1, 8, FRAMES, 3, 3),
        torch.zeros(1, FRAMES, DIM),
        torch.zeros(1, FRAMES, DIM),
        torch.zeros(1),
    )
    kwargs = {
        "context": torch.zeros(1, 9, 7),
        "context_action": [torch.zeros(1, 3, 2, 4, 4), torch.zeros(1, 2, 3)],
    }
    found = host(model).describe((args, kwargs))
    encoder = 2 * 2 * 5 * 3 * 4 * 9  # two frames, 5 x 3 kernels of 2 x 2 at 3 x 3 places
    head = 2 * FRAMES * (DIM + 5 + 3 + 8) * DIM + encoder
    assert found.heads["action"].flops == found.heads["state"].flops == head
    assert found.flops_per_step == sum(h.flops for h in found.heads.values())
    assert found.share_of_step["action"] == head / found.flops_per_step
    assert sum(found.share_of_step.values()) == pytest.approx(1)
    saved = {lever.name: lever.saves for lever in found.levers}
    assert saved["the heads' encoder"] == pytest.approx(2 * encoder / found.flops_per_step)


def test_a_trace_goes_through_simulate_search_and_execute(model, tmp_path, through_the_tools):
    with host(model).record(tmp_path / "u.trace.zarr", n_steps=10) as recorder:
        for seed in range(2):
            with recorder.call(seed=seed):
                dense = model.sample(10, seed=seed)
    steps, predicted = through_the_tools(tmp_path / "u.trace.zarr", "action", "sparse_2")
    assert predicted["solver"]["cosine_mean"] < 1
    with host(model).execute("action=at:" + ",".join(map(str, steps)), n_steps=10) as running:
        lean = model.sample(10, seed=1)
    assert running.executions["action"] == 2
    assert torch.cosine_similarity(lean[1].flatten(), dense[1].flatten(), dim=0) < 1
    assert torch.equal(lean[2], dense[2])
