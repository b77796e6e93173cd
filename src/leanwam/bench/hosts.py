"""``leanwam bench generate --model host:…``: a user's own sampling call under plans, caches of others included.

Speed says nothing of a plan that changes the output, so every row holds the error of the plan's final samples
against the untouched model's beside its ratio. Nothing is assumed: heads, networks and blocks are counted as
they ran, operations by torch's counter on the very call that is timed.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leanwam.bench.bounds import Machine, bounds
from leanwam.bench.clock import Arm, interleave
from leanwam.bench.counts import device_synchroniser, operations
from leanwam.bench.generate import BASELINE, Options
from leanwam.bench.parts import REST
from leanwam.bench.rows import raw, row
from leanwam.errors import InputError
from leanwam.models.hosts import host
from leanwam.models.shares import measure_shares
from leanwam.plans import PlanSpec

if TYPE_CHECKING:
    from leanwam.models.hosts.base import Host

HOST = "host:"
N_ERROR_SEEDS = 3


@dataclass(frozen=True)
class HostSubject:
    """A user's model and the sampling call that is timed; what a factory returns.

    Attributes:
        model: what ``leanwam.host`` knows: a pipeline, a policy, a denoiser.
        run: ``run(seed)`` makes one sampling call from that noise and returns the final sample: a tensor or
            array, or a tuple or dict of such. The same seed gives the same sample. If it also takes
            ``n_steps``, plain samplers (``plain_10``) can be compared.
        host_options: of ``leanwam.host`` (``scheduler=…``).
        options: of ``execute`` (``n_steps=…``, ``n_branches=…``).
        name: what the result calls it.
    """

    model: Any
    run: Callable[..., Any]
    host_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


def load_host(text: str, *, batch: int = 1, device: str = "cpu") -> HostSubject:
    """``host:MODULE:FACTORY``: call the user's factory.

    Args:
        text: MODULE is imported, or a path to a ``.py`` file.
        batch, device: handed to the factory by name where it takes them.

    Raises:
        InputError: no such module or function, a factory without ``batch`` asked for more than one, or one
            that returns neither a ``HostSubject`` nor ``(model, run)``.
    """
    module_name, _, name = text.removeprefix(HOST).rpartition(":")
    if not module_name or not name:
        raise InputError("wants host:MODULE:FACTORY or host:FILE.py:FACTORY", field="--model", value=text)
    factory = getattr(_module(module_name), name, None)
    if not callable(factory):
        raise InputError(f"{module_name} has no such function", field="--model", value=name)
    takes = inspect.signature(factory).parameters
    if batch != 1 and "batch" not in takes:
        raise InputError(f"{name} takes no batch: give --batch 1", field="--batch", value=batch)
    if device != "cpu" and "device" not in takes:
        raise InputError(f"{name} takes no device", field="--device", value=device)
    made = factory(**{key: value for key, value in (("batch", batch), ("device", device)) if key in takes})
    if isinstance(made, tuple) and len(made) == 2 and callable(made[1]):
        made = HostSubject(*made)
    if not isinstance(made, HostSubject):
        raise InputError(
            "a factory returns (model, run) or a leanwam.bench.hosts.HostSubject",
            field=f"--model {name}",
            value=type(made).__name__,
        )
    return (
        made
        if made.name
        else HostSubject(made.model, made.run, made.host_options, made.options, text.removeprefix(HOST))
    )


def describe(subject: HostSubject) -> dict[str, Any]:
    """Which model was timed, plain data."""
    adapter = host(subject.model, **subject.host_options)
    modules = getattr(adapter, "denoisers", None) or [subject.model]
    counted = [module for module in modules if isinstance(module, torch.nn.Module)]
    return {
        "checkpoint": f"{HOST}{subject.name}",
        "host": adapter.name,
        "class": type(subject.model).__name__,
        "n_parameters": sum(p.numel() for module in counted for p in module.parameters()) or None,
    }


@dataclass
class Way:
    """A way to make the call, and what was counted while it was timed."""

    name: str
    plan: PlanSpec | None
    n_calls: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def open(self, subject: HostSubject, adapter: Host) -> Iterator[Callable[..., Any]]:
        """Yield ``run(seed)`` under the plan; heads and networks are counted while it is open."""
        plan, options = self.plan, dict(subject.options)
        run = subject.run
        if plan is not None and plan.sampler_steps is not None:
            if "n_steps" not in inspect.signature(run).parameters:
                raise InputError(
                    "a plain sampler needs a call that takes n_steps: run(seed, n_steps=…)",
                    field="--plans",
                    value=plan.name,
                )
            options["n_steps"] = plan.sampler_steps
            run = partial(run, n_steps=plan.sampler_steps)
        begun = 0

        def call(seed: int = 0) -> Any:
            nonlocal begun
            begun += 1
            return run(seed)

        with nullcontext() if plan is None else adapter.execute(plan, **options) as running:
            yield call
        self.n_calls += begun
        if running is not None:
            for name, count in {**running.executions, **running.counters}.items():
                self.counts[name] = self.counts.get(name, 0) + count

    def per_call(self) -> dict[str, float]:
        """Per call, the real executions of each head and of the host's networks and blocks."""
        return {name: count / max(self.n_calls, 1) for name, count in self.counts.items()}


