"""Training: AdamW with warm-up and cosine, EMA, resumable after a kill at any moment, logged.

Every update's batch, times and noise come from (seed, update number) alone. So a run that was killed goes on
from its last state and ends with the bytes of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
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
from leanwam.models.reference.identity import checkpoint_id
from leanwam.models.reference.model import ReferenceWAM, token_sets
from leanwam.models.reference.objective import NoiseSchedules, stream_losses, weighted
from leanwam.models.reference.training_frames import TrainingFrames
from leanwam.models.reference.training_log import Progress, TrainingLog, say
from leanwam.models.reference.training_state import RunState, load_state, save_state

LOG_EVERY = 50
_TASK_EMBEDDING = ".task.weight"
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
    config: Config,
    data: TrainingData,
    run: Run,
    codec_state: dict[str, Tensor] | None = None,
    init: ReferenceWAM | None = None,
) -> ReferenceWAM:
    """Train from scratch or from another model's weights, or go on where the folder's last state is, until
    ``config.training.n_updates``.

    Args:
        config: prepared (``prepare_config``).
        data: of the same demonstrations.
        run: where and how.
        codec_state: of the codec that ``data`` was encoded with.
        init: begin from these weights; the optimiser begins anew.

    Returns:
        the model with its EMA weights, as saved.

    Raises:
        InputError: the folder holds a run with another configuration or other data; ``init`` is a model of
            another shape or another encoding of the data.
        LeanwamError: the loss stayed non-finite.
    """
    if init is not None:
        training = msgspec.structs.replace(config.training, init=checkpoint_id(init))
        config = msgspec.structs.replace(config, training=training)
    torch.manual_seed(config.training.seed)
    model = build_model(config)
    if codec_state is not None and model.codec is not None:
        model.codec.load_state_dict(codec_state)
    if init is not None:
        _begin_from(model, init)
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
            fused=True,
        )
        self.ema = {name: value.detach().clone() for name, value in self.parameters.items()}
        self.schedules = NoiseSchedules(model)
        self.frames = TrainingFrames(self.config)
        keep, _ = self.frames.at(0)
        self.tokens = token_sets(self.config, keep, model.device) if self.frames.is_fixed else None
        self.state = RunState()
        self.recent: list[dict[str, float]] = []

    def restore(self) -> None:
        """Go on from the folder's last whole state, if there is one."""
        for folder in (self.run.out, self.run.out / "training"):
            for torn in folder.glob("*.tmp"):  # what a kill left of a write
                torn.unlink()
        found = load_state(self.run.out / "training", self.parameters, self.ema, self.optimizer)
        if found is not None:
            self.state = found

    def loop(self) -> None:
        """Update until done; save at intervals and on interruption.

        A save that fails (a full disk) is said and tried again at the next interval; what was saved before is
        still there.

        Raises:
            LeanwamError: the last save failed; the one before it can be gone on from.
        """
        training = self.config.training
        began_wall, began_cpu = time.monotonic(), time.process_time()
        before_wall, before_cpu = self.state.wall_s, self.state.cpu_s
        saved = began_wall
        log = TrainingLog(
            self.run.out / "log.csv", self.run.out / "training" / "tensorboard", self.state.update
        )
        with (
            Progress(training.n_updates, self.state.update, self.run.progress) as advance,
            interrupted_between_updates() as give_way,
        ):
            try:
                while self.state.update < training.n_updates:
                    give_way()
                    self.update()
                    self.state.wall_s = before_wall + time.monotonic() - began_wall
                    self.state.cpu_s = before_cpu + time.process_time() - began_cpu
                    if self.state.update % LOG_EVERY == 0 or self.state.update == training.n_updates:
                        self.log(log)
                    advance(self.state.update, self.state.last)
                    if time.monotonic() - saved > training.save_every_s:
                        self.save_or_say()
                        saved = time.monotonic()
                    if self.run.after_update is not None:
                        self.run.after_update(self.state.update)
            finally:
                log.close()
                self.save_at_the_end()

    def save_or_say(self) -> None:
        """``save``; where the disk refuses, one line on stderr."""
        try:
            self.save()
        except OSError as error:
            say(
                f"{self.run.out}: {error.strerror}; update {self.state.update} could not be saved, what was saved"
                f" before is kept, the next try is in {self.config.training.save_every_s:g} s"
            )

    def save_at_the_end(self) -> None:
        """``save``; where the disk refuses, the error that says what is kept."""
        try:
            self.save()
        except OSError as error:
            raise LeanwamError(
                f"{self.run.out}: {error.strerror}; update {self.state.update} could not be saved; run again to go on"
                " from the last save"
            ) from error

    def update(self) -> None:
        """One optimiser step; a non-finite loss or gradient is counted and skipped."""
        training, number = self.config.training, self.state.update
        random = np.random.default_rng([training.seed, number])
        generator = torch.Generator().manual_seed(int(random.integers(2**62)))
        batch = self.data.batch(random, training.batch_size)
        keep, counted = self.frames.at(number)
        losses = stream_losses(self.model, self.schedules, batch, generator, keep, counted, self.tokens)
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

    def log(self, log: TrainingLog) -> None:
        """One row of the log: means since the last row."""
        if not self.recent:
            return
        self.state.last = {
            name: float(np.mean([row[name] for row in self.recent])) for name in self.config.streams
        }
        self.recent.clear()
        rate = learning_rate(self.config, self.state.update - 1)
        row = {
            "update": self.state.update,
            "wall_s": round(self.state.wall_s, 1),
            "learning_rate": rate,
            **{f"loss_{name}": f"{value:.6f}" for name, value in self.state.last.items()},
            "n_nan": self.state.n_nan,
        }
        scalars = {f"loss/{name}": value for name, value in self.state.last.items()}
        log.add(row, {**scalars, "learning_rate": rate})

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
            "init": self.config.training.init,
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


