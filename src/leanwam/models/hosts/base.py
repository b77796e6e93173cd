"""What every host adapter offers: ``describe``, ``execute``, ``record``, ``frames`` on an unmodified model.

An adapter routes the calls that a model makes once per denoising step through ``Stream`` modules, one per
head. A stream computes nothing of its own: it is the place where ``models.execute`` puts its gate, so that
every host is gated, counted and checked by the same code as the reference model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from torch import Tensor, nn

from leanwam.errors import InputError
from leanwam.models.flops import flop_counter
from leanwam.models.frames import Thinning
from leanwam.models.gates import Execution, execute
from leanwam.models.hosts.descriptions import HostDescription
from leanwam.plans import Plan, PlanSpec, parse_plan

if TYPE_CHECKING:
    from leanwam.models.hosts.recording import Playback


class Stream(nn.Module):
    """The place of one head: its forward runs the host's own computation, or a gate stands in for it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.last: Any = None

    def forward(self, sample: Any, timestep: Any, run: Callable[[], Any]) -> Any:
        """``sample``: the noisy x_t that the head sees; ``timestep``: larger is noisier; ``run``: compute."""
        return run()


@dataclass
class HostExecution:
    """What ran under a plan on a host: the gates' record, the frame plan's, and the host's own counters.

    Attributes:
        execution: of ``models.execute``: real executions per head, per call.
        counters: how often the host's networks ran, by the host's own names (``network``, ``encoder``, …).
        thinning: the frame plan in force, or None.
        restart: makes the host forget an unfinished call.
    """

    execution: Execution
    counters: dict[str, int] = field(default_factory=dict)
    thinning: Thinning | None = None
    restart: Callable[[], None] = lambda: None

    @property
    def plan(self) -> Plan:
        return self.execution.plan

    @property
    def executions(self) -> dict[str, int]:
        return self.execution.executions

    @property
    def executions_per_call(self) -> dict[str, list[int]]:
        return self.execution.executions_per_call

    @property
    def n_calls(self) -> dict[str, int]:
        return self.execution.n_calls

    def reset(self) -> None:
        """Forget an unfinished call."""
        self.execution.reset()
        self.restart()


