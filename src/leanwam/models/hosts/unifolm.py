"""UnifoLM-WMA-0: a video U-Net and two small U-Nets, action and state, that read its features.

Works on the user's own checkout by names and signatures alone: nothing of it is contained here.
``action_unet(x_action, timesteps, features, context)`` and ``state_unet`` likewise run once per DDIM step,
twice under classifier-free guidance in two calls (``n_branches=2``). The video network never reads the
noisy action or state, and the heads do not read each other: the video is bit-identical under every plan
for the heads. Holding ``video`` holds its *features* too: only the heads run then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from leanwam.errors import InputError
from leanwam.models.hosts.base import Host, Stream, class_names, require_attributes
from leanwam.models.hosts.counting import count_on_meta, part_of
from leanwam.models.hosts.descriptions import HeadDescription, HostDescription, Lever
from leanwam.models.patching import InstancePatch

#: Where the network hides in what people hold: the network, its wrapper, the diffusion model, the sampler.
_PATHS = ((), ("diffusion_model",), ("model", "diffusion_model"), ("model", "model", "diffusion_model"))

_HEADS = {"action": "action_unet", "state": "state_unet"}


class HeadCall(NamedTuple):
    """What the video network hands to a head, beside the noisy sample: all that a later step needs."""

    n_times: int
    features: Any
    context: Any
    options: dict[str, Any]


class VideoOutput(NamedTuple):
    """The video stream's output; ``velocity`` is what its sampler integrates, the rest is held with it."""

    velocity: Tensor
    action: HeadCall
    state: HeadCall