def compare_host(
    subject: HostSubject,
    plans: Sequence[PlanSpec],
    batch: int,
    options: Options,
    *,
    machine: Machine | None = None,
    n_error_seeds: int = N_ERROR_SEEDS,
) -> dict[str, Any]:
    """Time a host's sampling call under plans against the untouched model, and measure what they change.

    Returns:
        plain data as ``generate.compare`` yields it; each row has ``output_error`` too, see ``errors_of``.

    Raises:
        InputError: no adapter knows the model, or it refuses a plan.
    """
    adapter = host(subject.model, **subject.host_options)
    seeds = range(n_error_seeds)
    dense = [subject.run(seed) for seed in seeds]  # first of all: the sampler sets its steps here
    floor = errors_of([subject.run(0)], dense[:1])
    ways = [Way(BASELINE, None), *(Way(plan.name, plan) for plan in plans)]
    works: dict[str, dict[str, int]] = {}
    errors: dict[str, dict[str, Any]] = {}
    for way in ways:
        with way.open(subject, adapter) as run:
            if way.plan is not None:
                errors[way.name] = errors_of([run(seed) for seed in seeds], dense)
            works[way.name] = adapter.count_call(run)
        way.n_calls, way.counts = 0, {}
    counted = operations(partial(subject.run, 0))
    wait = device_synchroniser(_device(subject.model))
    samples = interleave(
        [Arm(way.name, partial(way.open, subject, adapter)) for way in ways],
        n_rounds=options.n_rounds,
        n_warmup=options.n_warmup,
        n_inner=options.n_inner,
        seed=options.seed,
        synchronise=wait,
        n_threads=torch.get_num_threads(),
        progress=options.progress,
    )
    with adapter.attach():
        shares = measure_shares(
            subject.model, partial(subject.run, 0), adapter.heads(), n_calls=options.n_share_repeats
        )
    shares[REST] = max(0.0, 1.0 - sum(shares.values()))
    rows = [
        row(
            samples,
            name=f"{way.name} bs{batch}",
            arm=way.name,
            baseline=BASELINE,
            expected_ratio=_expected(shares, works[BASELINE], works[way.name]),
            expected_from="end-to-end ceiling: measured shares of the dense call, operations counted on the"
            " timed call (a cache decides anew for another input)",
            target="generate",
            plan=way.name,
            caches=False,
            batch=batch,
            backend="eager",
            flops=works[way.name]["total"],
            flops_ratio=works[BASELINE]["total"] / max(works[way.name]["total"], 1),
            executions=way.per_call(),
            output_error=errors[way.name],
            output_error_floor=floor["relative_l2_max"],
        )
        for way in ways[1:]
    ]
    label = f"bs{batch} eager"
    limits = {}
    if machine is not None:
        limits[label] = bounds(counted, machine, float(samples.of(BASELINE).min()))
    return {"rows": rows, "samples": {label: raw(samples)}, "parts": {label: shares}, "bounds": limits}


