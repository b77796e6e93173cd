"""diffusers: a pipeline, or any loop around a denoiser and one of its schedulers.

The denoiser's call is the head. Frame plans run on ``WanTransformer3DModel``, whose token sequence is the
video grid. Caches of diffusers (FirstBlockCache, TaylorSeer, MagCache, …) are plans too:
``execute("cache:first_block:threshold=0.1")``. Whatever the plan, the blocks and self-attentions of the
transformer that really ran are counted (``counters["blocks"]``, ``counters["attention"]``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, ClassVar

import msgspec
import torch
from torch import Tensor, nn

from leanwam.errors import InputError
from leanwam.models.frames import Port, Stack, Thinning, fill_dropped, thinned
from leanwam.models.hosts.base import Host, HostExecution, Stream, class_names, largest
from leanwam.models.hosts.caches import enabled_cache
from leanwam.models.hosts.counting import count_on_meta
from leanwam.models.hosts.descriptions import HeadDescription, HostDescription, Lever
from leanwam.models.patching import InstancePatch
from leanwam.plans import FrameKeep, Plan, PlanSpec, TokenLayout, parse_plan, resolve_frames
from leanwam.plans.caches import PREFIX

#: Transformers whose blocks take a video grid of tokens as their first argument, and where it passes.
_WAN = "WanTransformer3DModel"


class DiffusersHost(Host):
    """Adapter for a pipeline, or for a denoiser with ``scheduler=``.

    Options of ``execute``: ``cache="first_block:threshold=0.1"`` puts a cache into a plan that names none.

    Args:
        model: a ``DiffusionPipeline`` (its ``transformer`` and ``transformer_2``, or its ``unet``), or the
            denoiser itself.
        scheduler: that of the caller's loop, where a bare denoiser is given; wanted for ``record``.
        stream: what the head is called; by default ``video`` for models of video, else ``image``. A plan
            without head names does not concern a head called ``video``: say ``video=sparse_10``.
    """

    name: ClassVar[str] = "diffusers"
    expects: ClassVar[str] = "a diffusers pipeline with a transformer or unet, or a denoiser of diffusers"

    def __init__(self, model: Any, *, scheduler: Any = None, stream: str | None = None) -> None:
        super().__init__(model)
        self.pipeline = model if not isinstance(model, nn.Module) else None
        self.denoisers = _denoisers(model)
        self._scheduler = scheduler
        video = any(
            "3D" in name or "Video" in name for net in self.denoisers for name in class_names(net)[:1]
        )
        self.stream_name = stream or ("video" if video else "image")
        self._stream = Stream(self.stream_name)
        self._time: float | None = None
        self._branch, self._n_branches, self._step = 0, 1, 0
        self._keep: FrameKeep | None = None
        self._resolved_for: tuple[str, TokenLayout] | None = None
        self._cache: str | None = None

    @classmethod
    def recognises(cls, model: Any) -> bool:
        names = class_names(model)
        if "DiffusionPipeline" in names:
            return any(getattr(model, part, None) is not None for part in ("transformer", "unet"))
        return isinstance(model, nn.Module) and "ModelMixin" in names and _takes_time(model)

    @property
    def transformer(self) -> Any:
        """The first denoiser."""
        return self.denoisers[0]

    def heads(self) -> dict[str, nn.Module]:
        return {self.stream_name: self._stream}

    @property
    def schedulers(self) -> dict[str, Any]:
        scheduler = self._scheduler if self._scheduler is not None else getattr(self.model, "scheduler", None)
        return {} if scheduler is None else {self.stream_name: scheduler}

    @property
    def n_steps(self) -> dict[str, int]:
        """As the scheduler was set last; unknown before its first ``set_timesteps``."""
        scheduler = self.schedulers.get(self.stream_name)
        if getattr(scheduler, "num_inference_steps", None) is None:
            return {}
        return {self.stream_name: len(scheduler.timesteps)}  # type: ignore[union-attr]

    @property
    def recordable(self) -> tuple[str, ...]:
        return tuple(self.schedulers)

    def not_recordable(self, name: str) -> str:
        return "give the loop's scheduler=, or the pipeline"

    def describe(
        self, latent: tuple[int, int, int] = (21, 60, 104), *, text_len: int = 512
    ) -> HostDescription:
        """Shares of a Wan transformer by torch's counter on the meta device.

        Args:
            latent: frames, height and width of the latents; by default 81 frames of 480 x 832.
            text_len: tokens of the prompt.
        """
        net = self.transformer
        layout, flops = None, None
        levers = [Lever("denoiser calls", f"{self.stream_name}=sparse_K", 1.0, "a step", False)]
        if _WAN in class_names(net):
            layout = _layout(latent, tuple(net.config.patch_size))
            example = _wan_example(net, latent, text_len)
            flops = count_on_meta(net, (), example)[""]
            for plan in ("drop_middle", "keep:0.25:seed=0"):
                if layout.t >= 3:
                    with thinned(_wan_stacks(net), resolve_frames(plan, layout)):
                        thin = count_on_meta(net, (), example)[""]
                    levers.append(Lever("video tokens", f"frames={plan}", 1 - thin / flops, "a step", False))
        head = HeadDescription(None, "the denoiser's call", None, flops, None if flops is None else 1.0)
        return HostDescription(
            host=self.name,
            model=f"{type(self.model).__name__} with {type(net).__name__}",
            heads={self.stream_name: head},
            n_steps=self.n_steps,
            layout=layout,
            flops_per_step=flops,
            levers=tuple(levers),
            counted=None if flops is None else "torch FlopCounterMode on the meta device; one sample",
        )

    @contextmanager
    def execute(
        self,
        plan: Plan | PlanSpec | str,
        *,
        n_branches: int | Mapping[str, int] = 1,
        cache: str | None = None,
        **options: Any,
    ) -> Iterator[HostExecution]:
        """As ``Host.execute``; ``cache`` names one for a plan that has none."""
        spec = parse_plan(plan) if isinstance(plan, str) else plan
        if cache is not None:
            if spec.cache is not None:
                raise InputError("the plan names a cache already", field="cache", value=cache)
            spec = msgspec.structs.replace(spec, cache=str(cache).removeprefix(PREFIX))
        branches = n_branches.get(self.stream_name, 1) if isinstance(n_branches, Mapping) else n_branches
        before, self._n_branches = self._n_branches, branches
        try:
            with ExitStack() as stack:
                for net in self.denoisers:
                    stack.enter_context(self._counted(net))
                yield stack.enter_context(super().execute(spec, n_branches=n_branches, **options))
        finally:
            self._n_branches = before

    def fill(self, latents: Tensor, keep: FrameKeep) -> Tensor:
        """Latents whose dropped tokens hold the nearest kept frame, for loops that decode on their own."""
        return fill_dropped(latents, keep, tuple(self.transformer.config.patch_size))

    @contextmanager
    def _cached(self, text: str) -> Iterator[None]:
        with ExitStack() as stack:
            for net in self.denoisers:
                stack.enter_context(enabled_cache(net, text, lambda: self._time or 0.0))
            self._cache = text
            try:
                yield
            finally:
                self._cache = None

    @contextmanager
    def _counted(self, net: Any) -> Iterator[None]:
        """Count the blocks and self-attentions that really run.

        Opened before a cache: that replaces a block's forward by one of its own, which calls ours where the
        block is to run. An attention is counted by its query projection, which runs whenever it does.
        """
        if hasattr(net, "_orig_mod"):
            yield  # compiled: nothing inside is called as a module any more
            return
        with ExitStack() as stack:
            for block in transformer_blocks(net):
                stack.enter_context(InstancePatch(block, "forward", self._counting_block))
            for name, module in net.named_modules():
                if name.endswith(("attn1.to_q", "attn.to_q")):
                    stack.callback(module.register_forward_pre_hook(self._count_attention).remove)
            yield

    def _counting_block(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self.counters["blocks"] = self.counters.get("blocks", 0) + 1
            return run(*args, **kwargs)

        return forward

    def _count_attention(self, module: nn.Module, args: Any) -> None:
        self.counters["attention"] = self.counters.get("attention", 0) + 1

    def _restart(self) -> None:
        self._time, self._branch, self._step = None, 0, 0

    @contextmanager
    def _attach(self) -> Iterator[None]:
        self._restart()
        with ExitStack() as stack:
            for net in self.denoisers:
                stack.enter_context(InstancePatch(net, "forward", partial(self._route, net=net)))
            yield

    def _route(self, run: Callable[..., Any], net: Any) -> Callable[..., Any]:
        signature = inspect.signature(type(getattr(net, "_orig_mod", net)).forward)

        def forward(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(net, *args, **kwargs).arguments
            sample = given.get("hidden_states", given.get("sample"))
            time = largest(given["timestep"])
            begins = self._advance(time)

            def network() -> Any:
                self.counters["network"] = self.counters.get("network", 0) + 1
                with self._context(net, begins):
                    return run(*args, **kwargs)

            return self._stream(sample, given["timestep"], network)

        return forward

    def _advance(self, time: float) -> bool:
        """Where in the sampling call a denoiser's call is; whether it is the first one."""
        if time == self._time and self._branch + 1 < self._n_branches:
            self._branch += 1
            return False
        begins = self._time is None or time >= self._time
        self._step = 0 if begins else self._step + 1
        self._time, self._branch = time, 0
        return begins

    def _context(self, net: Any, begins: bool) -> AbstractContextManager[Any]:
        """Caches keep a state per guidance branch; pipelines name it themselves, bare loops seldom do."""
        if self._cache is None or self.pipeline is not None or not hasattr(net, "cache_context"):
            return nullcontext()
        if begins:
            net._reset_stateful_cache()
        told: dict[str, Any] = {}
        if "kwargs" in inspect.signature(net.cache_context).parameters:
            told = {"step_index": self._step, "timestep": self._time, **self._place()}
        return net.cache_context(f"branch_{self._branch}", **told)  # type: ignore[no-any-return]

    def _place(self) -> dict[str, Any]:
        """Number of steps and noise level as the scheduler has them, for caches that ask for these."""
        scheduler = self.schedulers.get(self.stream_name)
        n_steps = self.n_steps.get(self.stream_name)
        sigmas = getattr(scheduler, "sigmas", None)
        if n_steps is None or sigmas is None or self._step >= len(sigmas):
            return {}
        return {"num_inference_steps": n_steps, "sigma": float(sigmas[self._step])}

    @contextmanager
    def _frames(self, text: str) -> Iterator[Thinning]:
        for net in self.denoisers:
            if _WAN not in class_names(net) or hasattr(net, "_orig_mod"):
                raise InputError(
                    f"frame plans run on an uncompiled {_WAN}, this is {type(net).__name__}",
                    field="frames",
                    value=text,
                )
        with ExitStack() as stack:
            vae = getattr(self.pipeline, "vae", None)
            if vae is not None:
                stack.enter_context(InstancePatch(vae, "decode", self._filling))
            thinnings: list[Thinning] = []
            for net in self.denoisers:
                thinning = stack.enter_context(thinned(_wan_stacks(net)))
                hook = net.register_forward_pre_hook(self._choosing(text, thinning), with_kwargs=True)
                stack.callback(hook.remove)
                thinnings.append(thinning)
            try:
                yield thinnings[0]
            finally:
                self._keep, self._resolved_for = None, None

    def _choosing(self, text: str, thinning: Thinning) -> Callable[..., None]:
        """Resolve the frame plan on each call's shape; the same shape keeps the same mask."""

        def hook(net: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            latents = kwargs.get("hidden_states", args[0] if args else None)
            layout = _layout(tuple(latents.shape[2:]), tuple(net.config.patch_size))  # type: ignore[union-attr]
            if (text, layout) != self._resolved_for:
                self._keep, self._resolved_for = resolve_frames(text, layout), (text, layout)
            thinning.use(self._keep)

        return hook

    def _filling(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        def filled(z: Tensor, *args: Any, **kwargs: Any) -> Any:
            return decode(z if self._keep is None else self.fill(z, self._keep), *args, **kwargs)

        return filled


def _denoisers(model: Any) -> list[Any]:
    if isinstance(model, nn.Module):
        return [model]
    found = [getattr(model, part, None) for part in ("transformer", "transformer_2")]
    networks = [net for net in found if net is not None]
    if not networks and getattr(model, "unet", None) is not None:
        networks = [model.unet]
    if not networks:
        raise InputError(f"{type(model).__name__} has neither transformer nor unet", field="host")
    return networks


def transformer_blocks(net: Any) -> list[nn.Module]:
    """The blocks of a transformer of diffusers: what its lists named ``…blocks`` hold; a U-Net has none."""
    return [
        block
        for name, child in net.named_children()
        if isinstance(child, nn.ModuleList)
        and name.endswith("blocks")
        and not name.endswith(("down_blocks", "up_blocks"))
        for block in child
    ]


def _takes_time(model: nn.Module) -> bool:
    inner = getattr(model, "_orig_mod", model)
    names = inspect.signature(type(inner).forward).parameters
    return "timestep" in names and bool({"hidden_states", "sample"} & set(names))


def _layout(latent: tuple[int, ...], patch: tuple[int, ...]) -> TokenLayout:
    t, h, w = (size // p for size, p in zip(latent, patch))
    return TokenLayout(t=t, v=1, h=h, w=w)


def _wan_stacks(net: Any) -> list[Stack]:
    """Wan scales and shifts the full sequence between its last block and ``proj_out``: the length comes back
    after the blocks, and what ``proj_out`` makes of dropped tokens is set to zero."""
    per_token = (Port("temb", 2, ndim=4), Port("rotary_emb", 3))
    return [Stack(list(net.blocks), net.proj_out, Port("hidden_states", 0), per_token, restore="block")]


def _wan_example(net: Any, latent: tuple[int, int, int], text_len: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.empty(1, net.config.in_channels, *latent, device="meta"),
        "timestep": torch.empty(1, dtype=torch.long, device="meta"),
        "encoder_hidden_states": torch.empty(1, text_len, net.config.text_dim, device="meta"),
        "return_dict": False,
    }
