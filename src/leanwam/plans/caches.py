"""Caches that others built, named in a plan: ``cache:first_block:threshold=0.1``.

Such a cache decides while the model runs what it leaves out, from what it sees. So it has no stand-in matrix
and no replay: it runs on a host model (``leanwam.host``), where a bench and a judge hold it beside our plans.
Names and parameters are those of diffusers 0.42; whether the installed one has them is asked when it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from leanwam.errors import InputError

if TYPE_CHECKING:
    from leanwam.plans.plan import Plan, PlanSpec

PREFIX = "cache:"

_CALLS = "it counts the network's calls as steps"


@dataclass(frozen=True)
class Cache:
    """One cache that a plan can name.

    Attributes:
        config: its config class in ``diffusers.hooks``; None: another package's.
        parameters: what a plan's text can set; None: only the other package knows.
        meaning: one line of help.
        not_with_steps: why it cannot be combined with a head plan, which leaves calls out; None: it can.
    """

    config: str | None
    parameters: tuple[str, ...] | None
    meaning: str
    not_with_steps: str | None


#: Name in a plan -> the cache.
CACHES = {
    "first_block": Cache(
        "FirstBlockCacheConfig",
        ("threshold",),
        "the other blocks are left out while the first one's residual changes little",
        None,
    ),
    "taylorseer": Cache(
        "TaylorSeerCacheConfig",
        (
            "cache_interval", "disable_cache_before_step", "disable_cache_after_step", "max_order",
            "taylor_factors_dtype", "skip_predict_identifiers", "cache_identifiers", "use_lite_mode",
        ),
        "modules run every cache_interval-th step and are extrapolated between",
        _CALLS,
    ),
    "magcache": Cache(
        "MagCacheConfig",
        (
            "threshold", "max_skip_steps", "retention_ratio", "num_inference_steps", "mag_ratios", "calibrate",
        ),
        "all blocks are left out while a magnitude law, calibrated on the model, allows it",
        _CALLS,
    ),
    "pab": Cache(
        "PyramidAttentionBroadcastConfig",
        (
            "spatial_attention_block_skip_range", "temporal_attention_block_skip_range",
            "cross_attention_block_skip_range", "spatial_attention_timestep_skip_range",
            "temporal_attention_timestep_skip_range", "cross_attention_timestep_skip_range",
            "spatial_attention_block_identifiers", "temporal_attention_block_identifiers",
            "cross_attention_block_identifiers",
        ),
        "pyramid attention broadcast: attentions run every K-th step of a range",
        _CALLS,
    ),
    "fastercache": Cache(
        "FasterCacheConfig",
        (
            "spatial_attention_block_skip_range", "temporal_attention_block_skip_range",
            "spatial_attention_timestep_skip_range", "temporal_attention_timestep_skip_range",
            "low_frequency_weight_update_timestep_range", "high_frequency_weight_update_timestep_range",
            "alpha_low_frequency", "alpha_high_frequency", "unconditional_batch_skip_range",
            "unconditional_batch_timestep_skip_range", "spatial_attention_block_identifiers",
            "temporal_attention_block_identifiers", "tensor_format", "is_guidance_distilled",
        ),
        "attentions are extrapolated, and the unconditional half of a guidance batch reused",
        _CALLS,
    ),
    "seacache": Cache(
        "SeaCacheConfig",
        (
            "threshold", "residual_order", "retention_steps", "cache_end_steps", "max_consecutive_cached",
            "power_exp",
        ),
        "all blocks are left out while the filtered latents change little",
        "it runs in full after every step that is left out",
    ),
    "cache_dit": Cache(None, None, "DBCache of the package cache-dit, where that is installed", _CALLS),
}  # fmt: skip


def parse_cache(text: str) -> tuple[str, dict[str, Any]]:
    """``first_block:threshold=0.1`` (with or without ``cache:``) -> name and parameters.

    A value is read as Python writes it (0.1, [1.0, 0.99], 'a text'), or else as text.

    Raises:
        InputError: no such cache or parameter (the nearest known is named), or no ``key=value``.
    """
    name, *items = split_outside(text.removeprefix(PREFIX), ":")
    if name not in CACHES:
        raise InputError(f"no such cache{_nearest(name, CACHES)}", field="cache", value=name)
    options: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key.isidentifier() or not value:
            raise InputError("wants parameters like threshold=0.1", field=f"cache:{name}", value=item)
        if key in options:
            raise InputError("the parameter is named twice", field=f"cache:{name}", value=key)
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
    check_parameters(name, options, CACHES[name].parameters)
    return name, options


def check_parameters(name: str, options: Mapping[str, Any], known: tuple[str, ...] | None) -> None:
    """Refuse a parameter that is not known (None: nobody knows here), naming the nearest."""
    for key in options:
        if known is not None and key not in known:
            raise InputError(
                f"{name} has no such parameter{_nearest(key, known)}", field=f"cache:{name}", value=key
            )


def cache_text(name: str, options: Mapping[str, Any]) -> str:
    """The text that ``parse_cache`` reads: the table form of a plan file, written in one line."""
    return ":".join([name, *(f"{key}={value!r}" for key, value in options.items())])


def refuse_cache(plan: Plan | PlanSpec, where: str) -> None:
    """For whatever cannot run another's cache.

    Args:
        where: who refuses and why, in words.

    Raises:
        InputError: the plan names one.
    """
    if plan.cache is not None:
        raise InputError(
            f"{where}; a cache runs on a host model: leanwam.host(model).execute(…), "
            "leanwam bench generate --model host:…",
            field="plan",
            value=plan.name,
        )


def split_outside(text: str, separator: str) -> list[str]:
    """Split where the separator stands outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == separator and depth == 0:
            parts.append("")
            continue
        parts[-1] += sign
    return parts


def _nearest(name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(known)})"
