"""Plans as text and as TOML files.

Text: ``sparse_10``, ``sparse_10/linear``, ``action=sparse_10,video=dense``, ``frames=drop_middle``,
``at:0,7,14,49``, ``plain_10``, ``cache:first_block:threshold=0.1``. A list of plans is separated by commas
or semicolons outside of brackets; ``head=…`` items that follow each other belong to one plan as long as no
head repeats, and bare numbers continue ``at:``. A cache beside frames or heads is written as such an item:
``frames=drop_middle,cache=first_block:threshold=0.1``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from leanwam.errors import InputError
from leanwam.plans.caches import CACHES, PREFIX, cache_text, check_parameters, parse_cache, split_outside
from leanwam.plans.families import family_steps, nearest_family
from leanwam.plans.plan import HeadSpec, PlanSpec
from leanwam.plans.standins import HOLDS

_ITEM = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=(.+)")
_LARGEST_N = 100_000  # any schedule of a real sampler; only used to check a family's spelling early


def parse_plan(text: str) -> PlanSpec:
    """Read one plan from its text form, or from a ``.toml`` file if the text names one.

    Raises:
        InputError: what is not understood, with the nearest known name.
    """
    if text.endswith(".toml"):
        return load_plan(Path(text))
    plans = parse_plans(text)
    if len(plans) != 1:
        raise InputError("one plan is wanted here", field="plan", value=text)
    return plans[0]


def parse_plans(text: str) -> list[PlanSpec]:
    """Read a list of plans: ``sparse_10,tail_only_4/linear`` or ``action=sparse_10,video=dense;dense``."""
    groups: list[list[str]] = []
    for part in split_outside(text, ";"):
        groups.extend(_group(part, text))
    plans = [load_plan(Path(g[0])) if g[0].endswith(".toml") else _from_items(g) for g in groups]
    names = [plan.name for plan in plans]
    for name in names:
        if names.count(name) > 1:
            raise InputError("the plan is named twice", field="plans", value=name)
    return plans


def _group(part: str, text: str) -> list[list[str]]:
    groups: list[list[str]] = []
    for raw in split_outside(part, ","):
        token = raw.strip()
        if not token:
            raise InputError("an empty plan name", field="plan", value=text)
        if re.fullmatch(r"[\d-]+(/\w+)?", token) and groups and re.search(r"\b(at|tokens):", groups[-1][-1]):
            groups[-1][-1] += f",{token}"
            continue
        item = _ITEM.fullmatch(token)
        last = groups[-1] if groups else []
        used = [match.group(1) for match in map(_ITEM.fullmatch, last) if match]
        if item and used and len(used) == len(last) and item.group(1) not in used:
            last.append(token)
        else:
            groups.append([token])
    return groups


def _from_items(items: list[str]) -> PlanSpec:
    default: HeadSpec | None = None
    heads: dict[str, HeadSpec] = {}
    frames: str | None = None
    sampler_steps: int | None = None
    cache: str | None = None
    names: list[str] = []
    for text in items:
        if text.startswith(PREFIX):
            cache = text.removeprefix(PREFIX)
            names.append(text)
            continue
        item = _ITEM.fullmatch(text)
        if item is None:
            plain = re.fullmatch(r"plain_(\d+)", text)
            if plain:
                sampler_steps = int(plain.group(1))
                if sampler_steps < 1:
                    raise InputError("the plain sampler needs at least one step", field="plan", value=text)
                names.append(text)
                continue
            default = _head_spec(text)
            names.append(_head_text(default))
        elif item.group(1) == "frames":
            frames = item.group(2)
            names.append(text)
        elif item.group(1) == "cache":
            cache = item.group(2).removeprefix(PREFIX)
            names.append(f"cache={cache}")
        else:
            heads[item.group(1)] = _head_spec(item.group(2))
            names.append(f"{item.group(1)}={_head_text(heads[item.group(1)])}")
    if names == [f"cache={cache}"]:
        names = [f"{PREFIX}{cache}"]
    return PlanSpec(
        name=",".join(names),
        default=default,
        heads=heads,
        frames=frames,
        sampler_steps=sampler_steps,
        cache=cache,
    )


def _head_spec(text: str) -> HeadSpec:
    schedule, slash, hold = text.partition("/")
    if slash and hold not in HOLDS:
        raise InputError(f"a hold is one of {', '.join(HOLDS)}", field="plan", value=text)
    if not re.match(r"(dense$|sparse_|tail_heavy_|tail_only_|prefix:|stride:|at:)", schedule):
        raise InputError(f"unknown plan{nearest_family(schedule)}", field="plan", value=text)
    if schedule != "dense":
        family_steps(schedule, _LARGEST_N)
    return HeadSpec(plan=schedule, hold=hold or "hold")  # type: ignore[arg-type]


def _head_text(spec: HeadSpec) -> str:
    return str(spec.plan) if spec.hold == "hold" else f"{spec.plan}/{spec.hold}"


class _PlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The TOML form: ``name``, ``[default]``, ``[heads.NAME]`` (plan or computed, hold), ``frames``.

    ``cache`` is its text (``"first_block:threshold=0.1"``) or a table of ``name`` and its parameters.
    """

    name: str
    default: HeadSpec | None = None
    heads: dict[str, HeadSpec] = msgspec.field(default_factory=dict)
    frames: str | None = None
    sampler_steps: int | None = None
    cache: str | dict[str, Any] | None = None


def load_plan(path: Path) -> PlanSpec:
    """Read a plan from a TOML file; unknown keys are errors.

    Raises:
        InputError: the file is missing or malformed, naming file and field.
    """
    try:
        content = msgspec.toml.decode(path.read_bytes(), type=_PlanFile)
    except FileNotFoundError as error:
        raise InputError("there is no such plan file", file=path) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path) from error
    except InputError as error:
        raise InputError(error.rule, file=path, field=error.field, value=error.value) from error
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(str(error), file=path) from error
    for head, spec in [("default", content.default), *content.heads.items()]:
        if spec is not None and spec.plan is not None and spec.plan != "dense":
            try:
                family_steps(spec.plan, _LARGEST_N)
            except InputError as error:
                raise InputError(error.rule, file=path, field=head, value=error.value) from error
    try:
        return PlanSpec(
            name=content.name,
            default=content.default,
            heads=content.heads,
            frames=content.frames,
            sampler_steps=content.sampler_steps,
            cache=_cache_of(content.cache),
        )
    except InputError as error:
        raise InputError(error.rule, file=path, field=error.field, value=error.value) from error


def _cache_of(given: str | dict[str, Any] | None) -> str | None:
    """A plan file's cache as text."""
    if given is None or isinstance(given, str):
        return given if given is None else given.removeprefix(PREFIX)
    options = dict(given)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f"wants a name (known: {', '.join(CACHES)})", field="cache.name", value=name)
    parse_cache(name)
    check_parameters(name, options, CACHES[name].parameters)
    return cache_text(name, options)
