"""The pipeline: lock, rollouts, judge, card; each step skipped where its content is done and unchanged.

Comparisons without looks: all arms are run, then all are judged on the study's table, as ``leanwam judge run``
would. With declared looks: the two arms are run up to the look and no further, then judged on an extract of
exactly those rows (sorted, so that its hash does not depend on who ran what when); a look that decides ends
its comparison. Between looks nothing is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

import leanwam
from leanwam.errors import InputError
from leanwam.judge.lock import changes, lock, lock_path, read_lock
from leanwam.judge.prereg import canonical, digest
from leanwam.rollouts.ledger import Ledger, table_lines
from leanwam.rollouts.schedule import EpisodePlan
from leanwam.rollouts.table import table_files
from leanwam.rollouts.tasks import TASKS, Task
from leanwam.studies.judging import judge_comparison
from leanwam.studies.spec import Arm, Comparison, Study
from leanwam.studies.state import (
    LookState,
    StudyState,
    digest_of,
    file_digest,
    folder_digest,
    holds_other_rows,
    planned_lines,
    read_state,
    rows_digest,
    write_state,
)

Stage = Literal["lock", "rollouts", "judge"]
Say = Callable[[Stage, str, str], None]


class RunArm(Protocol):
    """Runs an arm's episodes into the table: those of ``planned`` that it does not hold, and no others."""

    def __call__(self, arm: Arm, planned: dict[str, int], table: Path) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """How a comparison stands after a run.

    Attributes:
        look: the last look judged.
        fraction: its share of the planned episodes.
        new: whether it was judged in this run.
    """

    comparison: str
    look: int
    fraction: float
    word: str
    state: str
    claim_holds: bool
    card: Path
    new: bool


def run_study(study: Study, run_arm: RunArm, *, now_utc: str, say: Say = lambda *_: None) -> list[Outcome]:
    """Bring a study to its end, or to where its looks decide; what is done is not done again.

    Args:
        study: from ``load_study``.
        run_arm: runs episodes, locally or on Ray.
        now_utc: the time written into locks made now.
        say: told of each step: stage, what it is about, and ``done`` or ``unchanged``.

    Raises:
        InputError: a preregistration that changed since its lock, or is not locked while rows of its arms
            exist; an arm that was run in another way.
    """
    for item in study.comparisons:
        _lock(study, item, now_utc, say)
    for item in study.comparisons:
        if item.prereg.stopping.rule != "looks":
            _complete_all(study, item, item.episodes(1.0), run_arm, say)
    return [_run_comparison(study, item, run_arm, say) for item in study.comparisons]


def _lock(study: Study, item: Comparison, now_utc: str, say: Say) -> None:
    """Lock a preregistration before its first episode; refuse one that changed or comes too late."""
    found = read_lock(item.prereg_path)
    if found is not None:
        changed = changes(found.content, canonical(item.prereg))
        if changed and not item.spec.exploratory:
            raise InputError(
                f"changed since it was locked at {found.locked_at_utc} ({'; '.join(changed)}); undo the change,"
                " or declare it with leanwam judge lock --amend REASON",
                file=item.prereg_path,
            )
        say("lock", item.spec.prereg, "unchanged")
        return
    if item.spec.exploratory:
        return
    arms = {item.prereg.arms.lean, item.prereg.arms.anchor}
    if any(arm in arms for _, arm, _, _ in table_lines(study.table)):
        raise InputError(
            f"is not locked, and {study.table.name} holds episodes of its arms already: too late for a"
            " preregistration (exploratory = true judges all the same, and the card says so)",
            file=item.prereg_path,
        )
    lock(item.prereg_path, now_utc=now_utc, version=leanwam.__version__)
    say("lock", item.spec.prereg, "done")


def _run_comparison(study: Study, item: Comparison, run_arm: RunArm, say: Say) -> Outcome:
    for index, fraction in enumerate(item.fractions, start=1):
        planned = item.episodes(fraction)
        if item.prereg.stopping.rule == "looks":
            _complete_all(study, item, planned, run_arm, say)
        look, new = _judge(study, item, index, fraction, planned, say)
        if look.decided:
            break
    return Outcome(
        item.name,
        index,
        fraction,
        look.word,
        look.state,
        look.claim_holds,
        study.path.parent / look.card,
        new,
    )


def _complete_all(study: Study, item: Comparison, planned: dict[str, int], run_arm: RunArm, say: Say) -> None:
    for name in item.arms:
        _complete(study, study.arms[name], planned, run_arm, say)


def _complete(study: Study, arm: Arm, planned: dict[str, int], run_arm: RunArm, say: Say) -> None:
    """Run what is missing of an arm. An arm that is whole and was made from the same content is not opened."""
    key = arm_key(study, arm)
    state = read_state(study.state)
    label = f"{arm.name}, {sum(planned.values())} episodes"
    if state.arms.get(arm.name) == key and n_missing(study.table, arm, planned) == 0:
        say("rollouts", label, "unchanged")
        return
    run_arm(arm, planned, study.table)
    left = n_missing(study.table, arm, planned)
    if left:
        raise InputError(f"{left} episodes of arm {arm.name} were not run", file=study.table)
    state = read_state(study.state)
    write_state(study.state, msgspec.structs.replace(state, arms={**state.arms, arm.name: key}))
    say("rollouts", label, "done")