def errors_of(found: Sequence[Any], dense: Sequence[Any]) -> dict[str, Any]:
    """How far final samples lie from the dense ones, seed by seed.

    Args:
        found, dense: what ``run`` returned, one per seed.

    Returns:
        ``relative_l2_mean``, ``relative_l2_max``: ‖y − y_dense‖ / ‖y_dense‖; ``cosine_mean``, ``cosine_min``;
        of the output that is farthest away, where there are several. None with ``why`` where undefined.
    """
    undefined = dict.fromkeys(("relative_l2_mean", "relative_l2_max", "cosine_mean", "cosine_min"))
    worst: dict[str, Any] = {}
    for name in _leaves(dense[0]):
        distances, cosines = [], []
        for one, other in zip(found, dense, strict=True):
            leaves = _leaves(one)
            y, y0 = leaves.get(name), _leaves(other)[name]
            if y is None or y.shape != y0.shape:
                return {**undefined, "output": name, "n_seeds": len(dense), "why": "another shape than dense"}
            if not (np.isfinite(y).all() and np.isfinite(y0).all()):
                return {**undefined, "output": name, "n_seeds": len(dense), "why": "not finite"}
            size, size0 = float(np.linalg.norm(y)), float(np.linalg.norm(y0))
            if size == 0 or size0 == 0:
                return {**undefined, "output": name, "n_seeds": len(dense), "why": "all zero"}
            distances.append(float(np.linalg.norm(y - y0)) / size0)
            cosines.append(min(1.0, float(y @ y0) / (size * size0)))
        if not worst or max(distances) > worst["relative_l2_max"]:
            worst = {
                "relative_l2_mean": float(np.mean(distances)),
                "relative_l2_max": max(distances),
                "cosine_mean": float(np.mean(cosines)),
                "cosine_min": min(cosines),
                "output": name,
                "n_seeds": len(dense),
                "why": None,
            }
    return worst


def _expected(shares: Mapping[str, float], dense: Mapping[str, int], lean: Mapping[str, int]) -> float | None:
    """Amdahl's law over the heads; pooled where heads share a network and the first to ask carries it."""
    heads = [name for name in shares if name != REST]
    if not any(dense[name] for name in heads):
        return None
    if all(dense[name] for name in heads):
        left = sum(shares[name] * lean[name] / dense[name] for name in heads)
    else:
        pooled = sum(lean[name] for name in heads) / sum(dense[name] for name in heads)
        left = pooled * sum(shares[name] for name in heads)
    return 1.0 / (shares[REST] + left)


def _leaves(value: Any) -> dict[str, NDArray[np.float64]]:
    """The final samples by name, each a float64 vector."""
    if isinstance(value, Mapping):
        return {f"{key}": leaf for key, item in value.items() for leaf in _leaves(item).values()}
    if isinstance(value, tuple | list):
        return {f"{place}": leaf for place, item in enumerate(value) for leaf in _leaves(item).values()}
    if isinstance(value, Tensor):
        return {"sample": value.detach().to("cpu", torch.float64).numpy().ravel()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        return {"sample": value.astype(np.float64).ravel()}
    raise InputError(
        "run(seed) returns tensors or arrays: the final samples", field="run", value=type(value).__name__
    )


def _device(model: Any) -> Any:
    owner = model if isinstance(model, torch.nn.Module) else None
    parameter = next(owner.parameters(), None) if owner is not None else None
    return getattr(model, "device", "cpu") if parameter is None else parameter.device


def _module(name: str) -> Any:
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        file = Path(name)
        spec = importlib.util.spec_from_file_location(f"leanwam_host_{file.stem}", file)
        if spec is None or spec.loader is None or not file.is_file():
            raise InputError("there is no such file", field="--model", value=name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    except ModuleNotFoundError as error:
        raise InputError(f"cannot be imported: {error}", field="--model", value=name) from error
