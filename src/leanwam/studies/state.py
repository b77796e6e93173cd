"""What the pipeline remembers between runs: content hashes of what went into each step and what came out.

The file is a memory, never a truth: without it everything is found again from the table, the locks and the
cards, at the price of looking (and of judging again, which yields the same bytes).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from leanwam.errors import InputError
from leanwam.rollouts.ledger import table_lines

FORMAT = "leanwam-study-state/1"
FILE = "state.json"


class LookState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A look that was judged.

    Attributes:
        key: hash of everything that went into the card.
        card: the folder, relative to the study.
        outputs: file name -> SHA-256.
        word, state: what the card says.
        claim_holds: whether the declared claim holds.
        decided: whether the study of this comparison ends here.
    """

    fraction: float
    key: str
    card: str
    outputs: dict[str, str]
    word: str
    state: str
    claim_holds: bool
    decided: bool


class StudyState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``state.json``: per arm the hash of what it was last completed with, per comparison its looks."""

    format: str = FORMAT
    arms: dict[str, str] = {}
    comparisons: dict[str, tuple[LookState, ...]] = {}


def read_state(folder: Path) -> StudyState:
    """The state in a study's folder; an empty one where there is none.

    Raises:
        InputError: the file is there and is none.
    """
    file = folder / FILE
    try:
        found = msgspec.json.decode(file.read_bytes(), type=StudyState)
    except FileNotFoundError:
        return StudyState()
    except (msgspec.DecodeError, msgspec.ValidationError, OSError) as error:
        raise InputError(f"is not a study's state (it may be deleted): {error}", file=file) from error
    if found.format != FORMAT:
        raise InputError(f"expected format {FORMAT} (the file may be deleted)", file=file, value=found.format)
    return found


def write_state(folder: Path, state: StudyState) -> None:
    """Replace the state as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{FILE}.tmp"
    with temporary.open("wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(folder / FILE)


def digest_of(*parts: Any) -> str:
    """SHA-256 over plain data, in the order given."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file; ``absent`` where there is none."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return "absent"


def folder_digest(path: Path) -> str:
    """Over the names and contents of a folder's files, not those of its subfolders."""
    return digest_of([(item.name, file_digest(item)) for item in sorted(path.iterdir()) if item.is_file()])


def rows_digest(table: Path, arms: Sequence[str], episodes: dict[str, int], first: int = 0) -> str:
    """Over the rows of these arms' planned episodes, whatever file and order they stand in; one pass."""
    total, n = 0, 0
    for _, line in planned_lines(table, arms, episodes, first):
        total = (total + int.from_bytes(hashlib.sha256(line).digest(), "big")) % 2**256
        n += 1
    return digest_of(f"{total:064x}", n)


def planned_lines(
    table: Path, arms: Iterable[str], episodes: dict[str, int], first: int = 0
) -> Iterable[tuple[tuple[str, str, int], bytes]]:
    """Key and line of these arms' episodes ``first`` … ``first`` + n − 1 of each task."""
    wanted = set(arms)
    for line, arm, task, episode in table_lines(table):
        if arm in wanted and first <= episode < first + episodes.get(task, 0):
            yield (arm, task, episode), line


def holds_other_rows(table: Path, arms: Iterable[str], episodes: dict[str, int], first: int = 0) -> bool:
    """Whether the table has rows of these arms beyond the planned episodes."""
    wanted = set(arms)
    return any(
        arm in wanted and not first <= episode < first + episodes.get(task, 0)
        for _, arm, task, episode in table_lines(table)
    )
