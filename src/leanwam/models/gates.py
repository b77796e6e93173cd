"""``execute``: a plan run on the live model, by gating the forward of each head.

Within the context a head's ``forward`` is replaced on the instance (a hook cannot skip compute, and
replacing the submodule would change the state-dict keys). At a step that the plan computes the original
runs; at the others its stand-in is returned: the row of ``HeadPlan.standins()`` over the kept outputs,
the same coefficients that replay multiplies by. A zero-order hold returns the very object that the head
returned, so it is exact. Forward hooks on the head still fire at held steps.

Counting: one call of the head is one branch of one step; ``n_branches`` calls make a step (2 under
classifier-free guidance), ``n_steps`` steps a sampling call, after which the count starts anew. Where a
timestep can be read it is checked against that: a rising t starts a new call (an error outside the head
cut the earlier one short), and whatever else does not fit is an error, not a silent misalignment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from leanwam.errors import InputError
from leanwam.models.outputs import Path, combine, copied, get_leaf, primary_path, version, with_leaf
from leanwam.models.patching import InstancePatch, Wrapper
from leanwam.models.protocol import PerHead, model_steps, resolve_heads, resolve_per_head
from leanwam.plans import HeadPlan, Plan, PlanSpec, parse_plan, refuse_cache

#: Reads the time of a head's call from its arguments; larger is noisier. None: it cannot be told.
TimestepOf = Callable[[tuple[Any, ...], dict[str, Any]], float | None]

_TIME_NAMES = ("timestep", "timesteps", "t")


@contextmanager
def execute(
    model: object,
    plan: Plan | PlanSpec | str,
    heads: Mapping[str, nn.Module | str] | None = None,
    *,
    n_steps: PerHead | None = None,
    n_branches: PerHead = 1,
    timestep_of: TimestepOf | str | None = "auto",
    primary: str | int | Path | Mapping[str, str | int | Path] | None = None,
    copy: bool = False,
) -> Iterator[Execution]:
    """Run ``model`` under ``plan`` while the context is open; afterwards the model is as it was.

    Args:
        model: any object; it fits ``WorldActionModel`` or ``heads`` says what its heads are.
        plan: a plan's text (``sparse_10/linear``), a spec, or a resolved plan.
        heads: head name -> module, or its dotted path inside ``model``.
        n_steps: the sampler's number of denoising steps, one number or one per head; by default that of a
            resolved plan, or the model's own.
        n_branches: calls of a head per step: 2 under classifier-free guidance (same t, cond and uncond in
            a fixed order), each with its own history.
        timestep_of: how to read the time of a call; ``"auto"`` looks for an argument named timestep,
            timesteps or t (the largest entry of a tensor; on an accelerator this waits for the device once
            per call); None: do not check.
        primary: where in a head's output the model output is (key, index or path; or one per head); by
            default its first floating-point tensor. Only this leaf is extrapolated, see ``outputs``.
        copy: keep copies of outputs that are held. Wanted only where the caller writes into what a head
            returned, or where the head reuses its output's memory (CUDA graphs).

    Yields:
        the ``Execution``: what really ran.

    Raises:
        InputError: no such head, unknown number of steps, a plan for another number of steps, a frame
            plan, a head that is already gated; later, within the context, a sampler that calls a head in
            another rhythm than declared.
    """
    modules = resolve_heads(model, heads)
    resolved = _resolve(plan, modules, resolve_per_head(n_steps, modules, field="n_steps"), model)
    branches = {**dict.fromkeys(modules, 1), **resolve_per_head(n_branches, modules, field="n_branches")}
    gates: dict[str, Gate] = {}
    with ExitStack() as stack:
        for name, module in modules.items():
            if name not in resolved.heads:
                continue
            if getattr(module.__dict__.get("forward"), "leanwam_gate", None) is not None:
                raise InputError("is already under a plan: execute() does not nest", field=f"heads[{name!r}]")
            where = primary.get(name) if isinstance(primary, Mapping) else primary
            gate = Gate(name, resolved.heads[name], branches[name], primary=where, copy=copy)
            gates[name] = gate
            stack.enter_context(InstancePatch(module, "forward", gate.wrapper(timestep_of)))
        yield Execution(resolved, gates)


class Execution:
    """What ran under a plan: the proof beside the claim.

    Attributes:
        plan: the plan as resolved for this model.
    """

    def __init__(self, plan: Plan, gates: dict[str, Gate]) -> None:
        self.plan = plan
        self._gates = gates

    @property
    def executions(self) -> dict[str, int]:
        """Per head, how often its original forward really ran to its end (each guidance branch counts)."""
        return {name: gate.n_executed for name, gate in self._gates.items()}

    @property
    def executions_per_call(self) -> dict[str, list[int]]:
        """Per head, the real executions of every complete sampling call."""
        return {name: list(gate.per_call) for name, gate in self._gates.items()}

    @property
    def n_calls(self) -> dict[str, int]:
        """Per head, the sampling calls that ran all their steps."""
        return {name: len(gate.per_call) for name, gate in self._gates.items()}

    @property
    def n_cut_calls(self) -> dict[str, int]:
        """Per head, the sampling calls that ended early (an exception, or ``reset``)."""
        return {name: gate.n_cut for name, gate in self._gates.items()}

    def reset(self) -> None:
        """Forget an unfinished call: the next call of each head is step 0. Counts stay."""
        for gate in self._gates.values():
            gate.cut()


class Gate:
    """The state of one gated head: where in the call it is, and what it keeps, per branch."""

    def __init__(
        self, name: str, plan: HeadPlan, n_branches: int, *, primary: str | int | Path | None, copy: bool
    ) -> None:
        self.name, self.n_steps, self.n_branches = name, plan.n_steps, n_branches
        self.n_executed, self.n_cut = 0, 0
        self.per_call: list[int] = []
        self._primary, self._copy = primary, copy
        self._dense = plan.is_dense
        self._n_turns = plan.n_steps * n_branches
        executed = set(plan.executed)
        rows = plan.standins()
        self._rows: list[list[tuple[int, float]] | None] = [
            None if i in executed else [(int(j), float(rows[i, j])) for j in rows[i].nonzero()[0][::-1]]
            for i in range(plan.n_steps)
        ]
        # what a held step reads: the outputs its row names, and the last executed one, for features
        self._last_use: dict[int, int] = {}
        latest = 0
        for i, row in enumerate(self._rows):
            if row is None:
                latest = i
                continue
            for j in {latest, *(j for j, _ in row)}:
                self._last_use[j] = i
        self._latest_executed: list[int] = []
        for i in range(plan.n_steps):
            self._latest_executed.append(i if i in executed else self._latest_executed[-1])
        self._start()

    def wrapper(self, timestep_of: TimestepOf | str | None) -> Wrapper:
        """What turns the original forward into the gated one."""
        return lambda run: self._wrap(run, timestep_reader(timestep_of, run))

    def _wrap(self, run: Callable[..., Any], read_time: TimestepOf | None) -> Callable[..., Any]:
        forward = self._counting(run, read_time) if self._dense else self._gating(run, read_time)
        forward.leanwam_gate = self  # type: ignore[attr-defined]
        return forward

    def _counting(self, run: Callable[..., Any], read_time: TimestepOf | None) -> Callable[..., Any]:
        """Nothing is ever held: the original runs, and is counted."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if read_time is not None:
                self._check_time(read_time(args, kwargs))
            try:
                output = run(*args, **kwargs)
            except BaseException:
                self.cut()
                raise
            self.n_executed += 1
            self._executed_now += 1
            self._count += 1
            if self._count == self._n_turns:
                self._end()
            return output

        return forward

    def _gating(self, run: Callable[..., Any], read_time: TimestepOf | None) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if read_time is not None:
                self._check_time(read_time(args, kwargs))
            step, branch = divmod(self._count, self.n_branches)
            row = self._rows[step]
            if row is None:
                try:
                    output = run(*args, **kwargs)
                except BaseException:
                    self.cut()
                    raise
                self.n_executed += 1
                self._executed_now += 1
                if step in self._last_use:
                    kept = copied(output) if self._copy else output
                    self._kept[branch][step] = (kept, version(kept))
            else:
                output = self._stand_in(step, branch, row)
            self._advance(step, branch)
            return output

        return forward

    def cut(self) -> None:
        """Forget an unfinished call."""
        if self._count:
            self.n_cut += 1
        self._start()

    def _start(self) -> None:
        self._count = 0
        self._executed_now = 0
        self._time: float | None = None
        self._kept: list[dict[int, tuple[Any, tuple[int, ...] | None]]] = [{} for _ in range(self.n_branches)]

    def _advance(self, step: int, branch: int) -> None:
        kept = self._kept[branch]
        for j in [j for j in kept if self._last_use[j] <= step]:
            del kept[j]
        self._count += 1
        if self._count == self._n_turns:
            self._end()

    def _end(self) -> None:
        self.per_call.append(self._executed_now)
        last_time = self._time
        self._start()
        self._ended_at = last_time

    _ended_at: float | None = None

    def _check_time(self, time: float | None) -> None:
        if time is None:
            return
        step, branch = divmod(self._count, self.n_branches)
        if self._count == 0:
            if self._ended_at is not None and self.n_steps > 1 and time < self._ended_at:
                raise InputError(
                    f"the sampler takes more than the {self.n_steps} steps declared (t falls on to {time:g})",
                    field=f"n_steps[{self.name!r}]",
                )
        elif self._time is not None:
            if time > self._time and step == 1 and branch == 0:
                first = self._time
                self.cut()
                raise InputError(
                    f"t rises from {first:g} to {time:g}; time is to fall from noise to data: "
                    "give timestep_of, e.g. its negative, or None",
                    field=f"timestep_of[{self.name!r}]",
                )
            if time > self._time or (time == self._time and branch == 0 and step == 1):
                self.cut()  # t rose, or the first step came again: a call was cut short outside the head
            elif branch == 0 and time == self._time:
                self._off_beat(f"was called more than {self.n_branches} times at t = {time:g}")
            elif branch > 0 and time != self._time:
                self._off_beat(f"was called only {branch} of {self.n_branches} times at t = {self._time:g}")
        self._time = time

    def _off_beat(self, what: str) -> None:
        self.cut()
        raise InputError(
            f"the head {what}; declare n_branches as it is, or timestep_of=None where t means something else",
            field=f"n_branches[{self.name!r}]",
            value=self.n_branches,
        )

    def _stand_in(self, step: int, branch: int, row: list[tuple[int, float]]) -> Any:
        kept = self._kept[branch]
        latest = kept[self._latest_executed[step]][0]
        for output, before in (kept[j] for j in {self._latest_executed[step], *(j for j, _ in row)}):
            if before is not None and version(output) != before:
                raise RuntimeError(
                    f"head {self.name!r}: a held output was written to in place after the head returned it; "
                    "use execute(..., copy=True)"
                )
        if len(row) == 1 and row[0] == (self._latest_executed[step], 1.0):
            return copied(latest) if self._copy else latest
        path = primary_path(latest, self._primary)
        if row:
            value = combine([weight for _, weight in row], [get_leaf(kept[j][0], path) for j, _ in row])
        else:
            value = get_leaf(latest, path).new_zeros(get_leaf(latest, path).shape)
        return with_leaf(latest, path, value)


