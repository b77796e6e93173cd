"""Training: AdamW with warm-up and cosine, EMA, resumable after a kill at any moment, logged.

Every update's batch, times and noise come from (seed, update number) alone. So a run that was killed goes on
from its last state and ends with the bytes of an uninterrupted one.
"""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanwam.errors import InputError, LeanwamError
from leanwam.models.reference.checkpoint import (
    build_model,
    save_reference,
    write_atomically,
)
from leanwam.models.reference.config import Config, decode_config
from leanwam.models.reference.dataset import TrainingData
from leanwam.models.reference.model import ReferenceWAM
from leanwam.models.reference.objective import NoiseSchedules, stream_losses, weighted
from leanwam.models.reference.training_frames import TrainingFrames
from leanwam.models.reference.training_state import RunState, load_state, save_state

LOG_EVERY = 50
_MAX_SKIPPED_IN_A_ROW = 20


@dataclass(frozen=True)
class Run:
    """Where and how a training run works.

    Attributes:
        out: the run's folder; ``config.json``, ``model.safetensors`` (EMA), ``manifest.json``, ``log.csv``
            are what a checkpoint ships, ``training/`` holds the state and the TensorBoard log.
        command: the command line, for the manifest.
        data_digest: hash of the demonstrations.
        after_update: called with the number of finished updates (tests, interruption).
        progress: show a progress bar on stderr.
    """

    out: Path
    command: str
    data_digest: str
    after_update: Callable[[int], None] | None = None
    progress: bool = True
    data_source: dict[str, Any] = field(default_factory=dict)


def train(
    config: Config, data: TrainingData, run: Run, codec_state: dict[str, Tensor] | None = None
) -> ReferenceWAM:
    """Train from scratch, or go on where the folder's last state is, until ``config.training.n_updates``.

    Returns:
        the model with its EMA weights, as saved.

    Raises:
        InputError: the folder holds a run with another configuration or other data.
        LeanwamError: the loss stayed non-finite.
    """
    torch.manual_seed(config.training.seed)
    model = build_model(config)
    if codec_state is not None and model.codec is not None:
        model.codec.load_state_dict(codec_state)
    run.out.mkdir(parents=True, exist_ok=True)
    _claim(run, config)
    trainer = Trainer(model, data, run)
    trainer.restore()
    trainer.loop()
    return trainer.finish()


class Trainer:
    """One run's moving parts."""

    def __init__(self, model: ReferenceWAM, data: TrainingData, run: Run) -> None:
        self.model, self.data, self.run, self.config = model, data, run, model.config
        self.parameters = dict(model.named_parameters())
        training = self.config.training
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=training.learning_rate,
            weight_decay=training.weight_decay,
            betas=(0.9, 0.99),
            foreach=True,
        )
        self.ema = {name: value.detach().clone() for name, value in self.parameters.items()}
        self.schedules = NoiseSchedules(model)
        self.frames = TrainingFrames(self.config)
        self.state = RunState()
        self.recent: list[dict[str, float]] = []

    def restore(self) -> None:
        """Go on from the folder's last whole state, if there is one."""
        found = load_state(self.run.out / "training", self.parameters, self.ema, self.optimizer)
        if found is not None:
            self.state = found
        _cut_log(self.run.out / "log.csv", self.state.update)

    def loop(self) -> None:
        """Update until done; save at intervals and on interruption."""
        training = self.config.training
        began_wall, began_cpu = time.monotonic(), time.process_time()
        before_wall, before_cpu = self.state.wall_s, self.state.cpu_s
        saved = began_wall
        board = _tensorboard(self.run.out / "training" / "tensorboard", self.state.update)
        with _progress(training.n_updates, self.state.update, self.run.progress) as advance:
            try:
                while self.state.update < training.n_updates:
                    self.update()
                    self.state.wall_s = before_wall + time.monotonic() - began_wall
                    self.state.cpu_s = before_cpu + time.process_time() - began_cpu
                    if self.state.update % LOG_EVERY == 0 or self.state.update == training.n_updates:
                        self.log(board)
                    advance(self.state.update, self.state.last)
                    if time.monotonic() - saved > training.save_every_s:
                        self.save()
                        saved = time.monotonic()
                    if self.run.after_update is not None:
                        self.run.after_update(self.state.update)
            finally:
                self.save()
                if board is not None:
                    board.close()

    def update(self) -> None:
        """One optimiser step; a non-finite loss or gradient is counted and skipped."""
        training, number = self.config.training, self.state.update
        random = np.random.default_rng([training.seed, number])
        generator = torch.Generator().manual_seed(int(random.integers(2**62)))
        batch = self.data.batch(random, training.batch_size)
        keep, counted = self.frames.at(number)
        losses = stream_losses(self.model, self.schedules, batch, generator, keep, counted)
        loss = weighted(self.config, losses)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), 1.0)
        self.state.update += 1
        if not bool(torch.isfinite(loss)) or not bool(torch.isfinite(norm)):
            self.state.n_nan += 1
            self.state.n_nan_in_a_row += 1
            if self.state.n_nan_in_a_row > _MAX_SKIPPED_IN_A_ROW:
                raise LeanwamError(
                    f"the loss was not finite {self.state.n_nan_in_a_row} times in a row; lower learning_rate"
                )
            return
        self.state.n_nan_in_a_row = 0
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, number)
        self.optimizer.step()
        decay = min(training.ema_decay, (1.0 + number) / (10.0 + number))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.ema.values()), [p.detach() for p in self.parameters.values()], 1.0 - decay
            )
        self.recent.append({name: float(value.detach()) for name, value in losses.items()})

    def log(self, board: Any) -> None:
        """One row of the CSV: means since the last row."""
        if not self.recent:
            return
        self.state.last = {
            name: float(np.mean([row[name] for row in self.recent])) for name in self.config.streams
        }
        self.recent.clear()
        file = self.run.out / "log.csv"
        row = {
            "update": self.state.update,
            "wall_s": round(self.state.wall_s, 1),
            "learning_rate": learning_rate(self.config, self.state.update - 1),
            **{f"loss_{name}": f"{value:.6f}" for name, value in self.state.last.items()},
            "n_nan": self.state.n_nan,
        }
        is_new = not file.exists()
        with file.open("a", newline="") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(row))
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        if board is not None:
            for name, value in self.state.last.items():
                board.add_scalar(f"loss/{name}", value, self.state.update)
            board.add_scalar("learning_rate", row["learning_rate"], self.state.update)

    def save(self) -> None:
        """The state to go on from, and the EMA weights as a checkpoint."""
        save_state(self.run.out / "training", self.state, self.parameters, self.ema, self.optimizer)
        save_reference(self.run.out, self.config, {**self.model.state_dict(), **self.ema})
        write_atomically(
            self.run.out / "manifest.json", json.dumps(self.manifest(), indent=1).encode() + b"\n"
        )

    def manifest(self) -> dict[str, Any]:
        """How this checkpoint came to be."""
        return {
            "command": self.run.command,
            "preset": self.config.name,
            "seed": self.config.training.seed,
            "n_updates": self.state.update,
            "n_updates_wanted": self.config.training.n_updates,
            "batch_size": self.config.training.batch_size,
            "n_parameters": self.model.n_parameters(),
            "tasks": list(self.config.tasks),
            "data": {
                "digest": self.run.data_digest,
                "n_observations": len(self.data.task),
                **self.run.data_source,
            },
            "frames": self.config.training.frames,
            "loss_frames": self.config.training.loss_frames,
            "n_video_tokens": self.n_tokens(),
            "wall_s": round(self.state.wall_s, 1),
            "cpu_s": round(self.state.cpu_s, 1),
            "n_nan": self.state.n_nan,
            "final_loss": self.state.last or None,
            "versions": versions(),
        }

    def n_tokens(self) -> dict[str, int]:
        """How many video tokens there are, are computed in an update, and carry loss."""
        video = self.config.streams["video"]
        keep, counted = self.frames.at(0)
        computed = video.n_tokens if keep is None else len(keep)
        with_loss = computed - video.n_clean_tokens if counted is None else len(counted)
        return {"all": video.n_tokens, "computed": computed, "with_loss": with_loss}

    def finish(self) -> ReferenceWAM:
        """The model with EMA weights."""
        self.model.load_state_dict({**self.model.state_dict(), **self.ema})
        return self.model.eval().requires_grad_(False)


