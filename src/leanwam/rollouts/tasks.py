"""The tasks: two families of Meta-World tasks, named as in the frame-sparsity report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Literal

import msgspec

from leanwam.errors import InputError

Family = Literal["PnP", "articulated"]
FAMILIES: tuple[Family, ...] = ("PnP", "articulated")


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One task of the simulator.

    Attributes:
        name: leanwam's name, as in tables and on the command line.
        family: ``PnP`` (an object is picked, pushed or swept to a goal) or ``articulated`` (everything else).
        env_name: the name in Meta-World.
        styles: names of the expert's styles; see ``rollouts.experts.STYLES``.
        index: position in ``TASKS``; part of every seed, never reused.
    """

    name: str
    family: Family
    env_name: str
    styles: tuple[str, ...]
    index: int


def _tasks() -> dict[str, Task]:
    sideways, upright = ("left", "right"), ("high", "low")
    rows: tuple[tuple[str, Family, tuple[str, ...]], ...] = (
        ("push", "PnP", sideways),
        ("pick-place", "PnP", sideways),
        ("sweep-into", "PnP", sideways),
        ("basketball", "PnP", sideways),
        ("bin-picking", "PnP", sideways),
        ("pick-place-wall", "PnP", sideways),
        ("door-open", "articulated", sideways),
        ("drawer-open", "articulated", sideways),
        ("window-open", "articulated", upright),
        ("faucet-open", "articulated", sideways),
        ("button-press", "articulated", sideways),
        ("lever-pull", "articulated", ("left-below", "right-below")),
        ("peg-insert-side", "articulated", sideways),
        ("hammer", "articulated", sideways),
        ("plate-slide", "PnP", sideways),
        ("plate-slide-side", "PnP", sideways),
        ("coffee-push", "PnP", sideways),
        ("coffee-pull", "PnP", sideways),
    )
    return {
        name: Task(name, family, f"{name}-v3", styles, index)
        for index, (name, family, styles) in enumerate(rows)
    }


#: name -> task, in a fixed order.
TASKS: dict[str, Task] = _tasks()


def select_tasks(names: Iterable[str] | str | None = None, known: Sequence[str] | None = None) -> list[Task]:
    """The tasks of a list of names, ``"a,b"``, a family's name, or all of them (None or ``"all"``).

    Args:
        names: what is wanted.
        known: a model's tasks; all (then also called ``"trained"``) are these in their order, a family those of it.

    Raises:
        InputError: an unknown name (the nearest known one is named) or one that comes twice.
    """
    if names is None or names == "all" or (names == "trained" and known is not None):
        return list(TASKS.values()) if known is None else select_tasks(list(known))
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    chosen: list[Task] = []
    for name in wanted:
        if name in FAMILIES:
            family = [task for task in TASKS.values() if task.family == name]
            mine = [task for task in family if known is None or task.name in known]
            if not mine:
                raise InputError("the model knows no task of this family", field="tasks", value=name)
            chosen.extend(mine)
        elif name in TASKS:
            chosen.append(TASKS[name])
        else:
            close = get_close_matches(name, [*TASKS, *FAMILIES], n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(TASKS)}"
            raise InputError(f"unknown task ({hint})", field="tasks", value=name)
    if len({task.name for task in chosen}) != len(chosen):
        raise InputError("a task is named twice", field="tasks", value=",".join(wanted))
    return chosen
