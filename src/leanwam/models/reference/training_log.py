"""What a training run writes as it goes: rows of a CSV, TensorBoard scalars, the progress bar.

A full disk does not end the run: rows that could not be written are kept and written with the next one.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from leanwam.models.reference.checkpoint import write_atomically


class TrainingLog:
    """``log.csv`` and the TensorBoard folder of a run.

    Args:
        file: the CSV; rows beyond ``update`` are cut off, for training repeats them.
        board: TensorBoard's folder.
        update: the finished updates that training goes on from.
    """

    def __init__(self, file: Path, board: Path, update: int) -> None:
        self.file, self._waiting = file, list[dict[str, Any]]()
        _cut(file, update)
        self._board = _tensorboard(board, update)

    def add(self, row: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
        """Append a row; scalars go to TensorBoard at step ``row["update"]``."""
        self._waiting.append(dict(row))
        length = self.file.stat().st_size if self.file.exists() else 0
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=list(row))
        if length == 0:
            writer.writeheader()
        writer.writerows(self._waiting)
        try:
            with self.file.open("ab") as stream:
                stream.write(text.getvalue().encode())
            self._waiting.clear()
        except OSError as error:
            say(f"{self.file}: {error.strerror}; its rows are kept and written later")
            if self.file.exists():
                os.truncate(self.file, length)
        self._to_board(scalars, int(row["update"]))

    def close(self) -> None:
        """Write out what TensorBoard holds back."""
        if self._board is not None:
            self._board_does(self._board.close)

    def _to_board(self, scalars: Mapping[str, float], update: int) -> None:
        for name, value in scalars.items():
            if self._board is not None:
                self._board_does(partial(self._board.add_scalar, name, value, update))

    def _board_does(self, what: Callable[[], Any]) -> None:
        try:
            what()
        except OSError as error:
            say(f"TensorBoard: {error.strerror}; log.csv goes on without it")
            self._board = None


def say(text: str) -> None:
    """One line on stderr."""
    print(f"leanwam: {text}", file=sys.stderr, flush=True)


def _cut(file: Path, update: int) -> None:
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
    """A TensorBoard writer, or None with one line where it cannot be."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        say("no tensorboard here (pip install 'leanwam[train]'): log.csv only")
        return None
    try:
        return SummaryWriter(os.fspath(folder), purge_step=update + 1)
    except OSError as error:
        say(f"TensorBoard: {error.strerror}; log.csv goes on without it")
        return None


class Progress:
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
