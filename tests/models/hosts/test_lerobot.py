"""LeRobot's policies on stand-ins of our own: class names, method names and argument names."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler
from torch import nn

from leanwam.errors import InputError
from leanwam.models.hosts import host
from leanwam.models.hosts.lerobot import DiffusionPolicyHost, FastWAMHost, FlowPolicyHost, LingBotVAHost
from leanwam.traces import open_trace


class Denoiser(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, 16), nn.Tanh(), nn.Linear(16, dim))

    def forward(self, x, timestep, global_cond=None):
        time = torch.as_tensor(timestep, dtype=torch.float32).view(-1, 1, 1).expand(len(x), x.shape[1], 1)
        return self.net(torch.cat([x, torch.cos(time / 50)], -1))


class DiffusionPolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace()
        self.diffusion = nn.Module()
        self.diffusion.unet = Denoiser(3)
        self.diffusion.noise_scheduler = DDIMScheduler(num_train_timesteps=100, clip_sample=False)
        self.diffusion.num_inference_steps = 10

    def predict(self, seed=1):
        core = self.diffusion
        x = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(seed))
        core.noise_scheduler.set_timesteps(core.num_inference_steps)
        with torch.no_grad():
            for t in core.noise_scheduler.timesteps:
                out = core.unet(x, torch.full((2,), int(t)), global_cond=None)
                x = core.noise_scheduler.step(out, t, x, generator=None).prev_sample
        return x


class FlowCore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(num_inference_steps=10, compile_model=False)
        self.net, self.rtc, self.n_runs = Denoiser(3), False, 0

    def _rtc_enabled(self):
        return self.rtc

    def denoise_step(self, prefix_pad_masks, past_key_values, x_t, timestep):
        self.n_runs += 1
        return self.net(x_t, timestep * 50)

    def sample_actions(self, noise, num_steps=None):
        x, n = noise, num_steps or self.config.num_inference_steps
        for i in range(n):
            time = torch.tensor(1.0 - i / n).expand(len(x))
            x = x - self.denoise_step(prefix_pad_masks=None, past_key_values=None, x_t=x, timestep=time) / n
        return x


class PI0Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = FlowCore()
        self.config = self.model.config

    def predict(self, seed=1):
        with torch.no_grad():
            return self.model.sample_actions(
                torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(seed))
            )


class FastWAM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.action, self.video, self.n_runs = Denoiser(3), Denoiser(5), 0

    def _predict_action_noise_with_cache(self, latents_action, timestep_action, context=None):
        self.n_runs += 1
        return self.action(latents_action, timestep_action)

    def _predict_joint_noise(
        self, latents_video, latents_action, timestep_video, timestep_action, context=None
    ):
        self.n_runs += 1
        return self.video(latents_video, timestep_video), self.action(latents_action, timestep_action)

    def levels(self, n):
        u = torch.linspace(1, 0, n + 1)
        return 5 * u / (1 + 4 * u)

    def infer_action(self, seed=1, num_inference_steps=10):
        x, s = (
            torch.randn(1, 8, 3, generator=torch.Generator().manual_seed(seed)),
            self.levels(num_inference_steps),
        )
        for i in range(num_inference_steps):
            v = self._predict_action_noise_with_cache(latents_action=x, timestep_action=s[i : i + 1] * 1000)
            x = x + (s[i + 1] - s[i]) * v
        return {"action": x[0].detach()}

    def infer_joint(self, seed=1, num_inference_steps=10):
        g, s = torch.Generator().manual_seed(seed), self.levels(num_inference_steps)
        a, v = torch.randn(1, 8, 3, generator=g), torch.randn(1, 4, 5, generator=g)
        for i in range(num_inference_steps):
            t = s[i : i + 1] * 1000
            dv, da = self._predict_joint_noise(
                latents_video=v, latents_action=a, timestep_video=t, timestep_action=t
            )
            v, a = v + (s[i + 1] - s[i]) * dv, a + (s[i + 1] - s[i]) * da
        return v, a


class FastWAMPolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = FastWAM()
        self.config = SimpleNamespace(num_inference_steps=10, compile_action_infer=False)

    def predict(self, seed=1):
        with torch.no_grad():
            return self.model.infer_action(seed)["action"]


class EulerScheduler:
    def __init__(self, n):
        u = torch.linspace(1, 0, n + 1)
        self.sigmas, self.timesteps = 3 * u / (1 + 2 * u), (3 * u / (1 + 2 * u))[:-1] * 1000

    def step(self, model_output, timestep, sample, return_dict=True):
        i = int((self.timesteps - timestep).abs().argmin())
        return sample + (self.sigmas[i + 1] - self.sigmas[i]) * model_output


class CachedTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.video, self.action, self.log = nn.Linear(4, 4), nn.Linear(5, 5), []

    def forward(self, input_dict, update_cache=0, cache_name="pos", action_mode=False):
        self.log.append((update_cache, action_mode))
        x, layer = input_dict["noisy_latents"], self.action if action_mode else self.video
        return torch.tanh(layer(x.movedim(1, -1)).movedim(-1, 1) + input_dict["timesteps"].mean() / 1000)


class LingBotVAPolicy(nn.Module):
    def __init__(self, guidance=1.0, video_exec_step=-1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(
            num_inference_steps=6,
            action_num_inference_steps=10,
            video_exec_step=video_exec_step,
            used_action_channel_ids=[0, 1, 3],
        )
        self.guidance, self.transformer = guidance, CachedTransformer()
        self.reset()

    def reset(self):
        self._scheduler, self._action_scheduler = EulerScheduler(6), EulerScheduler(10)

    def _infer(self, init_latent=None, frame_st_id=0):
        g = torch.Generator().manual_seed(2)
        streams = {}
        for name, scheduler, x in (
            ("video", self._scheduler, torch.randn(1, 4, 3, 2, 2, generator=g)),
            ("action", self._action_scheduler, torch.randn(1, 5, 3, 4, 1, generator=g)),
        ):
            for t in [*scheduler.timesteps, torch.tensor(0.0)]:
                x[:, :, :1] = 0.25  # the condition
                if name == "action":
                    x[:, [2, 4]] = 0
                times = torch.ones(1, 3) * t
                times[:, 0] = 0
                n = 2 if self.guidance > 1 else 1
                given = {"noisy_latents": x.repeat(n, 1, 1, 1, 1), "timesteps": times.repeat(n, 1)}
                out = self.transformer(given, update_cache=int(t == 0), action_mode=name == "action")
                if t > 0:
                    out = out[1:] + self.guidance * (out[:1] - out[1:]) if n == 2 else out
                    x = scheduler.step(out, t, x, return_dict=False)
            x[:, :, :1] = 0.25
            if name == "action":
                x[:, [2, 4]] = 0
            streams[name] = x
        return streams["action"], streams["video"]

    def predict(self, seed=0):
        self.reset()
        with torch.no_grad():
            return self._infer()[0]


KINDS = {
    DiffusionPolicy: DiffusionPolicyHost,
    PI0Policy: FlowPolicyHost,
    FastWAMPolicy: FastWAMHost,
    LingBotVAPolicy: LingBotVAHost,
}


def assert_clean(model):
    for module in model.modules():
        patched = {"forward", "denoise_step", "sample_actions", "infer_action", "_infer"} & set(
            module.__dict__
        )
        assert not patched
        assert not module._forward_hooks


@pytest.mark.parametrize("kind", KINDS)
def test_dense_is_the_untouched_policy_and_plans_run(kind):
    policy = kind()
    untouched, keys = policy.predict(), list(policy.state_dict())
    adapter = host(policy)
    assert type(adapter) is KINDS[kind]
    with adapter.execute("dense") as running:
        assert torch.equal(policy.predict(), untouched)
        assert list(policy.state_dict()) == keys
    assert running.executions["action"] == 10
    with adapter.execute("action=sparse_2/linear") as running:
        assert not torch.equal(policy.predict(), untouched)
    assert running.executions["action"] == 2
    assert running.n_calls["action"] == 1
    assert_clean(policy)
    assert torch.equal(policy.predict(), untouched)


@pytest.mark.parametrize("kind", KINDS)
def test_recording_and_the_solver_weights(kind, tmp_path):
    policy = kind()
    with host(policy).record(tmp_path / "l.trace.zarr") as recorder:
        for seed in range(2):
            with recorder.call(seed=seed, task="lift"):
                final = policy.predict(seed)
    trace = open_trace(tmp_path / "l.trace.zarr")
    per_call = trace.n_calls // 2
    assert trace.n_steps == 10
    assert list(trace.calls["task"]) == ["lift"] * trace.n_calls
    sample, output = trace.read("action", "sample"), trace.read("action", "model_output")
    np.testing.assert_array_equal(sample[per_call:, -1].reshape(final.shape), final.numpy())
    rows = np.concatenate([sample[:, :1], output], axis=1)
    weights = trace.solver_weights("action")
    np.testing.assert_allclose(np.einsum("i,ci...->c...", weights, rows), sample[:, -1], atol=1e-4)
    assert set(trace.quantities("action")) == {"model_output", "sample", "pred_original_sample"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_leaves_the_policy_as_it_was(kind):
    policy = kind()
    untouched = policy.predict()
    inner = next(m for m in policy.modules() if isinstance(m, Denoiser | CachedTransformer))
    broken = inner.register_forward_hook(lambda *a: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(ValueError, match="no"), host(policy).execute("action=sparse_2"):
        policy.predict()
    broken.remove()
    assert_clean(policy)
    assert torch.equal(policy.predict(), untouched)


def test_shares_are_counted_on_one_real_call():
    assert host(DiffusionPolicy()).describe().share_of_step == {"action": None}
    policy = FastWAMPolicy()
    described = host(policy).describe(lambda: policy.predict())
    one = 2 * 8 * (4 * 16 + 16 * 3)
    assert described.heads["action"].flops == one
    assert described.heads["action"].share == 1.0
    assert host(policy).describe().heads["action"].share is None


def test_what_cannot_be_gated_is_refused_with_the_reason():
    policy = PI0Policy()
    policy.model.rtc = True
    with pytest.raises(InputError, match="gradients"), host(policy).execute("sparse_2"):
        pass
    policy.model.rtc, policy.config.compile_model = False, True
    with pytest.raises(InputError, match="one graph"), host(policy).execute("sparse_2"):
        pass
    fast = FastWAMPolicy()
    fast.config.compile_action_infer = True
    with pytest.raises(InputError, match="compile_action_infer"), host(fast).execute("action=sparse_2"):
        pass
    with (
        pytest.raises(InputError, match="decoded"),
        host(FastWAMPolicy()).record("x.trace.zarr", heads=["video"]),
    ):
        pass
    with (
        pytest.raises(InputError, match="no such head"),
        host(LingBotVAPolicy(video_exec_step=3)).execute("video=sparse_2"),
    ):
        pass


def test_fastwam_joint_inference_leaves_out_a_call_where_both_hold():
    policy = FastWAMPolicy()
    untouched = policy.model.infer_joint()
    policy.model.n_runs = 0
    with host(policy).execute("action=sparse_2,video=sparse_5") as running:
        policy.model.infer_joint()
    assert policy.model.n_runs == running.counters["joint_network"] == 6  # 0, 2, 4, 6, 8 and 0, 5
    with host(policy).execute("dense"):
        assert all(torch.equal(a, b) for a, b in zip(policy.model.infer_joint(), untouched))


@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_lingbot_always_writes_its_cache(guidance):
    policy = LingBotVAPolicy(guidance)
    policy.predict()
    dense = policy.transformer.log
    assert dense.count((1, False)) == dense.count((1, True)) == 1
    policy.transformer.log = []
    with host(policy).execute("action=sparse_2,video=sparse_2") as running:
        policy.predict()
        policy.predict()
    assert policy.transformer.log.count((1, False)) == policy.transformer.log.count((1, True)) == 2
    assert policy.transformer.log.count((0, True)) == running.executions["action"] == 4
    assert policy.transformer.log.count((0, False)) == running.executions["video"] == 4


@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_lingbot_video_is_recorded_apart_with_guidance_applied(tmp_path, guidance):
    policy = LingBotVAPolicy(guidance)
    with host(policy).record(tmp_path / "v.trace.zarr", heads=["video"]), torch.no_grad():
        policy.reset()
        final = policy._infer()[1]
    trace = open_trace(tmp_path / "v.trace.zarr")
    np.testing.assert_array_equal(trace.read("video", "sample")[0, -1], final[0].numpy())
    rows = np.concatenate([trace.read("video", "sample")[:, :1], trace.read("video", "model_output")], axis=1)
    np.testing.assert_allclose(
        np.einsum("i,ci...->c...", trace.solver_weights("video"), rows)[0], final[0].numpy(), atol=1e-4
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_goes_through_simulate_search_and_execute(kind, tmp_path, through_the_tools):
    policy = kind()
    with host(policy).record(tmp_path / "l.trace.zarr") as recorder:
        for seed in range(2):
            with recorder.call(seed=seed):
                dense = policy.predict(seed)
    steps, predicted = through_the_tools(tmp_path / "l.trace.zarr", "action", "sparse_2")
    assert predicted["solver"]["cosine_mean"] < 1
    with host(policy).execute("action=at:" + ",".join(map(str, steps))) as running:
        lean = policy.predict(1)
    assert running.executions["action"] == 2
    assert 0.5 < torch.cosine_similarity(lean.flatten(), dense.flatten(), dim=0) < 1