class Host(ABC):
    """An adapter bound to one model of the user's. It changes nothing until a context is opened."""

    #: What error messages and reports call it.
    name: ClassVar[str]
    #: What it recognises, in words.
    expects: ClassVar[str]

    def __init__(self, model: Any) -> None:
        self.model = model
        self.counters: dict[str, int] = {}
        self._attached = 0

    @classmethod
    @abstractmethod
    def recognises(cls, model: Any) -> bool:
        """Whether the model's class is one that this adapter knows."""

    @abstractmethod
    def describe(self) -> HostDescription:
        """Heads, layout, shares and levers of this very model; analytic or on the meta device."""

    @abstractmethod
    def heads(self) -> dict[str, nn.Module]:
        """Head name -> the module that is gated: a ``Stream``, or the model's own submodule."""

    @property
    @abstractmethod
    def n_steps(self) -> dict[str, int]:
        """Per head, the steps of the sampler as configured; a head is absent where that is unknown."""

    @property
    def schedulers(self) -> dict[str, Any]:
        """Per head, the scheduler whose ``step`` is called once per denoising step, where one is reachable."""
        return {}

    @property
    def recordable(self) -> tuple[str, ...]:
        """The heads that can be recorded."""
        return tuple(self.heads())

    @property
    def recorded(self) -> tuple[str, ...]:
        """The heads that ``record`` takes where none are named: by default all that can be."""
        return self.recordable

    def not_recordable(self, name: str) -> str:
        """Why a head cannot be recorded."""
        return "its sampler is out of reach"

    def model_text(self) -> str:
        """What a trace says its model is."""
        return f"{self.name}: {type(self.model).__name__}"

    def head_facts(self, names: list[str]) -> dict[str, dict[str, Any]]:
        """Fields of a trace's ``HeadMeta`` that the host knows, per head."""
        return {}

    #: For heads without a reachable scheduler: the host's time at pure noise.
    time_scale: ClassVar[float] = 1000.0

    def solver(self, head: str, n_steps: int) -> Any:
        """For heads without a reachable scheduler: an object that names and probes their solver."""
        from leanwam.models.hosts.euler import EulerFlow

        return EulerFlow(n_steps, self.time_scale)

    def reading(self, head: str, sample: Any, timestep: Any, output: Any) -> Tensor:
        """For those heads: the model output as the solver uses it."""
        return output  # type: ignore[no-any-return]

    def finals(self, finish: Callable[[Mapping[str, Tensor | None]], None]) -> AbstractContextManager[Any]:
        """For those heads: while open, call ``finish`` with the final samples at the end of every call."""
        raise InputError(f"{self.name}: the end of a call cannot be seen", field="host")

    @contextmanager
    def listen(self, names: list[str], playback: Playback) -> Iterator[None]:
        """For those heads: while open, note every step and the end of every call."""
        modules = self.heads()

        def listener(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
                used = self.reading(name, args[0], args[1], output)
                playback.note(name, args[0], args[1], used)

            return hook

        handles = [modules[name].register_forward_hook(listener(name)) for name in names]
        try:
            with self.finals(playback.finish):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def count_call(self, call: Callable[[], Any]) -> dict[str, int]:
        """FLOPs of one real sampling call: per head (all its steps), and ``total`` (``flop_counter``)."""
        modules = self.heads()
        counts = dict.fromkeys(modules, 0)
        counter = flop_counter()

        def before(name: str) -> Callable[..., None]:
            return lambda module, args: started.__setitem__(name, counter.get_total_flops())

        def after(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                counts[name] += int(counter.get_total_flops()) - started.pop(name)

            return hook

        started: dict[str, int] = {}
        handles: list[Any] = []
        for name, module in modules.items():
            handles += [
                module.register_forward_pre_hook(before(name)),
                module.register_forward_hook(after(name)),
            ]
        try:
            with self.attach(), counter:
                call()
        finally:
            for handle in handles:
                handle.remove()
        return {**counts, "total": int(counter.get_total_flops())}

    @abstractmethod
    def _attach(self) -> AbstractContextManager[Any]:
        """Route the model's calls through the streams; undone on exit."""

    def _frames(self, text: str) -> AbstractContextManager[Thinning]:
        raise InputError(f"{self.name}: this model runs no frame plans", field="frames", value=text)

    def _cached(self, text: str) -> AbstractContextManager[Any]:
        raise InputError(f"{self.name}: this model runs no cache plans", field="cache", value=text)

    def _restart(self) -> None:  # noqa: B027 (most hosts know nothing of a call in flight)
        """Forget what is known of an unfinished call."""

    @contextmanager
    def attach(self) -> Iterator[Host]:
        """Route the model's calls through the streams while open (nested use is one attachment)."""
        self._attached += 1
        try:
            with self._attach() if self._attached == 1 else nullcontext():
                yield self
        finally:
            self._attached -= 1

    @contextmanager
    def frames(self, text: str) -> Iterator[Thinning]:
        """Run the model under a frame plan (``drop_middle``, ``keep:0.25:seed=3``, …).

        Raises:
            InputError: no such plan, or this host runs none.
        """
        with self._frames(text) as thinning:
            yield thinning

    @contextmanager
    def execute(
        self,
        plan: Plan | PlanSpec | str,
        *,
        n_steps: int | Mapping[str, int] | None = None,
        n_branches: int | Mapping[str, int] = 1,
        copy: bool = False,
        **options: Any,
    ) -> Iterator[HostExecution]:
        """Run the host under a plan: heads gated, frames left out, the host's own options set.

        Args:
            plan: text, spec or resolved plan; a frame plan and a cache in it are run too.
            n_steps: steps per head, where the configured ones are not those that run.
            n_branches: calls per head and step (2 under guidance in two calls).
            copy: see ``models.execute``.
            options: of this host; see its class.

        Raises:
            InputError: a head, option or cache that this host has not, a number of steps that is unknown.
        """
        spec = parse_plan(plan) if isinstance(plan, str) else plan
        frames, cache = spec.frames, spec.cache
        heads_only = msgspec.structs.replace(spec, frames=None, cache=None)
        steps = self._steps(n_steps)
        modules = self._gated_heads(heads_only, steps)
        steps = {name: steps[name] for name in modules if name in steps}
        with ExitStack() as stack:
            self.counters = {}
            stack.enter_context(self._options(**options))
            if cache is not None:
                stack.enter_context(self._cached(cache))
            stack.enter_context(self.attach())
            thinning = stack.enter_context(self._frames(frames)) if frames is not None else None
            running = stack.enter_context(
                execute(
                    self.model,
                    heads_only,
                    modules,
                    n_steps=steps,
                    n_branches=n_branches,
                    copy=copy,
                )
            )
            yield HostExecution(running, self.counters, thinning, self._restart)

    def record(self, out: str | Path, **options: Any) -> AbstractContextManager[Any]:
        """Record the sampling calls made while open as a trace; see ``hosts.recording.record_host``."""
        from leanwam.models.hosts.recording import record_host

        return record_host(self, out, **options)

    def _options(self, **options: Any) -> AbstractContextManager[Any]:
        """The host's own levers; the base has none."""
        for name in options:
            raise InputError(f"{self.name} has no such option", field=name, value=options[name])
        return nullcontext()

    def _steps(self, given: int | Mapping[str, int] | None) -> dict[str, int]:
        steps = dict(self.n_steps)
        if isinstance(given, Mapping):
            unknown = [name for name in given if name not in self.heads()]
            if unknown:
                raise InputError(
                    f"no such head (there is {', '.join(self.heads())})", field="n_steps", value=unknown[0]
                )
            steps.update(given)
        elif given is not None:
            steps = dict.fromkeys(self.heads(), given)
        return steps

    def _gated_heads(self, plan: Plan | PlanSpec, steps: Mapping[str, int]) -> dict[str, nn.Module]:
        """The heads that a plan concerns: those that it names, and every one whose steps are known."""
        heads = self.heads()
        for name in plan.heads:
            if name not in heads:
                raise InputError(
                    f"{self.name} has no such head (there is {', '.join(heads)})", field="plan", value=name
                )
            if name not in steps and isinstance(plan, PlanSpec):
                raise InputError(
                    "the number of denoising steps is unknown: give n_steps", field=f"n_steps[{name!r}]"
                )
        chosen = {name: module for name, module in heads.items() if name in plan.heads or name in steps}
        if isinstance(plan, Plan):
            chosen = {name: heads[name] for name in plan.heads}
        if not chosen:
            raise InputError(
                f"{self.name}: the number of denoising steps is unknown: give n_steps", field="n_steps"
            )
        return chosen


def class_names(model: Any) -> list[str]:
    """The names of a model's class and its bases, most derived first; a compiled module counts as what it
    wraps."""
    inner = getattr(model, "_orig_mod", model)
    return [kind.__name__ for kind in type(inner).__mro__]


def largest(value: Any) -> float:
    """The largest entry of a timestep argument, whatever its form."""
    return float(value.max()) if isinstance(value, Tensor) else float(value)


def require_attributes(host: str, owner: Any, names: Mapping[str, str]) -> None:
    """Refuse a model that carries the right class name but not what the adapter relies on."""
    for name, what in names.items():
        if not hasattr(owner, name):
            raise InputError(
                f"{host}: expected {type(owner).__name__}.{name} ({what}); this is another version of it",
                field=name,
            )