def _resolve(
    plan: Plan | PlanSpec | str, heads: Mapping[str, nn.Module], n_steps: dict[str, int], model: object
) -> Plan:
    steps = {**model_steps(model, heads), **n_steps}
    if isinstance(plan, Plan):
        unknown = [name for name in plan.heads if name not in heads]
        if unknown:
            raise InputError(
                f"plan {plan.name}: no such head (there is {', '.join(heads)})", value=unknown[0]
            )
        resolved = plan
        for name, head in plan.heads.items():
            if steps.get(name, head.n_steps) != head.n_steps:
                raise InputError(
                    f"plan {plan.name} is for {head.n_steps} steps, the sampler takes {steps[name]}",
                    field=f"n_steps[{name!r}]",
                )
    else:
        spec = parse_plan(plan) if isinstance(plan, str) else plan
        missing = [name for name in heads if name not in steps]
        if missing:
            raise InputError(
                "the number of denoising steps is unknown: give n_steps", field=f"n_steps[{missing[0]!r}]"
            )
        if spec.sampler_steps is not None and any(n != spec.sampler_steps for n in steps.values()):
            raise InputError(
                f"plan {spec.name} is the plain sampler: run the model with n_steps={spec.sampler_steps}",
                field="plan",
            )
        resolved = spec.resolve(steps, heads)
    refuse_cache(resolved, "execute() gates heads and runs no cache plans")
    if resolved.frames is not None:
        raise InputError(
            "execute() gates heads; it does not run frame plans", field="frames", value=resolved.frames
        )
    return resolved


def timestep_reader(timestep_of: TimestepOf | str | None, run: Callable[..., Any]) -> TimestepOf | None:
    if timestep_of is None or callable(timestep_of):
        return timestep_of
    if timestep_of != "auto":
        raise InputError('is a function, None or "auto"', field="timestep_of", value=timestep_of)
    try:
        names = list(inspect.signature(run).parameters)
    except (TypeError, ValueError):
        names = []
    places = {name: names.index(name) for name in _TIME_NAMES if name in names}

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
        for name in _TIME_NAMES:
            if name in kwargs:
                return as_time(kwargs[name])
            if name in places and places[name] < len(args):
                return as_time(args[places[name]])
        return None

    return read


def as_time(value: Any) -> float | None:
    """A time given as a number or a tensor: its largest entry; None where it is neither."""
    if isinstance(value, Tensor):
        n_entries = value.numel()
        return float(value.item() if n_entries == 1 else value.max()) if n_entries else None
    return float(value) if isinstance(value, int | float) else None
