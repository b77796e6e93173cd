"""The policy under a plan, request by request: what each answer really executed, and how long it took."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from leanwam.errors import InputError

if TYPE_CHECKING:
    from leanwam.models.hosts.base import Host, HostExecution
    from leanwam.plans import Plan, PlanSpec

#: A request as the client sent it -> the answer as the client wants it.
Policy = Callable[[dict[str, Any]], dict[str, Any]]

_KEPT = 1000


class Answered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request as it was answered.

    Attributes:
        number: from 0, over the life of the service.
        plan: the plan in force.
        executions: per head, how often it really ran for this request.
        counters: the host's own (``network``, …), for this request.
        duration_s: wall-clock time of the policy.
        error: why there was no answer, else None.
    """

    number: int
    plan: str
    executions: dict[str, int]
    counters: dict[str, int]
    duration_s: float
    error: str | None = None


class PolicyService:
    """Answers requests one at a time, under a plan. Use it as a context manager.

    Args:
        policy: the function that answers one request by running the model.
        host: the adapter of that model; None: no plan can be set, nothing is counted.
        plan: in force from the start; of heads, frames, or another's cache (``cache:first_block:…``).
        options: of ``Host.execute`` (``n_steps``, ``n_branches``, the host's own).
        keep: how many answered requests are remembered in full; totals cover all.

    The plan's gates are opened anew every ``keep`` requests, so that nothing grows with the requests.
    """

    def __init__(
        self,
        policy: Policy,
        host: Host | None = None,
        plan: Plan | PlanSpec | str = "dense",
        *,
        options: Mapping[str, Any] | None = None,
        keep: int = _KEPT,
    ) -> None:
        if host is None and plan != "dense":
            raise InputError("a plan needs the adapter of the model: give host=", field="plan", value=plan)
        if keep < 1:
            raise InputError("must be at least 1", field="keep", value=keep)
        self._policy, self._host, self._plan = policy, host, plan
        self._options, self._keep = dict(options or {}), keep
        self._lock = threading.Lock()
        self._stack: ExitStack | None = None
        self._running: HostExecution | None = None
        self._since_opened = 0
        self.answered: deque[Answered] = deque(maxlen=keep)
        self._n_requests, self._n_errors, self._total_s = 0, 0, 0.0
        self._executions: Counter[str] = Counter()

    @property
    def plan_name(self) -> str:
        """The name of the plan in force."""
        return self._plan if isinstance(self._plan, str) else self._plan.name

    def __enter__(self) -> PolicyService:
        with self._lock:
            self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._close()

    def set_plan(self, plan: Plan | PlanSpec | str) -> None:
        """Put another plan in force, between requests. A plan that is refused leaves the old one.

        Raises:
            InputError: the host refuses the plan.
        """
        if self._host is None:
            raise InputError("a plan needs the adapter of the model: give host=", field="plan", value=plan)
        with self._lock:
            if self._stack is None:
                self._plan = plan
                return
            before = self._plan
            self._close()
            self._plan = plan
            try:
                self._open()
            except BaseException:
                self._plan = before
                self._open()
                raise

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The policy's answer to one request.

        Raises:
            InputError: the service is not open.
            Exception: whatever the policy raises; the call in flight is forgotten, the next one starts anew.
        """
        with self._lock:
            if self._stack is None:
                raise InputError("the service is not open: use it in a with block", field="service")
            if self._since_opened >= self._keep:
                self._close()
                self._open()
            self._since_opened += 1
            before = self._counts()
            started = time.perf_counter()
            error: str | None = None
            try:
                return self._policy(request)
            except BaseException as caught:
                error = f"{type(caught).__name__}: {caught}"
                if self._running is not None:
                    self._running.reset()
                raise
            finally:
                self._note(before, time.perf_counter() - started, error)

    def totals(self) -> dict[str, Any]:
        """Counts over the life of the service, as plain data."""
        with self._lock:
            n = self._n_requests
            return {
                "plan": self.plan_name,
                "n_requests": n,
                "n_errors": self._n_errors,
                "executions": dict(self._executions),
                "mean_duration_s": self._total_s / n if n else None,
            }

    def _counts(self) -> tuple[dict[str, int], dict[str, int]]:
        if self._running is None:
            return {}, {}
        return dict(self._running.executions), dict(self._running.counters)

    def _note(
        self, before: tuple[dict[str, int], dict[str, int]], duration_s: float, error: str | None
    ) -> None:
        executions, counters = (
            {name: count - then.get(name, 0) for name, count in now.items()}
            for now, then in zip(self._counts(), before)
        )
        self.answered.append(
            Answered(self._n_requests, self.plan_name, executions, counters, duration_s, error)
        )
        self._n_requests += 1
        self._n_errors += error is not None
        self._total_s += duration_s
        self._executions.update(executions)

    def _open(self) -> None:
        stack = ExitStack()
        self._running = None
        if self._host is not None:
            self._running = stack.enter_context(self._host.execute(self._plan, **self._options))
        self._stack, self._since_opened = stack, 0

    def _close(self) -> None:
        stack, self._stack, self._running = self._stack, None, None
        if stack is not None:
            stack.close()