class UnifoLMHost(Host):
    """Adapter for ``WMAModel`` or anything that holds one as ``model.diffusion_model``.

    Options of ``execute``: ``cache_encoder=True`` runs the heads' observation encoder once per distinct
    input instead of once per step (bit-identical: its input does not change over the steps).
    """

    name: ClassVar[str] = "UnifoLM-WMA-0"
    expects: ClassVar[str] = "WMAModel, or what holds one as (model.)diffusion_model, or its DDIMSampler"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        network = _find(model)
        if network is None:
            raise InputError(f"{self.name}: expected {self.expects}", field="host")
        self.network: Any = network
        require_attributes(
            self.name, network, {"action_unet": "the action head", "state_unet": "the state head"}
        )
        self._video = Stream("video")
        self._calls: dict[str, HeadCall] = {}

    @classmethod
    def recognises(cls, model: Any) -> bool:
        return _find(model) is not None

    def heads(self) -> dict[str, nn.Module]:
        return {
            "action": self.network.action_unet,
            "state": self.network.state_unet,
            "video": self._video,
        }

    @property
    def schedulers(self) -> dict[str, Any]:
        for path in ((), ("model",)):
            owner = _walk(self.model, path)
            if hasattr(owner, "dp_noise_scheduler_action"):
                return {"action": owner.dp_noise_scheduler_action, "state": owner.dp_noise_scheduler_state}
        return {}

    @property
    def n_steps(self) -> dict[str, int]:
        """As the last sampling call set them (50 in the scripts, 16 in the robot server); else unknown."""
        counts = {getattr(s, "num_inference_steps", None) for s in self.schedulers.values()}
        count = counts.pop() if len(counts) == 1 else None
        return dict.fromkeys(self.heads(), count) if isinstance(count, int) else {}

    @property
    def recordable(self) -> tuple[str, ...]:
        return tuple(self.schedulers)

    def not_recordable(self, name: str) -> str:
        if name == "video":
            return "it is integrated inside the sampler's own function"
        return "give the diffusion model that holds the two DDIM schedulers"

    def describe(self, example: tuple[tuple[Any, ...], dict[str, Any]] | None = None) -> HostDescription:
        """Shares counted by torch's operation counter on the meta device.

        Args:
            example: arguments of ``WMAModel.forward``; by default those of the released configuration
                (16 frames of 40 x 64 latents, two observed frames of 320 x 512).
        """
        args, kwargs = example or released_example(self.network)
        counts = count_on_meta(self.network, args, kwargs)
        heads = {name: part_of(counts, attribute) for name, attribute in _HEADS.items()}
        encoders = sum(part_of(counts, f"{attribute}.obs_encoder") for attribute in _HEADS.values())
        total = counts[""]
        described = {
            name: HeadDescription("epsilon", "this head's own U-Net", None, flops, flops / total)
            for name, flops in heads.items()
        }
        video = total - sum(heads.values())
        described["video"] = HeadDescription(
            "v_prediction",
            "the video U-Net; the heads then read its held features",
            None,
            video,
            video / total,
        )
        return HostDescription(
            host=self.name,
            model=type(self.model).__name__,
            heads=described,
            n_steps=self.n_steps,
            flops_per_step=total,
            levers=(
                Lever("both heads", "sparse_10, …", sum(heads.values()) / total, "a step", False),
                Lever("video features", "video=sparse_10, …", video / total, "a step", False),
                Lever("the heads' encoder", "cache_encoder=True", encoders / total, "a step", True),
            ),
            counted="torch FlopCounterMode on the meta device; one sample, no guidance",
        )

    def _frames(self, text: str) -> AbstractContextManager[Any]:
        raise InputError(
            f"{self.name}: a convolutional U-Net has no token sequence to thin", field="frames", value=text
        )

    def _options(self, **options: Any) -> AbstractContextManager[Any]:
        cache_encoder = bool(options.pop("cache_encoder", False))
        super()._options(**options)
        return self._cached_encoders() if cache_encoder else ExitStack()

    @contextmanager
    def _cached_encoders(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, attribute in _HEADS.items():
                encoder = getattr(getattr(self.network, attribute), "obs_encoder", None)
                if not isinstance(encoder, nn.Module):
                    raise InputError(f"{attribute} has no obs_encoder", field="cache_encoder")
                if encoder.training:
                    raise InputError("the encoder is in training mode: call eval()", field="cache_encoder")
                cache = _EncoderCache(name, self.counters)
                stack.enter_context(InstancePatch(encoder, "forward", cache.wrap))
            yield

    @contextmanager
    def _attach(self) -> Iterator[None]:
        handles = [
            getattr(self.network, attribute).register_forward_pre_hook(self._remember(name), with_kwargs=True)
            for name, attribute in _HEADS.items()
        ]
        try:
            with InstancePatch(self.network, "forward", self._route):
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._calls.clear()

    def _remember(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if len(args) < 4:
                raise InputError(
                    "expected action_unet(x, timesteps, features, context): this is another version of it",
                    field=_HEADS[name],
                )
            self._calls[name] = HeadCall(args[1].shape[0], args[2], args[3], dict(kwargs))

        return hook

    def _route(self, run: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(run)

        def forward(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            whole: list[Any] = []

            def compute() -> VideoOutput:
                self.counters["video_network"] = self.counters.get("video_network", 0) + 1
                self._calls.clear()
                whole.append(run(*args, **kwargs))
                if set(self._calls) != set(_HEADS):
                    raise InputError("the network ran no heads (base_model_gen_only?)", field="heads")
                return VideoOutput(whole[0][0], self._calls["action"], self._calls["state"])

            video = self._video(given["x"], given["timesteps"], compute)
            if whole:
                return whole[0]
            outputs = [
                getattr(self.network, _HEADS[name])(
                    given[f"x_{name}"],
                    given["timesteps"][: call.n_times],
                    call.features,
                    call.context,
                    **call.options,
                )
                for name, call in (("action", video.action), ("state", video.state))
            ]
            return (video.velocity, *outputs)

        return forward


class _EncoderCache:
    """One head's observation encoder, run once per distinct input; a few inputs are kept (guidance)."""

    _KEPT = 4

    def __init__(self, name: str, counters: dict[str, int]) -> None:
        self._name, self._counters = name, counters
        self._entries: list[tuple[Any, Any]] = []

    def wrap(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def forward(observation: Any, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs or torch.is_grad_enabled():
                return run(observation, *args, **kwargs)
            for known, encoded in self._entries:
                if _same(known, observation):
                    return encoded
            encoded = run(observation)
            key = f"encoder_{self._name}"
            self._counters[key] = self._counters.get(key, 0) + 1
            kept = {k: v.clone() if isinstance(v, Tensor) else v for k, v in observation.items()}
            self._entries = [(kept, encoded), *self._entries][: self._KEPT]
            return encoded

        return forward


def _same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(value, second[key]) if isinstance(value, Tensor) else value == second[key]
        for key, value in first.items()
    )


def _walk(start: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        start = getattr(start, name, None)
    return start


def _find(model: Any) -> Any | None:
    for path in _PATHS:
        found = _walk(model, path)
        if found is not None and "WMAModel" in class_names(found):
            return found
    return None


def released_example(
    network: Any,
    *,
    latent: tuple[int, int] = (40, 64),
    image: tuple[int, int] = (320, 512),
    stream_dim: int = 16,
    context_dim: int = 1024,
    n_text: int = 77,
    n_per_frame: int = 16,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of ``WMAModel.forward`` in the shapes of the released configuration, on the meta device."""
    frames, observed = network.temporal_length, network.n_obs_steps

    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, device="meta")

    n_context = observed + frames + n_text + frames * n_per_frame
    args = (
        empty(1, network.in_channels, frames, *latent),
        empty(1, frames, stream_dim),
        empty(1, frames, stream_dim),
        torch.empty(1, dtype=torch.long, device="meta"),
    )
    kwargs = {
        "context": empty(1, n_context, context_dim),
        "context_action": [empty(1, 3, observed, *image), empty(1, observed, stream_dim)],
    }
    return args, kwargs