def _judge(
    study: Study, item: Comparison, index: int, fraction: float, planned: dict[str, int], say: Say
) -> tuple[LookState, bool]:
    """The card of a look: the one that is there if everything that went into it is the same."""
    whole = _judges_whole_table(study, item, planned)
    files = [(file.name, file_digest(file)) for file in table_files(study.table)]
    key = digest_of(
        digest(item.prereg),
        file_digest(lock_path(item.prereg_path)),
        files if whole else rows_digest(study.table, item.arms, planned, study.first_episode),
        None if item.bench is None else file_digest(item.bench),
        msgspec.to_builtins(item.spec),
        leanwam.__version__,
        index,
    )
    label = item.name if len(item.fractions) == 1 else f"{item.name}, look {index} of {len(item.fractions)}"
    state = read_state(study.state)
    looks = state.comparisons.get(item.name, ())
    if len(looks) >= index and looks[index - 1].key == key and _stands(study, looks[index - 1]):
        say("judge", label, "unchanged")
        return looks[index - 1], False
    table = study.table if whole else _extract(study, item, index, planned)
    last = index == len(item.fractions)
    folder, head, written = judge_comparison(item, table, last=last, interim=study.state / f"look-{index}")
    here = study.path.parent
    look = LookState(
        fraction=fraction,
        key=key,
        card=str(folder.relative_to(here)),
        outputs={path.name: file_digest(path) for path in written},
        word=head["word"],
        state=head["state"],
        claim_holds=head["claim_holds"],
        decided=last or head["word"] != "CAN'T TELL",
    )
    comparisons = {**state.comparisons, item.name: (*looks[: index - 1], look)}
    write_state(study.state, msgspec.structs.replace(state, comparisons=comparisons))
    say("judge", label, "done")
    return look, True


def _stands(study: Study, look: LookState) -> bool:
    folder = study.path.parent / look.card
    return all(file_digest(folder / name) == digest for name, digest in look.outputs.items())


def _judges_whole_table(study: Study, item: Comparison, planned: dict[str, int]) -> bool:
    """Whether the study's table holds of these arms what is planned and no more, and will not grow by looks."""
    if any(other.prereg.stopping.rule == "looks" for other in study.comparisons):
        return False
    return not holds_other_rows(study.table, item.arms, planned, study.first_episode)


def _extract(study: Study, item: Comparison, index: int, planned: dict[str, int]) -> Path:
    """A table of exactly the rows of a look, sorted."""
    path = study.state / f"look-{index}" / f"{item.name.replace('/', '-')}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = planned_lines(study.table, item.arms, planned, study.first_episode)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as stream:
        stream.writelines(line for _, line in sorted(lines))
    temporary.replace(path)
    return path


def arm_key(study: Study, arm: Arm) -> str:
    """Hash of what an arm's episodes are made from."""
    return digest_of(
        arm.name,
        msgspec.to_builtins(arm.plan),
        checkpoint_digest(arm.checkpoint),
        arm.noise_stream,
        study.lanes,
        study.threads,
        leanwam.__version__,
    )


def checkpoint_digest(name: str) -> str:
    """Over a checkpoint's files: a folder, or a shipped one by name."""
    found = checkpoint_folder(name)
    return digest_of(name) if found is None else folder_digest(found)


def checkpoint_folder(name: str) -> Path | None:
    """Where a checkpoint is: a folder, or a shipped one by name; None if it is not here."""
    folders = [Path(name), Path(leanwam.__file__).parent / "models" / "reference" / "checkpoints" / name]
    return next((folder for folder in folders if folder.is_dir()), None)


def episodes_of(arm: Arm, planned: dict[str, int]) -> list[tuple[list[Task], int]]:
    """Tasks that have the same number of episodes, with that number."""
    groups: dict[int, list[Task]] = {}
    for name, n in planned.items():
        if name not in TASKS:
            raise InputError(f"unknown task (known: {', '.join(TASKS)})", field="tasks", value=name)
        groups.setdefault(n, []).append(TASKS[name])
    return [(tasks, n) for n, tasks in groups.items()]


def n_missing(table: Path, arm: Arm, planned: dict[str, int]) -> int:
    """Planned episodes of an arm that the table does not hold."""
    if not table_files(table):
        return sum(planned.values())
    with Ledger(table, write=False) as ledger:
        first = arm.first_episode
        wanted = [EpisodePlan(task, first + e, 0, 0) for task, n in planned.items() for e in range(n)]
        return len(wanted) - ledger.tally(arm.name, wanted).n_done


__all__ = ["Outcome", "RunArm", "StudyState", "checkpoint_folder", "episodes_of", "n_missing", "run_study"]
