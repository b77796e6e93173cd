"""``leanwam bench forward``: one evaluation of the network on all streams, dense against kept tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leanwam.bench.backends import Captured, check_same, compiled
from leanwam.bench.bounds import Machine, bounds
from leanwam.bench.clock import Arm, interleave
from leanwam.bench.counts import device_synchroniser, operations
from leanwam.bench.generate import BASELINE, Options
from leanwam.bench.parts import networks
from leanwam.bench.rows import raw, row
from leanwam.bench.subjects import random_observation
from leanwam.errors import InputError
from leanwam.plans import PlanSpec, refuse_cache, resolve_frames

if TYPE_CHECKING:
    from leanwam.models.reference import ReferenceWAM

#: A backend computes the same thing up to rounding, which differs where sums are reordered.
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 6e-2}


@dataclass(frozen=True)
class Subject:
    """What is evaluated.

    Attributes:
        run: a function of a tree of tensors.
        given: its argument.
        around: what must be open while it runs (the hooks of a frame plan), outside the clock.
    """

    run: Callable[[Any], tuple[Tensor, ...]]
    given: Any
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    def once(self) -> tuple[Tensor, ...]:
        """One evaluation."""
        with self.around():
            return self.run(self.given)


def frame_plans(plans: Sequence[PlanSpec]) -> list[PlanSpec]:
    """The plans that a single forward can show.

    Raises:
        InputError: a plan acts over the steps of a call.
    """
    for plan in plans:
        refuse_cache(plan, "a cache acts over the steps of a call, a forward is one step")
        over_steps = plan.default is not None or plan.heads or plan.sampler_steps is not None
        if (over_steps or plan.frames is None) and plan.name != "dense":
            raise InputError(
                "acts over the steps of a call: use bench generate; a single forward shows frames=… plans",
                field="--plans",
                value=plan.name,
            )
    return [plan for plan in plans if plan.name != "dense"]


def reference_subjects(model: ReferenceWAM, plans: Sequence[PlanSpec], batch: int) -> dict[str, Subject]:
    """The network's step on all streams, whole and under frame plans."""
    from leanwam.models.reference.observation import task_indices
    from leanwam.models.reference.sampling import draw_noise, present_tokens

    device, config = model.device, model.config
    seen = random_observation(config, batch)
    with torch.inference_mode():
        present = {name: x.to(device) for name, x in present_tokens(model, seen).items()}
        task = task_indices(config, seen.task).to(device)
        x = {name: draw_noise(name, range(batch), s.shape).to(device) for name, s in config.streams.items()}
        times = {name: torch.full((batch,), 0.5, device=device) for name in x}

    def subject(plan: PlanSpec | None) -> Subject:
        keep = None
        if plan is not None and plan.frames is not None:
            keep = torch.tensor(resolve_frames(plan.frames, config.layout()).video)
        with torch.inference_mode():
            conditions = model.conditions(task, present, keep)

        def run(samples: Any) -> tuple[Tensor, ...]:
            with torch.inference_mode():
                outputs = model.step(conditions, samples, times)
            return tuple(outputs[name] for name in config.streams)

        return Subject(run, x)

    return {BASELINE: subject(None), **{plan.name: subject(plan) for plan in plans}}


def compare(
    subjects: dict[str, Subject],
    modules: Sequence[torch.nn.Module],
    device: torch.device,
    options: Options,
    *,
    batch: int,
    backend: str = "eager",
    machine: Machine | None = None,
    compile_mode: str | None = None,
    tolerance: float | None = None,
    target: str = "forward",
) -> dict[str, Any]:
    """Time subjects of one batch size on one backend, each against the first.

    Args:
        subjects: the baseline first.
        modules: what ``compile`` compiles, in this mode of torch's.
        tolerance: largest relative difference between a backend's outputs and the eager ones; by default
            what one evaluation in this precision may differ by.
        target: what is timed, for the rows.
    """
    counted = {name: operations(subject.once) for name, subject in subjects.items()}
    with ExitStack() as stack:
        expected = {name: [x.clone() for x in subject.once()] for name, subject in subjects.items()}
        if backend.startswith("compile"):
            stack.enter_context(compiled(modules, mode=compile_mode))
        arms = [_arm(name, subject, graph=backend.endswith("graph")) for name, subject in subjects.items()]
        if backend != "eager":
            for arm in arms:
                with arm.open() as call:
                    wanted = expected[arm.name]
                    allowed = TOLERANCE[wanted[0].dtype] if tolerance is None else tolerance
                    check_same(wanted, call(), name=f"{backend} {arm.name}", tolerance=allowed)
        samples = interleave(
            arms,
            n_rounds=options.n_rounds,
            n_warmup=options.n_warmup,
            n_inner=options.n_inner,
            seed=options.seed,
            synchronise=device_synchroniser(device),
            n_threads=torch.get_num_threads(),
            progress=options.progress,
        )
    first, *others = subjects
    label = f"bs{batch} {backend}"
    rows = [
        row(
            samples,
            name=f"{name} bs{batch}" + ("" if backend == "eager" else f" {backend}"),
            arm=name,
            baseline=first,
            expected_ratio=counted[first].flops / counted[name].flops,
            expected_from="floating-point operations, dense / plan",
            target=target,
            plan=name,
            batch=batch,
            backend=backend,
            flops_ratio=counted[first].flops / counted[name].flops,
            dispatch_ratio=counted[first].n_dispatched / counted[name].n_dispatched,
            executions={target: 1},
        )
        for name in others
    ]
    limits = {}
    if machine is not None:
        for name in subjects:
            measured = float(samples.of(name).min())
            limits[f"{name} {label}"] = bounds(counted[name], machine, measured)
    return {"rows": rows, "samples": {label: raw(samples)}, "parts": {}, "bounds": limits}


def _arm(name: str, subject: Subject, *, graph: bool) -> Arm:
    run: Callable[[Any], Any] = subject.run
    if graph:
        with subject.around():
            run = Captured(subject.run, subject.given)

    @contextmanager
    def opened() -> Iterator[Callable[[], Any]]:
        with subject.around():
            yield lambda: run(subject.given)

    return Arm(name, opened)


def compare_reference(
    model: ReferenceWAM,
    plans: Sequence[PlanSpec],
    batch: int,
    options: Options,
    *,
    backend: str = "eager",
    machine: Machine | None = None,
) -> dict[str, Any]:
    """``compare`` on a reference model."""
    subjects = reference_subjects(model, frame_plans(plans), batch)
    modules = list(networks(model).values())
    return compare(subjects, modules, model.device, options, batch=batch, backend=backend, machine=machine)
