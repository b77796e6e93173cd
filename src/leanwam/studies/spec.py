"""STUDY.toml: which arms are run, and which preregistrations they are judged by.

```toml
title = "Head plans in closed loop"
checkpoint = "heads"              # a shipped name, or a folder (relative to this file)
table = "episodes.jsonl"          # one episode table for all arms
lanes = 16                        # rows of the policy's batch

[[arms]]
name = "dense"
plan = "dense"

[[arms]]
name = "sparse_10"
plan = "sparse_10"

[[comparisons]]
prereg = "sparse_10/prereg.toml"  # names its two arms; tasks and episodes come from here
card = "sparse_10/card"
lang = "en"
```

Episodes are numbered from ``first_episode`` (0) in every task: another number takes starts that no earlier
experiment has seen. Those of all arms share starts and noise, which pairs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from leanwam.errors import InputError
from leanwam.judge.prereg import Prereg, load_prereg
from leanwam.plans import PlanSpec, parse_plan


class ArmSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One arm: a policy under a plan.

    Attributes:
        name: as the preregistrations name it.
        plan: a plan's text, or a .toml file relative to the study.
        checkpoint: if it is another one than the study's.
        noise_stream: another number gives other policy noise from the same starts (anchor against anchor).
    """

    name: str
    plan: str
    checkpoint: str | None = None
    noise_stream: int = 0


class ComparisonSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One preregistered comparison and where its card goes (paths relative to the study).

    Attributes:
        bench: speed table for the card.
        aa: name of an arm that repeats the anchor with another ``noise_stream``.
        exploratory: judge without a lock that is older than the data; the card says so.
    """

    prereg: str
    card: str
    lang: Literal["en", "ko"] = "en"
    bench: str | None = None
    aa: str | None = None
    exploratory: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    arms: tuple[ArmSpec, ...]
    comparisons: tuple[ComparisonSpec, ...]
    checkpoint: str = "heads"
    table: str = "episodes.jsonl"
    lanes: int = 16
    threads: int = 1
    first_episode: int = 0


@dataclass(frozen=True)
class Arm:
    """An arm with everything resolved.

    Attributes:
        episodes: per task, how many are planned at most.
        first_episode: number of the first of them.
    """

    name: str
    plan: PlanSpec
    checkpoint: str
    noise_stream: int
    episodes: dict[str, int]
    first_episode: int = 0


@dataclass(frozen=True)
class Comparison:
    """A comparison with its preregistration read."""

    spec: ComparisonSpec
    prereg: Prereg
    prereg_path: Path
    card: Path
    bench: Path | None

    @property
    def name(self) -> str:
        return self.spec.card

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms whose episodes it needs: lean, anchor, and the anchor's repetition."""
        names = (self.prereg.arms.lean, self.prereg.arms.anchor)
        return names if self.spec.aa is None else (*names, self.spec.aa)

    @property
    def fractions(self) -> tuple[float, ...]:
        """The declared looks; without any, the end alone."""
        return self.prereg.stopping.looks if self.prereg.stopping.rule == "looks" else (1.0,)

    def episodes(self, fraction: float) -> dict[str, int]:
        """Episodes of each task in each arm at a look."""
        counts = {task: self.prereg.planned(task) for task in self.prereg.judged_tasks}
        return {task: min(n, max(1, round(fraction * n))) for task, n in counts.items()}


@dataclass(frozen=True)
class Study:
    """A study ready to run.

    Attributes:
        path: STUDY.toml.
        table: the episode table.
        first_episode: number of the first episode of every task.
        state: folder of what the pipeline knows of itself.
    """

    path: Path
    title: str
    table: Path
    state: Path
    lanes: int
    threads: int
    first_episode: int
    arms: dict[str, Arm]
    comparisons: tuple[Comparison, ...]


def load_study(path: Path) -> Study:
    """Read and check STUDY.toml and the preregistrations it names.

    Raises:
        InputError: unreadable, an unknown key, an arm that is missing or never used, a look that the planned
            episodes cannot meet.
    """
    try:
        raw = msgspec.toml.decode(path.read_bytes(), type=_File)
    except FileNotFoundError as error:
        raise InputError("there is no such study", file=path) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from error
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise InputError(str(error), file=path) from error
    here = path.parent
    names = [arm.name for arm in raw.arms]
    cards = [item.card for item in raw.comparisons]
    for label, values in (("arms", names), ("comparisons", cards)):
        twice = next((value for value in values if values.count(value) > 1), None)
        if not values or twice is not None:
            raise InputError("there is at least one, each named once", file=path, field=label, value=twice)
    if raw.lanes < 1 or raw.threads < 1:
        raise InputError("must be at least 1", file=path, field="lanes, threads")
    if raw.first_episode < 0:
        raise InputError("must not be negative", file=path, field="first_episode", value=raw.first_episode)
    comparisons = tuple(_comparison(spec, here, names, path) for spec in raw.comparisons)
    planned: dict[str, dict[str, int]] = {name: {} for name in names}
    for item in comparisons:
        for name in item.arms:
            for task, n in item.episodes(1.0).items():
                planned[name][task] = max(n, planned[name].get(task, 0))
    unused = [name for name in names if not planned[name]]
    if unused:
        raise InputError("no comparison uses this arm", file=path, field="arms", value=unused[0])
    arms = {
        arm.name: Arm(
            arm.name,
            parse_plan(str(here / arm.plan) if arm.plan.endswith(".toml") else arm.plan),
            _checkpoint(arm.checkpoint or raw.checkpoint, here),
            arm.noise_stream,
            planned[arm.name],
            raw.first_episode,
        )
        for arm in raw.arms
    }
    table = here / raw.table
    return Study(
        path=path,
        title=raw.title,
        table=table,
        state=here / f"{path.stem}.state",
        lanes=raw.lanes,
        threads=raw.threads,
        first_episode=raw.first_episode,
        arms=arms,
        comparisons=comparisons,
    )


def _comparison(spec: ComparisonSpec, here: Path, names: list[str], path: Path) -> Comparison:
    prereg_path = here / spec.prereg
    prereg = load_prereg(prereg_path)
    item = Comparison(
        spec, prereg, prereg_path, here / spec.card, None if spec.bench is None else here / spec.bench
    )
    for name in item.arms:
        if name not in names:
            raise InputError(
                f"{spec.prereg} compares an arm that the study does not run",
                file=path,
                field="arms",
                value=name,
            )
    n_planned = prereg.n_planned
    for fraction in item.fractions:
        n = sum(item.episodes(fraction).values())
        if abs(n / n_planned - fraction) > 0.01:
            raise InputError(
                f"whole episodes of every task come to {n} of {n_planned}, which the judge does not take for this"
                " look; choose a fraction that whole episodes meet",
                file=prereg_path,
                field="stopping.looks",
                value=fraction,
            )
    return item


def _checkpoint(name: str, here: Path) -> str:
    return str(here / name) if (here / name).is_dir() else name
