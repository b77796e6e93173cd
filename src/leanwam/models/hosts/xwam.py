"""X-WAM: one transformer yields video, action and proprio velocities (and depth) in one call.

Works on the user's own checkout, by the names of its classes and arguments: ``XWAMModel`` alone, or the
``XWAMRunner`` that samples with it. A network call is left out where every stream that is being denoised
holds; the held velocities are what the sampler hands to each scheduler's ``step``, so that the history of
its multistep solver stays right. Frame plans run by hooks on the blocks, under guidance and with depth too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leanwam.errors import InputError
from leanwam.models.frames import Port, Stack, Thinning, fill_dropped, thinned
from leanwam.models.hosts.base import Host, Stream, class_names, largest, require_attributes
from leanwam.models.hosts.descriptions import HostDescription
from leanwam.models.hosts.xwam_counts import XWAMShape, coder_flops, describe_xwam
from leanwam.models.patching import InstancePatch
from leanwam.plans import FrameKeep, TokenLayout, resolve_frames

#: Stream -> its noisy sample and its time among the arguments of ``XWAMModel.forward``.
_INPUTS = {
    "video": ("x", "t"),
    "action": ("actions", "t_actions"),
    "proprio": ("proprios", "t_proprios"),
}

#: RoboCasa as shipped: 9 frames in 3 latent frames, 3 views of 8 x 10 patches.
ROBOCASA_LAYOUT = TokenLayout(t=3, v=3, h=8, w=10, extra={"action": 32, "proprio": 9})


class XWAMHost(Host):
    """Adapter for ``XWAMModel`` or its ``XWAMRunner``.

    Options of ``execute``: ``depth_last_only=True`` computes the depth branch at the last denoising step
    alone (bit-identical: a full generation reads no other).

    Args:
        model: the runner or the model.
        early_stop: serving as upstream does it: the loop ends with the action steps, so that the video is
            stepped as often as the action. Concerns the counting of complete video calls only.
        layout: for ``describe`` only; while running it is read off each call.
    """

    name: ClassVar[str] = "X-WAM"
    expects: ClassVar[str] = "XWAMModel or XWAMRunner"

    def __init__(self, model: Any, *, early_stop: bool = False, layout: TokenLayout | None = None) -> None:
        super().__init__(model)
        self.runner = model if not self._is_network(model) else None
        self.network = model.model if self.runner is not None else model
        self.early_stop = early_stop
        self.layout = layout or ROBOCASA_LAYOUT
        self._streams = {name: Stream(name) for name in _INPUTS}
        self._depth_last_only = False
        self._last_outputs: tuple[Any, ...] | None = None
        self._keep: FrameKeep | None = None
        self._text_to_keep: tuple[str, TokenLayout] | None = None
        require_attributes(
            self.name,
            self.inner,
            {
                "blocks": "the transformer's blocks",
                "head": "the video head",
                "time_embedding": "per-token times",
                "patch_size": "latents per token",
            },
        )

    @property
    def inner(self) -> Any:
        """The network itself, where it is wrapped by ``torch.compile``."""
        return getattr(self.network, "_orig_mod", self.network)

    @classmethod
    def recognises(cls, model: Any) -> bool:
        if cls._is_network(model):
            return True
        return "XWAMRunner" in class_names(model) and cls._is_network(getattr(model, "model", None))

    @staticmethod
    def _is_network(model: Any) -> bool:
        return model is not None and "XWAMModel" in class_names(model)

    def heads(self) -> dict[str, nn.Module]:
        return dict(self._streams)

    @property
    def n_steps(self) -> dict[str, int]:
        config = getattr(self.runner, "config", None)
        if config is None:
            return {}
        video = int(config.sample_steps)
        action = int(config.action_denoise_steps) if config.use_decoupled_inference else video
        return {"video": action if self.early_stop else video, "action": action, "proprio": action}

    def describe(self) -> HostDescription:
        """Shares by the analytic count (checked against torch's own counter on the real configuration)."""
        return describe_xwam(self.inner, self.layout, self.n_steps, type(self.model).__name__)

    @property
    def recordable(self) -> tuple[str, ...]:
        return tuple(self._streams) if self.runner is not None else ()

    @property
    def recorded(self) -> tuple[str, ...]:
        """Action and proprio; the video is stepped more often and is large, so it is recorded on request."""
        return ("action", "proprio") if self.runner is not None else ()

    def not_recordable(self, name: str) -> str:
        return "give the runner: only it knows the final samples"

    def head_facts(self, names: list[str]) -> dict[str, dict[str, Any]]:
        """The operations that are a head's alone: its coders, on as many tokens as the runner is set to."""
        frames = getattr(getattr(self.runner, "config", None), "frame_num", None)
        if frames is None:
            return {}
        lengths = {"action": (int(frames) - 1) * int(self.inner.action_num), "proprio": int(frames)}
        flops = coder_flops(XWAMShape.of(self.inner), lengths)
        return {name: {"flops_per_call": flops[name]} for name in names if name in flops}

    def solver(self, head: str, n_steps: int) -> Any:
        """UniPC of order 2 on the noise levels that the runner's own scheduler takes."""
        from diffusers import UniPCMultistepScheduler

        config = self.runner.config  # type: ignore[union-attr]
        scheduler = UniPCMultistepScheduler(
            num_train_timesteps=int(config.flow_matching_num_train_timesteps),
            prediction_type="flow_prediction",
            use_flow_sigmas=True,
            flow_shift=float(config.time_shifting),
        )
        scheduler.set_timesteps(n_steps)
        scheduler.sigmas = upstream_sigmas(
            n_steps, float(config.time_shifting), int(config.flow_matching_num_train_timesteps)
        )
        scheduler.timesteps = (scheduler.sigmas[:-1] * scheduler.config.num_train_timesteps).long()
        return scheduler

    def reading(self, head: str, sample: Any, timestep: Any, output: Any) -> Tensor:
        """The velocity, with 0 where a token is a clean condition (its time is 0): the sampler overwrites
        whatever the solver makes of it, which amounts to no velocity at all."""
        shape = [timestep.shape[0], *[1] * (sample.ndim - 1)]
        if timestep.ndim == 2:
            shape[2 if head == "video" else 1] = timestep.shape[1]
        return output.masked_fill((timestep == 0).view(shape), 0.0)  # type: ignore[no-any-return]

    @contextmanager
    def finals(self, finish: Callable[[Mapping[str, Tensor | None]], None]) -> Iterator[None]:
        def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                result = run(*args, **kwargs)
                finish({"video": result[0], "action": result[1], "proprio": result[2]})
                return result

            return forward

        with InstancePatch(self.runner, "forward", wrap):
            yield

    def _options(self, **options: Any) -> AbstractContextManager[Any]:
        depth_last_only = bool(options.pop("depth_last_only", False))
        if depth_last_only and self.runner is None:
            raise InputError("only the runner knows which step is the last", field="depth_last_only")
        if depth_last_only and self.early_stop:
            raise InputError("there is no depth where sampling stops early", field="depth_last_only")
        super()._options(**options)
        return self._depth(depth_last_only)

    @contextmanager
    def _depth(self, last_only: bool) -> Iterator[None]:
        before, self._depth_last_only = self._depth_last_only, last_only
        try:
            yield
        finally:
            self._depth_last_only = before

    @contextmanager
    def _attach(self) -> Iterator[None]:
        self._last_outputs = None
        with ExitStack() as stack:
            stack.enter_context(InstancePatch(self.network, "forward", self._route))
            if self.runner is not None:
                stack.enter_context(InstancePatch(self.runner, "forward", self._one_call))
            try:
                yield
            finally:
                self._last_outputs = None

    def _one_call(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._step_of_call, self._depth_ran = 0, False
            result = run(*args, **kwargs)
            wanted = self._depth_last_only and bool(getattr(self.runner, "run_depth", False))
            if wanted and not self._depth_ran and not kwargs.get("early_stop", False):
                raise InputError(
                    f"the sampler took {self._step_of_call} steps, not the {self.n_steps['video']} configured",
                    field="depth_last_only",
                )
            if self._keep is not None and isinstance(result[0], Tensor):
                result = (fill_dropped(result[0], self._keep, tuple(self.inner.patch_size)), *result[1:])
            return result

        return forward

    _step_of_call = 0
    _depth_ran = False

    def _route(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The network's forward, asked for stream by stream and run at most once per step."""
        signature = inspect.signature(self.inner.forward)

        def forward(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            outputs: list[tuple[Any, ...]] = []
            held_depth = False
            if self._depth_last_only and given["run_depth"]:
                held_depth = self._step_of_call < self.n_steps["video"] - 1

            def network() -> tuple[Any, ...]:
                if not outputs:
                    self.counters["network"] = self.counters.get("network", 0) + 1
                    if given["run_depth"] and not held_depth:
                        self.counters["depth"] = self.counters.get("depth", 0) + 1
                    with self._without_depth() if held_depth else nullcontext():
                        outputs.append(tuple(run(**given)))
                return outputs[0]

            used: list[Any] = []
            for place, (name, (sample, time)) in enumerate(_INPUTS.items()):
                if given[sample] is None or largest(given[time]) <= 0:
                    used.append(None)  # a clean condition: no step of this stream, its output is not read
                    continue
                used.append(
                    self._streams[name](given[sample], given[time], lambda place=place: network()[place])
                )
            if given["run_depth"] and not held_depth:
                network()  # depth is no gated head: where it is wanted it is computed
                self._depth_ran = True
            self._step_of_call += 1
            if outputs:
                self._last_outputs = tuple(
                    value.detach() if isinstance(value, Tensor) else value for value in outputs[0][:3]
                )
            for place, value in enumerate(used):
                if value is None:
                    used[place] = self._unread(place, network)
            extras = outputs[0][3] if outputs else [None]
            return (*used, [None] if held_depth else extras)

        return forward

    @contextmanager
    def _without_depth(self) -> Iterator[None]:
        """A call with no depth branch. ``run_depth=False`` would say the same, but under guidance the
        upstream class then fails on its own empty result."""
        net = self.inner
        before = net.num_modalities
        net.num_modalities = 1
        try:
            yield
        finally:
            net.num_modalities = before

    def _unread(self, place: int, network: Callable[[], tuple[Any, ...]]) -> Any:
        """An output that the sampler does not read: the network's latest, with no call made for it."""
        if self._last_outputs is not None:
            return self._last_outputs[place]
        return network()[place]

    @contextmanager
    def _frames(self, text: str) -> Iterator[Thinning]:
        if self.network is not self.inner:
            raise InputError(
                "the network is compiled already and would not see the hooks: open the frame plan on the "
                "uncompiled model and compile within it",
                field="frames",
                value=text,
            )
        net = self.inner
        with thinned(self._stacks(net)) as thinning:
            hook = net.register_forward_pre_hook(
                lambda module, args, kwargs: self._choose(text, thinning, args, kwargs), with_kwargs=True
            )
            try:
                yield thinning
            finally:
                hook.remove()
                self._keep, self._text_to_keep = None, None

    def _choose(self, text: str, thinning: Thinning, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Resolve the frame plan on this call's shape; the same shape keeps the same mask."""
        given = inspect.signature(type(self.inner).forward).bind(None, *args, **kwargs).arguments
        layout = layout_of(given, tuple(self.inner.patch_size))
        if (text, layout) != self._text_to_keep:
            self._keep, self._text_to_keep = resolve_frames(text, layout), (text, layout)
        thinning.use(self._keep)

    @staticmethod
    def _stacks(net: Any) -> list[Stack]:
        """The main blocks, and one stack per depth branch, which reads the main one's thinned sequence."""
        freqs = (Port("freqs", 2, dim=0),)
        embed_time = ((net.time_embedding, Port("input", 0)),)
        stacks = [Stack(list(net.blocks), net.head, Port("x", 0), freqs, embed_time)]
        for blocks, head in zip(getattr(net, "extra_blocks", ()), getattr(net, "extra_heads", ())):
            stacks.append(Stack(list(blocks), head, Port("x", 0), freqs, part="video", arrives="thinned"))
        return stacks


def layout_of(given: dict[str, Any], patch: tuple[int, ...]) -> TokenLayout:
    """The token layout of a call of ``XWAMModel.forward``: x [B, C, T, V, H, W], actions and proprios."""
    x = given["x"]
    if x.ndim != 6:
        raise InputError(
            "is shaped [batch, channel, time, view, height, width]", field="x", value=list(x.shape)
        )
    return TokenLayout(
        t=x.shape[2] // patch[0],
        v=x.shape[3],
        h=x.shape[4] // patch[1],
        w=x.shape[5] // patch[2],
        extra={"action": given["actions"].shape[1], "proprio": given["proprios"].shape[1]},
    )


def upstream_sigmas(n_steps: int, shift: float, n_train: int = 1000) -> Tensor:
    """[n_steps + 1]: evenly spaced from 1 − 1/n_train, shifted, 0 at the end. diffusers' flow sigmas of the
    same shift lie up to 0.003 away, enough to move the last two weights by 0.0025."""
    even = torch.linspace(1 - 1 / n_train, 0, n_steps + 1, dtype=torch.float64)
    return (shift * even / (1 + (shift - 1) * even)).to(torch.float32)