def learning_rate(config: Config, update: int) -> float:
    """Linear warm-up, then a cosine down to 1 % of the peak."""
    training = config.training
    if update < training.warmup:
        return training.learning_rate * (update + 1) / training.warmup
    share = (update - training.warmup) / max(training.n_updates - training.warmup, 1)
    return training.learning_rate * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0))))


def versions() -> dict[str, str]:
    """Of everything that the weights depend on."""
    import diffusers

    from leanwam import __version__

    return {
        "leanwam": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "diffusers": str(diffusers.__version__),
        "numpy": np.__version__,
        "threads": str(torch.get_num_threads()),
        "machine": platform.machine(),
    }


def _claim(run: Run, config: Config) -> None:
    """Refuse to go on in a folder that another configuration or other data began."""
    import msgspec

    (run.out / "training").mkdir(exist_ok=True)
    file = run.out / "training" / "run.json"
    wanted = {"config": json.loads(msgspec.json.encode(config)), "data_digest": run.data_digest}
    if file.is_file():
        found = json.loads(file.read_text())
        begun = decode_config(json.dumps(found.get("config")).encode(), file=file)
        for key, same in (
            ("config", begun == config),
            ("data_digest", found.get("data_digest") == run.data_digest),
        ):
            if not same:
                raise InputError(
                    "a run with another value was begun here; choose another folder", file=file, field=key
                )
    else:
        write_atomically(file, json.dumps(wanted).encode())


def _cut_log(file: Path, update: int) -> None:
    """Drop the rows that lie beyond the state that training goes on from."""
    if not file.is_file():
        return
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    whole = [row for row in rows if None not in row.values() and (row.get("update") or "").isdigit()]
    kept = [row for row in whole if int(row["update"]) <= update]
    if not kept:
        file.unlink()
        return
    lines = [",".join(kept[0]), *(",".join(row.values()) for row in kept)]
    write_atomically(file, ("\r\n".join(lines) + "\r\n").encode())


def _tensorboard(folder: Path, update: int) -> Any:
    """A TensorBoard writer, or None with one line where tensorboard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("leanwam: no tensorboard here (pip install 'leanwam[train]'): log.csv only", file=sys.stderr)
        return None
    return SummaryWriter(os.fspath(folder), purge_step=update + 1)


class _progress:
    """A progress bar with time left and the last losses; silent where not wanted."""

    def __init__(self, total: int, done: int, show: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not show)
        self._row = self._bar.add_task("training", total=total, completed=done)

    def __enter__(self) -> Callable[[int, dict[str, float]], None]:
        self._bar.__enter__()

        def advance(done: int, last: dict[str, float]) -> None:
            text = " ".join(f"{name} {value:.3f}" for name, value in last.items())
            self._bar.update(self._row, completed=done, description=f"training {text}")

        return advance

    def __exit__(self, *stop: Any) -> None:
        self._bar.__exit__(*stop)
