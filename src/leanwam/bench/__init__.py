"""Is it really faster? Interleaved clocks, operation counts, what bounds a run, what disturbed it.

The names below are imported when first used, so that ``import leanwam.bench`` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "Arm": "leanwam.bench.clock",
    "Samples": "leanwam.bench.clock",
    "interleave": "leanwam.bench.clock",
    "Ratio": "leanwam.bench.ratio",
    "paired_ratio": "leanwam.bench.ratio",
    "Counters": "leanwam.bench.contention",
    "contention": "leanwam.bench.contention",
    "environment": "leanwam.bench.environment",
    "operations": "leanwam.bench.counts",
    "bounds": "leanwam.bench.bounds",
    "HostSubject": "leanwam.bench.hosts",
    "compare_host": "leanwam.bench.hosts",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'leanwam.bench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
