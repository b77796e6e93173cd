"""LeRobot's policies by denoising step, by the names of their classes, methods and arguments.

Four forms, one adapter each: a U-Net called once per step (``diffusion``); a method ``denoise_step`` in an
Euler loop (``pi0``, ``pi05``, ``smolvla``); ``fastwam``, whose video is encoded once and whose action expert
is denoised; ``lingbot_va``, one transformer that denoises the video first and the action after it. LeRobot
is imported nowhere here: it needs Python 3.12 and its own torch, so the adapter takes what it is handed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leanwam.errors import InputError
from leanwam.models.hosts.base import Host, Stream, class_names, require_attributes
from leanwam.models.hosts.descriptions import HeadDescription, HostDescription, Lever
from leanwam.models.hosts.recording import Playback
from leanwam.models.patching import InstancePatch


class _LeRobotHost(Host):
    """What the four have in common: a policy, its config, a count of one call where one is given."""

    expects: ClassVar[str] = "a LeRobot policy"
    _prediction: ClassVar[str] = "flow"

    @property
    def config(self) -> Any:
        return self.model.config

    def describe(self, call: Callable[[], Any] | None = None) -> HostDescription:
        """Heads and levers.

        Args:
            call: one sampling call, such as ``lambda: policy.predict_action_chunk(batch)``; it is made once
                and its operations are counted. Without it there are no shares.
        """
        counts = self.count_call(call) if call is not None else None
        steps = self.n_steps
        heads: dict[str, HeadDescription] = {}
        levers: list[Lever] = []
        for name in self.heads():
            flops = counts[name] // steps[name] if counts and steps.get(name) else None
            share = counts[name] / counts["total"] if counts and counts["total"] else None
            heads[name] = HeadDescription(self._prediction, self._gated_by(name), None, flops, share)
            levers.append(Lever(f"denoising of {name}", f"{name}=sparse_K", share, "a call", False))
        return HostDescription(
            host=self.name,
            model=type(self.model).__name__,
            heads=heads,
            n_steps=steps,
            flops_per_step=None,
            levers=tuple(levers),
            counted=None if counts is None else "torch FlopCounterMode on one call; share of the whole call",
            shares_of="a call",
        )

    def _gated_by(self, name: str) -> str:
        return "the network call of one denoising step"


class DiffusionPolicyHost(_LeRobotHost):
    """``diffusion``: the U-Net of ``DiffusionPolicy`` under its DDPM or DDIM scheduler."""

    name: ClassVar[str] = "LeRobot diffusion"
    expects: ClassVar[str] = "DiffusionPolicy with .diffusion.unet, or its DiffusionModel"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.core = getattr(model, "diffusion", model)
        require_attributes(
            self.name,
            self.core,
            {"unet": "the denoiser", "noise_scheduler": "DDPM or DDIM", "num_inference_steps": "steps"},
        )
        self._prediction_type = str(getattr(self.core.noise_scheduler.config, "prediction_type", "epsilon"))

    @classmethod
    def recognises(cls, model: Any) -> bool:
        names = class_names(model)
        return ("DiffusionPolicy" in names and hasattr(getattr(model, "diffusion", None), "unet")) or (
            "DiffusionModel" in names and hasattr(model, "unet") and hasattr(model, "conditional_sample")
        )

    def heads(self) -> dict[str, nn.Module]:
        return {"action": self.core.unet}

    @property
    def n_steps(self) -> dict[str, int]:
        return {"action": int(self.core.num_inference_steps)}

    @property
    def schedulers(self) -> dict[str, Any]:
        return {"action": self.core.noise_scheduler}

    def _attach(self) -> AbstractContextManager[Any]:
        return nullcontext()


class FlowPolicyHost(_LeRobotHost):
    """``pi0``, ``pi05``, ``smolvla``: ``denoise_step(..., x_t, timestep)`` in an Euler loop from t = 1 to 0.

    Real-time chunking differentiates through ``denoise_step``; a held velocity has no gradient, so a policy
    with it enabled is refused. So is one whose sampling was compiled as one graph.
    """

    name: ClassVar[str] = "LeRobot flow policy"
    expects: ClassVar[str] = (
        "PI0Policy, PI05Policy, SmolVLAPolicy (or what has sample_actions and denoise_step)"
    )
    time_scale: ClassVar[float] = 1.0

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.core = model if hasattr(model, "denoise_step") else model.model
        self._stream = Stream("action")

    @classmethod
    def recognises(cls, model: Any) -> bool:
        return any(
            callable(getattr(core, "denoise_step", None)) and callable(getattr(core, "sample_actions", None))
            for core in (model, getattr(model, "model", None))
        )

    def heads(self) -> dict[str, nn.Module]:
        return {"action": self._stream}

    @property
    def n_steps(self) -> dict[str, int]:
        config = self.core.config
        count = getattr(config, "num_inference_steps", getattr(config, "num_steps", None))
        return {"action": int(count)} if isinstance(count, int) else {}

    @contextmanager
    def _attach(self) -> Iterator[None]:
        enabled = getattr(self.core, "_rtc_enabled", None)
        if callable(enabled) and enabled():
            raise InputError(
                "real-time chunking needs gradients through every step: disable it (rtc_config)",
                field="rtc_processor",
            )
        if getattr(self.core.config, "compile_model", False):
            raise InputError(
                "sample_actions is compiled as one graph, in which no step can be left out: load the policy "
                "with compile_model=False",
                field="compile_model",
            )
        with InstancePatch(self.core, "denoise_step", self._route):
            yield

    def _route(self, run: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(run)

        def denoise_step(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            return self._stream(given["x_t"], given["timestep"], lambda: run(*args, **kwargs))

        return denoise_step

    @contextmanager
    def finals(self, finish: Callable[[Mapping[str, Tensor | None]], None]) -> Iterator[None]:
        def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
            def sample_actions(*args: Any, **kwargs: Any) -> Any:
                result = run(*args, **kwargs)
                finish({"action": result})
                return result

            return sample_actions

        with InstancePatch(self.core, "sample_actions", wrap):
            yield


class FastWAMHost(_LeRobotHost):
    """``fastwam``: the action expert reads a video cache that is filled once per call (``infer_action``);
    in ``infer_joint`` video and action are denoised together, and a call is left out where both hold."""

    name: ClassVar[str] = "LeRobot FastWAM"
    expects: ClassVar[str] = "FastWAMPolicy or its FastWAM core"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.core = model if "FastWAM" in class_names(model) else model.model
        require_attributes(
            self.name,
            self.core,
            {
                "_predict_action_noise_with_cache": "one action step",
                "_predict_joint_noise": "one joint step",
                "infer_action": "the sampling call",
            },
        )
        self._streams = {"action": Stream("action"), "video": Stream("video")}

    @classmethod
    def recognises(cls, model: Any) -> bool:
        return bool({"FastWAMPolicy", "FastWAM"} & set(class_names(model)))

    def heads(self) -> dict[str, nn.Module]:
        return dict(self._streams)

    @property
    def n_steps(self) -> dict[str, int]:
        count = getattr(getattr(self.model, "config", None), "num_inference_steps", None)
        return dict.fromkeys(self._streams, int(count)) if isinstance(count, int) else {}

    @property
    def recordable(self) -> tuple[str, ...]:
        return ("action",)

    def not_recordable(self, name: str) -> str:
        return "infer_joint returns the video decoded, not its latents"

    @contextmanager
    def _attach(self) -> Iterator[None]:
        if getattr(getattr(self.model, "config", None), "compile_action_infer", False):
            raise InputError(
                "the action step is compiled apart from its method: set compile_action_infer=False",
                field="compile_action_infer",
            )
        with (
            InstancePatch(self.core, "_predict_action_noise_with_cache", self._route_action),
            InstancePatch(self.core, "_predict_joint_noise", self._route_joint),
        ):
            yield

    def _route_action(self, run: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(run)

        def step(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            return self._streams["action"](
                given["latents_action"], given["timestep_action"], lambda: run(*args, **kwargs)
            )

        return step

    def _route_joint(self, run: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(run)

        def step(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            outputs: list[Any] = []

            def network() -> Any:
                if not outputs:
                    self.counters["joint_network"] = self.counters.get("joint_network", 0) + 1
                    outputs.append(run(*args, **kwargs))
                return outputs[0]

            return tuple(
                self._streams[name](
                    given[f"latents_{name}"], given[f"timestep_{name}"], lambda place=place: network()[place]
                )
                for place, name in enumerate(("video", "action"))
            )

        return step

    @contextmanager
    def finals(self, finish: Callable[[Mapping[str, Tensor | None]], None]) -> Iterator[None]:
        def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
            def infer(*args: Any, **kwargs: Any) -> Any:
                result = run(*args, **kwargs)
                finish({"action": result["action"][None]})
                return result

            return infer

        with ExitStack() as stack:
            stack.enter_context(InstancePatch(self.core, "infer_action", wrap))
            yield


class LingBotVAHost(_LeRobotHost):
    """``lingbot_va``: the video is denoised, then the action, by one transformer; the last call of each
    writes the key/value cache at t = 0 and is no denoising step: it always runs."""

    name: ClassVar[str] = "LeRobot LingBot-VA"
    expects: ClassVar[str] = "LingBotVAPolicy"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        require_attributes(
            self.name,
            model,
            {
                "transformer": "the network",
                "_scheduler": "of the video",
                "_action_scheduler": "of the action",
            },
        )
        self._streams = {"video": Stream("video"), "action": Stream("action")}
        self._frame_times: dict[str, Tensor] = {}

    @classmethod
    def recognises(cls, model: Any) -> bool:
        return "LingBotVAPolicy" in class_names(model)

    @property
    def _early_video(self) -> bool:
        return int(getattr(self.config, "video_exec_step", -1)) != -1

    def heads(self) -> dict[str, nn.Module]:
        return {name: s for name, s in self._streams.items() if name != "video" or not self._early_video}

    @property
    def n_steps(self) -> dict[str, int]:
        steps = {
            "video": int(self.config.num_inference_steps),
            "action": int(self.config.action_num_inference_steps),
        }
        return {name: steps[name] for name in self.heads()}

    @property
    def recorded(self) -> tuple[str, ...]:
        return ("action",)

    @contextmanager
    def _attach(self) -> Iterator[None]:
        self._frame_times.clear()
        with InstancePatch(self.model.transformer, "forward", self._route):
            yield

    def _route(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def forward(input_dict: Any, *args: Any, **kwargs: Any) -> Any:
            name = "action" if kwargs.get("action_mode", False) else "video"
            if kwargs.get("update_cache", 0) != 0 or name not in self.heads() or args:
                return run(input_dict, *args, **kwargs)
            self._frame_times[name] = input_dict["timesteps"]
            return self._streams[name](
                input_dict["noisy_latents"], input_dict["timesteps"], lambda: run(input_dict, **kwargs)
            )

        return forward

    @contextmanager
    def listen(self, names: list[str], playback: Playback) -> Iterator[None]:
        """Steps are noted where the schedulers integrate them: only there is guidance applied already."""
        schedulers = {"video": "_scheduler", "action": "_action_scheduler"}

        def listening(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
            def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
                def step(
                    model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any
                ) -> Any:
                    playback.note(name, sample, timestep, self._as_integrated(name, model_output))
                    return run(model_output, timestep, sample, *args, **kwargs)

                return step

            return wrap

        def ending(run: Callable[..., Any]) -> Callable[..., Any]:
            def infer(*args: Any, **kwargs: Any) -> Any:
                with ExitStack() as stack:
                    for name in names:  # looked up anew: reset() replaces them
                        scheduler = getattr(self.model, schedulers[name])
                        stack.enter_context(InstancePatch(scheduler, "step", listening(name)))
                    actions, latents = run(*args, **kwargs)
                playback.finish({"action": actions, "video": latents})
                return actions, latents

            return infer

        with InstancePatch(self.model, "_infer", ending):
            yield

    def _as_integrated(self, name: str, output: Tensor) -> Tensor:
        """The velocity with 0 where the policy overwrites the sample: conditioned frames, unused channels."""
        times = self._frame_times[name][0].to(output.device)
        used = output.masked_fill((times == 0).view(1, 1, -1, *[1] * (output.ndim - 3)), 0.0)
        if name == "action":
            unused = torch.ones(output.shape[1], dtype=torch.bool, device=output.device)
            unused[list(self.config.used_action_channel_ids)] = False
            used = used.masked_fill(unused.view(1, -1, *[1] * (output.ndim - 2)), 0.0)
        return used
