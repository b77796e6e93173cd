"""``leanwam bench train``: whole training updates, dense against kept tokens, and where an update's time goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import torch

from leanwam.bench.bounds import Machine, bounds
from leanwam.bench.clock import Arm, Samples, interleave
from leanwam.bench.counts import Operations, operations
from leanwam.bench.forward import frame_plans
from leanwam.bench.generate import BASELINE, Options
from leanwam.bench.rows import raw, row
from leanwam.errors import InputError
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
        config = _with(config, frames=plan.frames)
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
    variants: Sequence[Config] = (),
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Time updates of the real trainer at one batch size: frame plans and variants against the dense one.

    Args:
        config: the anchor.
        plans: frame plans that it is trained under; a random one is drawn anew for every update.
        batch: samples per update.
        options: rounds and their order.
        variants: other configurations, which differ from the anchor in name, ``frames`` and ``loss_frames`` only.
        machine: its rates; None: nothing is said about what bounds an update.

    Raises:
        InputError: a variant that differs in more.
    """
    arms = {plan.name: _with(config, frames=plan.frames) for plan in frame_plans(plans)}
    for variant in variants:
        _refuse_other_differences(config, variant)
        arms[variant.name] = variant
    arms = {BASELINE: config, **arms}
    arms = {name: _sized(arm, batch) for name, arm in arms.items()}
    with TemporaryDirectory() as folder:
        trainers = {name: make_trainer(arm, None, Path(folder)) for name, arm in arms.items()}
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
        measured = measure_parts(trainers, n_repeats=options.n_share_repeats, seed=options.seed)
    parts = {f"{name} bs{batch}": found for name, found in measured.items()}
    label = f"bs{batch} train"
    dense_parts = measured[BASELINE]
    rows = []
    for name, arm in arms.items():
        if name == BASELINE:
            continue
        flops_ratio = counted[BASELINE].flops / counted[name].flops
        network = dense_parts["forward"]["share"] + dense_parts["backward"]["share"]
        rows.append(
            row(
                samples,
                name=f"{name} bs{batch} train",
                arm=name,
                baseline=BASELINE,
                expected_ratio=1.0 / (1.0 - network + network / flops_ratio),
                expected_from="end-to-end ceiling: measured share of forward and backward, counted operations",
                target="train",
                plan=name,
                frames=arm.training.frames,
                loss_frames=arm.training.loss_frames,
                batch=batch,
                backend="eager",
                flops_ratio=flops_ratio,
                network_share=network,
                updates_per_s=_per_s(samples, name),
                baseline_updates_per_s=_per_s(samples, BASELINE),
                dispatch_ratio=counted[BASELINE].n_dispatched / counted[name].n_dispatched,
                executions={"update": 1},
                parts_ratio={part: _part_ratio(dense_parts, measured[name], part) for part in PARTS},
            )
        )
    limits = {}
    if machine is not None:
        limits[label] = bounds(counted[BASELINE], machine, float(samples.of(BASELINE).min()))
    return {"rows": rows, "samples": {label: raw(samples)}, "parts": parts, "bounds": limits}


def speed_lines(rows: Sequence[dict[str, Any]], parts: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Updates per second of every arm and the CPU time of an update's parts, as a text table.

    ``ceiling``: what an arm could reach at most, end to end, by the dense update's shares and the counted operations.
    """
    found = {f"{item['plan']} bs{item['batch']}": item for item in rows}
    shown = [part for part in PARTS if part != "communication"]
    width = max(len(name) for name in parts)
    lines = [
        f"{'CPU ms of an update':<{width}}  {'updates/s':>9}  "
        + "  ".join(f"{part:>9}" for part in (*shown, "whole"))
        + f"  {'ratio':>6}  {'ceiling':>7}"
    ]
    for name, measured in parts.items():
        item = found.get(name)
        cells = [f"{1000 * measured[part]['seconds']:>9.1f}" for part in (*shown, "whole")]
        ratio = "" if item is None else f"{item['cpu_ratio']:>5.2f}×"
        ceiling = "" if item is None else f"{item['expected_ratio']:>6.2f}×"
        per_s = 1.0 / measured["whole"]["seconds"]
        lines.append(f"{name:<{width}}  {per_s:>9.3f}  {'  '.join(cells)}  {ratio:>6}  {ceiling:>7}".rstrip())
    shares = {name: measured for name, measured in parts.items() if name.startswith(f"{BASELINE} ")}
    for name, measured in shares.items():
        network = measured["forward"]["share"] + measured["backward"]["share"]
        lines.append(f"of {name}, dropped tokens can save only in forward and backward: {network:.1%} of it")
    return lines


def measure_parts(
    trainers: Mapping[str, training.Trainer], *, n_repeats: int = 5, seed: int = 0
) -> dict[str, dict[str, dict[str, Any]]]:
    """CPU seconds and shares of an update's parts, medians over rounds in which every trainer updates once.

    CPU time of the process, all its threads: other processes lengthen the wall, not this. ``whole`` is the
    update; ``communication`` is None with a reason: this trainer is one process.
    """
    updates: dict[str, list[dict[str, float]]] = {name: [] for name in trainers}
    random = np.random.default_rng(seed)
    names = list(trainers)
    for number in range(n_repeats + 1):
        for place in random.permutation(len(names)):
            name = names[int(place)]
            spent: dict[str, float] = {}
            with _timed_parts(trainers[name], spent):
                began = time.process_time()
                trainers[name].update()
                whole = time.process_time() - began
            if number:
                rest = max(whole - sum(spent.values()), 0.0)
                updates[name].append({**spent, "rest": rest, "whole": whole})
    return {name: _medians(found) for name, found in updates.items()}


def _medians(updates: Sequence[dict[str, float]]) -> dict[str, dict[str, Any]]:
    whole = statistics.median(update["whole"] for update in updates)
    parts: dict[str, dict[str, Any]] = {}
    for part in (*PARTS, "whole"):
        if part == "communication":
            parts[part] = {"seconds": None, "share": None, "why": "one process: nothing is communicated"}
            continue
        seconds = statistics.median(update.get(part, 0.0) for update in updates)
        parts[part] = {"seconds": seconds, "share": seconds / whole}
    return parts


def _with(config: Config, **settings: Any) -> Config:
    return msgspec.structs.replace(config, training=msgspec.structs.replace(config.training, **settings))


def _sized(config: Config, batch: int) -> Config:
    """The configuration at a batch size, for data made here: no tasks, no normalisation, nothing held out."""
    sized = _with(config, batch_size=batch, held_out_episodes=0, task_weights={})
    return msgspec.structs.replace(sized, tasks=(), normalization={})


def _refuse_other_differences(anchor: Config, variant: Config) -> None:
    alike = _with(variant, frames=anchor.training.frames, loss_frames=anchor.training.loss_frames)
    if msgspec.structs.replace(alike, name=anchor.name) != anchor:
        raise InputError(
            f"differs from {anchor.name} in more than its frame plans", field="--variants", value=variant.name
        )


def _per_s(samples: Samples, name: str) -> dict[str, float]:
    """Updates per second, from the medians of wall and CPU time."""
    place = samples.names.index(name)
    return {
        "wall": 1.0 / float(np.median(samples.wall_s[place])),
        "cpu": 1.0 / float(np.median(samples.cpu_s[place])),
    }


@contextmanager
def _timed_parts(trainer: training.Trainer, spent: dict[str, float]) -> Iterator[None]:
    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            output = function(*args, **kwargs)
            spent[part] = spent.get(part, 0.0) + time.process_time() - began
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