@contextmanager
def interrupted_between_updates() -> Iterator[Callable[[], None]]:
    """Ctrl-C and SIGTERM end the run where ``give_way`` is called, never within an update, whose half would
    be saved as a whole one.

    Yields:
        ``give_way``, which raises ``KeyboardInterrupt`` if one of them has come.
    """
    came: list[int] = []

    def give_way() -> None:
        if came:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield give_way
        return
    before = {
        number: signal.signal(number, lambda number, frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield give_way
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _begin_from(model: ReferenceWAM, init: ReferenceWAM) -> None:
    """Copy the weights, if the numbers mean the same in both models; a task's embedding by the task's name."""
    mine, other = model.state_dict(), init.state_dict()
    frozen = mine.keys() - dict(model.named_parameters()).keys()
    for name in mine.keys() & other.keys():
        if name.endswith(_TASK_EMBEDDING) and mine[name].shape[1:] == other[name].shape[1:]:
            other[name] = _rows_by_task(mine[name], model.config.tasks, other[name], init.config.tasks)
    for what, same in (
        ("normalization", model.config.normalization == init.config.normalization),
        (
            "shapes of its tensors",
            {k: v.shape for k, v in mine.items()} == {k: v.shape for k, v in other.items()},
        ),
    ):
        if not same:
            raise InputError(
                f"has other {what} than the model that is trained", field="init", value=checkpoint_id(init)
            )
    if not all(torch.equal(mine[name], other[name]) for name in frozen):
        raise InputError(
            "has another codec: other demonstrations or another seed", field="init", value=checkpoint_id(init)
        )
    model.load_state_dict(other)


def _rows_by_task(mine: Tensor, tasks: Sequence[str], other: Tensor, known: Sequence[str]) -> Tensor:
    """The embedding [task, width] with the other's row for every task that it knows."""
    rows = mine.clone()
    for index, task in enumerate(tasks):
        if task in known:
            rows[index] = other[known.index(task)]
    return rows


def _claim(run: Run, config: Config) -> None:
    """Refuse to go on in a folder that another configuration or other data began."""
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
