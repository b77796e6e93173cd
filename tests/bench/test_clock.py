"""The interleaving: every arm once per round, in random order, synchronised at both ends, set-up outside."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from leanwam.bench import clock
from leanwam.bench.clock import Arm, interleave
from leanwam.bench.ratio import paired_ratio
from leanwam.errors import InputError


def test_order_and_counts() -> None:
    log: list[str] = []
    arms = [Arm.plain(name, lambda name=name: log.append(name)) for name in "abc"]  # type: ignore[misc]
    samples = interleave(arms, n_rounds=30, n_warmup=2, seed=3)
    assert samples.wall_s.shape == samples.cpu_s.shape == (3, 30)
    timed = log[6:]
    for number in range(30):
        ran = timed[3 * number : 3 * number + 3]
        assert ran == ["abc"[place] for place in samples.order[number]]
        assert sorted(ran) == ["a", "b", "c"]
    firsts = {timed[3 * number] for number in range(30)}
    assert firsts == {"a", "b", "c"}
    assert gc.isenabled()


def test_set_up_and_waiting_are_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of our own: setting up takes 8, a call 1, waiting for the device 4."""
    log: list[str] = []
    now = 0.0

    def take(seconds: float, what: str) -> None:
        nonlocal now
        now += seconds
        log.append(what)

    @contextmanager
    def opened() -> Iterator[Callable[[], None]]:
        take(8.0, "open")
        yield lambda: take(1.0, "call")
        take(8.0, "close")

    monkeypatch.setattr(
        clock, "time", SimpleNamespace(perf_counter=lambda: now, process_time=time.process_time)
    )
    samples = interleave(
        [Arm("slow to open", opened), Arm.plain("other", lambda: None)],
        n_rounds=3,
        n_warmup=0,
        n_inner=2,
        synchronise=lambda: take(4.0, "wait"),
    )
    text = " ".join(log)
    assert text.count("open wait call call wait close") == 3
    # two calls and the wait after them, halved; neither the set-up nor the wait before
    assert samples.of("slow to open").tolist() == [3.0] * 3
    assert samples.of("other").tolist() == [2.0] * 3


def test_a_known_ratio_is_found() -> None:
    """Work that takes a known multiple of time, on a machine that may be busy."""
    unit = np.random.default_rng(0).random((120, 120))

    def work(n: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(n):
                unit @ unit

        return run

    samples = interleave([Arm.plain("three", work(300)), Arm.plain("one", work(100))], n_rounds=25)
    found = paired_ratio(samples.of("three"), samples.of("one"))
    assert 2.0 < found.ratio < 4.5
    assert found.alarm is None


def test_a_failing_arm_leaves_the_collector_on() -> None:
    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        interleave([Arm.plain("a", fail), Arm.plain("b", fail)], n_rounds=1)
    assert gc.isenabled()


@pytest.mark.parametrize("names", [["a"], ["a", "a"]])
def test_arms_are_two_and_different(names: list[str]) -> None:
    with pytest.raises(InputError):
        interleave([Arm.plain(name, lambda: None) for name in names], n_rounds=1)
