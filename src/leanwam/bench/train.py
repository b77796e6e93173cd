"""``leanwam bench train``: whole training updates, dense against kept tokens, and where an update's time goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import torch

from leanwam.bench.bounds import Machine, bounds
from leanwam.bench.clock import Arm, interleave
from leanwam.bench.counts import Operations, operations
from leanwam.bench.forward import frame_plans
from leanwam.bench.generate import BASELINE, Options
from leanwam.bench.rows import raw, row
from leanwam.models.reference import training
from leanwam.models.reference.checkpoint import build_model
from leanwam.models.reference.config import Config
from leanwam.models.reference.dataset import Episodes, TrainingData, prepare_config
from leanwam.plans import PlanSpec

PARTS = ("loader", "forward", "backward", "optimiser", "communication", "rest")


def random_episodes(config: Config, *, n_episodes: int = 8, length: int = 40, seed: int = 0) -> Episodes:
    """Demonstrations of the right form; an update takes as long as on real ones."""
    random = np.random.default_rng(seed)
    n = n_episodes * length
    pixels = world = None
    if config.codec is None:
        world = random.uniform(-0.3, 0.6, (n, config.streams["video"].grid[2], 7)).astype(np.float32)
    else:
        views, rows, columns = config.streams["video"].grid
        edge = config.codec.patch
        pixels = random.integers(0, 256, (n, views, rows * edge, columns * edge, 3), dtype=np.uint8)
    return Episodes(
        np.arange(n_episodes, dtype=np.int64) * length,
        np.full(n_episodes, length, dtype=np.int64),
        [f"task-{i % 2}" for i in range(n_episodes)],
        random.uniform(0.0, 0.5, (n, 4)).astype(np.float32),
        random.uniform(-1.0, 1.0, (n, 4)).astype(np.float32),
        world,
        pixels,
    )


def make_trainer(config: Config, plan: PlanSpec | None, folder: Path) -> training.Trainer:
    """A trainer on random demonstrations, with a frame plan or without; the same weights and batches."""
    codec = None
    if plan is not None and plan.frames is not None:
        config = msgspec.structs.replace(
            config, training=msgspec.structs.replace(config.training, frames=plan.frames)
        )
    episodes = random_episodes(config)
    bare = build_model(config)
    if bare.codec is not None:
        codec = bare.codec
    prepared = prepare_config(config, episodes, codec)
    torch.manual_seed(prepared.training.seed)
    model = build_model(prepared)
    run = training.Run(out=folder, command="leanwam bench train", data_digest="random", progress=False)
    return training.Trainer(model, TrainingData(prepared, episodes, codec), run)


def compare(
    config: Config,
    plans: Sequence[PlanSpec],
    batch: int,
    options: Options,
    *,
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Time updates of the real trainer at one batch size, each plan against the dense one."""
    chosen = frame_plans(plans)
    config = msgspec.structs.replace(
        config,
        training=msgspec.structs.replace(config.training, batch_size=batch),
        tasks=(),
        normalization={},
    )
    with TemporaryDirectory() as folder:
        trainers = {BASELINE: make_trainer(config, None, Path(folder))}
        trainers |= {plan.name: make_trainer(config, plan, Path(folder)) for plan in chosen}
        counted: dict[str, Operations] = {name: operations(t.update) for name, t in trainers.items()}
        samples = interleave(
            [Arm.plain(name, trainer.update) for name, trainer in trainers.items()],
            n_rounds=options.n_rounds,
            n_warmup=options.n_warmup,
            n_inner=options.n_inner,
            seed=options.seed,
            n_threads=torch.get_num_threads(),
            progress=options.progress,
        )
        parts = {
            f"{name} bs{batch}": measure_parts(trainer, n_repeats=options.n_share_repeats)
            for name, trainer in trainers.items()
        }
    label = f"bs{batch} train"
    dense_parts = parts[f"{BASELINE} bs{batch}"]
    rows = []
    for plan in chosen:
        flops_ratio = counted[BASELINE].flops / counted[plan.name].flops
        network = dense_parts["forward"]["share"] + dense_parts["backward"]["share"]
        rows.append(
            row(
                samples,
                name=f"{plan.name} bs{batch} train",
                arm=plan.name,
                baseline=BASELINE,
                expected_ratio=1.0 / (1.0 - network + network / flops_ratio),
                expected_from="end-to-end ceiling: measured share of forward and backward, counted operations",
                target="train",
                plan=plan.name,
                batch=batch,
                backend="eager",
                flops_ratio=flops_ratio,
                dispatch_ratio=counted[BASELINE].n_dispatched / counted[plan.name].n_dispatched,
                executions={"update": 1},
                parts_ratio={
                    part: _part_ratio(dense_parts, parts[f"{plan.name} bs{batch}"], part) for part in PARTS
                },
            )
        )
    limits = {}
    if machine is not None:
        measured = float(samples.of(BASELINE).min())
        limits[label] = bounds(counted[BASELINE], machine, measured)
    return {"rows": rows, "samples": {label: raw(samples)}, "parts": parts, "bounds": limits}


def measure_parts(trainer: training.Trainer, *, n_repeats: int = 5) -> dict[str, dict[str, Any]]:
    """Seconds and shares of an update's parts, medians over updates of the real trainer.

    ``communication`` is None with a reason: this trainer is one process.
    """
    spent: dict[str, float] = {}
    updates: list[dict[str, float]] = []
    with _timed_parts(trainer, spent):
        for number in range(n_repeats + 1):
            spent.clear()
            began = time.perf_counter()
            trainer.update()
            total = time.perf_counter() - began
            if number:
                rest = max(total - sum(spent.values()), 0.0)
                updates.append({**spent, "rest": rest, "total": total})
    whole = statistics.median(update["total"] for update in updates)
    parts: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        if part == "communication":
            parts[part] = {"seconds": None, "share": None, "why": "one process: nothing is communicated"}
            continue
        seconds = statistics.median(update.get(part, 0.0) for update in updates)
        parts[part] = {"seconds": seconds, "share": seconds / whole}
    return parts


@contextmanager
def _timed_parts(trainer: training.Trainer, spent: dict[str, float]) -> Iterator[None]:
    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            output = function(*args, **kwargs)
            spent[part] = spent.get(part, 0.0) + time.perf_counter() - began
            return output

        return inner

    replaced = [
        (trainer.data, "batch", "loader"),
        (training, "stream_losses", "forward"),
        (torch.Tensor, "backward", "backward"),
        (torch.nn.utils, "clip_grad_norm_", "optimiser"),
        (trainer.optimizer, "step", "optimiser"),
        (torch, "_foreach_lerp_", "optimiser"),
    ]
    with ExitStack() as stack:
        for owner, name, part in replaced:
            stack.enter_context(mock.patch.object(owner, name, timed(part, getattr(owner, name))))
        yield


def _part_ratio(dense: dict[str, Any], lean: dict[str, Any], part: str) -> float | None:
    before, after = dense[part]["seconds"], lean[part]["seconds"]
    return None if not before or not after else before / after
