"""A host model under a plan, caches of others included, as the episode runner asks for a policy.

```python
with host_policy(leanwam.host(pipe), "cache:first_block:threshold=0.1", act, n_steps=50) as (policy, counts):
    run_episodes(policy, planned, arm="first_block", table="episodes.jsonl", plan=counts.plan, …)
```

One arm per plan, all arms into one table: the judge compares them as it compares any two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from leanwam.plans import Plan, PlanSpec, parse_plan
from leanwam.rollouts.runner import Policy, PolicyInput

if TYPE_CHECKING:
    from leanwam.models.hosts.base import Host


@dataclass
class HostCounts:
    """What a host did while its policy was open.

    Attributes:
        plan: the plan's name, for the episode table.
        n_calls: policy calls answered.
        executions: per head, how often it really ran; filled when the context closes.
        counters: the host's own (``network``, ``blocks``, …), likewise.
    """

    plan: str
    n_calls: int = 0
    executions: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


@contextmanager
def host_policy(
    host: Host, plan: Plan | PlanSpec | str, act: Callable[[PolicyInput], NDArray[Any]], **options: Any
) -> Iterator[tuple[Policy, HostCounts]]:
    """The user's policy function under ``plan``.

    Args:
        host: the adapter of the model that ``act`` runs.
        plan: of heads, frames, or another's cache.
        act: from observations to action chunks, by one sampling call; noise from ``PolicyInput.seeds``.
        options: of ``Host.execute`` (``n_steps``, ``n_branches``, …).

    Raises:
        InputError: the host refuses the plan.
    """
    spec = parse_plan(plan) if isinstance(plan, str) else plan
    counts = HostCounts(spec.name)
    with host.execute(spec, **options) as running:

        def policy(batch: PolicyInput) -> NDArray[Any]:
            try:
                chunks = act(batch)
            except BaseException:
                running.reset()
                raise
            counts.n_calls += 1
            return chunks

        try:
            yield policy, counts
        finally:
            counts.executions, counts.counters = dict(running.executions), dict(running.counters)
