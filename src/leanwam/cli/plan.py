"""List the plan families, or show what a plan computes, holds and really costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from leanwam.cli.output import console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from leanwam.plans import TokenLayout


def list_families(*, json: bool = False) -> None:
    """List the plan families and the ten schedules of the sparse-head report.

    Example: leanwam plan list

    Args:
        json: print one JSON object on stdout.
    """
    from leanwam.plans import CACHES, FAMILIES, FRAME_FAMILIES, HOLDS, SEED_PLANS

    if json:
        print_json(
            {
                "families": FAMILIES,
                "frames": FRAME_FAMILIES,
                "seed_plans": list(SEED_PLANS),
                "holds": list(HOLDS),
                "caches": {name: cache.meaning for name, cache in CACHES.items()},
            }
        )
        return
    out = console()
    for pattern, meaning in FAMILIES.items():
        out.print(f"  {pattern:<14} {meaning}", markup=False)
    out.print("frame plans, as frames=…:")
    for pattern, meaning in FRAME_FAMILIES.items():
        out.print(f"  {pattern:<18} {meaning}", markup=False)
    out.print(f"holds, after a slash (sparse_10/linear): {', '.join(HOLDS)}", markup=False)
    out.print("caches of others, as cache:NAME:key=value (on host models):")
    for name, cache in CACHES.items():
        out.print(f"  {name:<18} {cache.meaning}", markup=False)
    out.print(f"the report's ten: {', '.join(SEED_PLANS)}", markup=False)


def show(
    plan: Annotated[str, tyro.conf.Positional],
    /,
    *,
    steps: int,
    heads: str = "action,proprio",
    layout: str = "3,3,8,10",
    json: bool = False,
) -> None:
    """Show a plan's computed steps, its holds and its real cost (a forced step 0 included).

    Example: leanwam plan show tail_only_4 --steps 50

    Args:
        plan: a plan's text (sparse_10/linear, action=sparse_10,video=dense) or a .toml file.
        steps: number of denoising steps of the sampler.
        heads: the model's heads, separated by commas.
        layout: the video token grid t,v,h,w on which a frame plan is drawn (default: X-WAM's on RoboCasa).
        json: print one JSON object on stdout.
    """
    from leanwam.plans import parse_plan, resolve_frames

    resolved = parse_plan(plan)
    names = list(dict.fromkeys([*heads.split(","), *resolved.heads]))
    result = resolved.resolve(steps, names)
    frames = resolve_frames(result.frames, _layout(layout)) if result.frames else None
    if json:
        print_json(result.to_json())
        return
    out = console()
    out.print(
        f"{result.name}: {steps} steps" + (f", frames={result.frames}" if result.frames else ""), markup=False
    )
    for name, head in result.heads.items():
        executed = set(head.executed)
        strip = "".join("█" if i in executed else "·" for i in range(head.n_steps))
        forced = f" + step 0, forced = {len(head.executed)}" if head.forced_first_step else ""
        out.print(f"  {name:<8} {strip}", markup=False)
        out.print(
            f"  {'':<8} computes {len(head.computed)} of {head.n_steps}{forced}; hold: {head.hold}",
            markup=False,
        )
    if result.cache is not None:
        _print_cache(out, result.cache)
    if frames is not None:
        out.print(frames.picture(), markup=False)


def _print_cache(out: Console, text: str) -> None:
    from leanwam.plans import CACHES, parse_cache

    name, options = parse_cache(text)
    owner = CACHES[name].config or "the package cache-dit"
    out.print(f"  cache    {name}: {CACHES[name].meaning} ({owner})", markup=False)
    for key, value in options.items():
        out.print(f"  {'':<8} {key} = {value!r}", markup=False)
    out.print(
        f"  {'':<8} decides while a host model runs; what it leaves out is counted there, not known here",
        markup=False,
    )


def _layout(text: str) -> TokenLayout:
    from leanwam.errors import InputError
    from leanwam.plans import TokenLayout

    numbers = text.split(",")
    if len(numbers) != 4 or not all(number.strip().isdigit() for number in numbers):
        raise InputError("wants four numbers t,v,h,w", field="--layout", value=text)
    t, v, h, w = (int(number) for number in numbers)
    return TokenLayout(t, v, h, w)


COMMANDS = {"list": list_families, "show": show}
