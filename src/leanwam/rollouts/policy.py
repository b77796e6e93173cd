"""The reference WAM under a plan, as the episode runner asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from leanwam.plans import HeadSpec, PlanSpec, parse_plan, refuse_cache, resolve_frames
from leanwam.rollouts.runner import Policy, PolicyInput

if TYPE_CHECKING:
    from leanwam.models.gates import Execution
    from leanwam.models.patching import Wrapper
    from leanwam.models.reference import ReferenceWAM


#: Why a cache plan does not run here.
NO_CACHES = "the reference WAM has no caches of others"


@dataclass
class PolicyCounts:
    """What the policy did while it was open.

    Attributes:
        n_calls: sampling calls (batches).
        executions: per head, how often its network really ran.
    """

    n_calls: int
    executions: dict[str, int]


@contextmanager
def planned_model(
    model: ReferenceWAM, plan: PlanSpec | str
) -> Iterator[tuple[PlanSpec, PolicyCounts, dict[str, Any]]]:
    """The model set to run under ``plan``: samplers, gates and kept tokens; as it was afterwards.

    Yields:
        the plan's spec, the counts (filled when the context closes), and what ``generate`` is to be called
        with besides observation and seeds.
    """
    from leanwam.models import execute
    from leanwam.models.patching import InstancePatch
    from leanwam.models.reference.holding import features_held

    spec = parse_plan(plan) if isinstance(plan, str) else plan
    refuse_cache(spec, NO_CACHES)
    before = dict(model.n_steps)
    counts = PolicyCounts(0, {})
    options: dict[str, Any] = {}
    if spec.frames is not None:
        options["keep"] = resolve_frames(spec.frames, model.config.layout()).video
    gated = PlanSpec(name=spec.name, default=spec.default, heads=spec.heads, sampler_steps=spec.sampler_steps)
    try:
        if spec.sampler_steps is not None:
            model.set_steps(spec.sampler_steps)
        with (
            execute(model, gated, timestep_of=None) as execution,
            features_held(model, execution.plan),
            InstancePatch(model, "begin_call", _starting_anew(execution)),
        ):
            yield spec, counts, options
            counts.executions = execution.executions
    finally:
        model.set_steps(before)


def _starting_anew(execution: Execution) -> Wrapper:
    """Step 0 at every call, although a call that stops early leaves some heads' calls unfinished."""

    def wrap(begin: Callable[..., Any]) -> Callable[..., Any]:
        def begin_call() -> None:
            execution.reset()
            begin()

        return begin_call

    return wrap


@contextmanager
def reference_policy(model: ReferenceWAM, plan: PlanSpec | str) -> Iterator[tuple[Policy, PolicyCounts]]:
    """The reference WAM as a policy under ``plan``.

    Only actions leave this policy. A head that no other stream reads (proprio in the ``heads`` preset) cannot
    change them, so it is computed at step 0 alone; the actions are bit-identical (tested).
    """
    from leanwam.models.reference import ObservationBatch

    spec = parse_plan(plan) if isinstance(plan, str) else plan
    refuse_cache(spec, NO_CACHES)
    unread = {name: HeadSpec(computed=(0,)) for name in _unread(model)}
    lean = PlanSpec(
        name=spec.name,
        default=spec.default,
        heads={**spec.heads, **unread},
        frames=spec.frames,
        sampler_steps=spec.sampler_steps,
    )
    with planned_model(model, lean) as (_, counts, options):

        def policy(batch: PolicyInput) -> NDArray[Any]:
            counts.n_calls += 1
            observation = ObservationBatch(batch.task, batch.proprio, world=batch.world, pixels=batch.pixels)
            chunks: NDArray[Any] = model.generate(
                observation, batch.seeds, until=("action",), **options
            ).action
            return chunks

        yield policy, counts


def _unread(model: ReferenceWAM) -> list[str]:
    """Streams other than the actions that no stream but themselves reads."""
    streams = model.config.streams
    read = {other for name, stream in streams.items() for other in stream.reads if other != name}
    return [name for name in streams if name != "action" and name not in read]
