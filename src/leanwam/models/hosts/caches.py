"""A cache of diffusers or cache-dit, named by a plan (``plans.caches``), on one network while a context is open."""

from __future__ import annotations

import dataclasses
import importlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from leanwam.errors import InputError, LeanwamError, require
from leanwam.plans import CACHES, parse_cache
from leanwam.plans.caches import check_parameters


@contextmanager
def enabled_cache(transformer: Any, text: str, current_time: Callable[[], float]) -> Iterator[None]:
    """The named cache on a transformer while open.

    Args:
        transformer: a diffusers model with ``enable_cache``.
        text: see ``plans.parse_cache``.
        current_time: the timestep of the call in flight, for caches that ask for it.

    Raises:
        InputError: the installed diffusers has no such cache or parameter, the model has no caches or has one
            on already, the cache refuses its parameters, or it finds nothing in this model to cache.
    """
    name, options = parse_cache(text)
    kind_name = CACHES[name].config
    if kind_name is None:
        with _cache_dit(transformer, options):
            yield
        return
    kind = getattr(require("diffusers.hooks", "torch"), kind_name, None)
    if kind is None:
        raise InputError(f"the installed diffusers has no {kind_name}", field="cache", value=name)
    if not callable(getattr(transformer, "enable_cache", None)):
        raise InputError(f"{type(transformer).__name__} has no caches", field="cache", value=name)
    if getattr(transformer, "is_cache_enabled", False):
        raise InputError("the model has a cache on already: disable_cache() first", field="cache", value=name)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    check_parameters(name, options, tuple(fields))
    for key, value in options.items():
        if isinstance(fields[key].default, torch.dtype):
            options[key] = _dtype(name, key, value)
    if "current_timestep_callback" in fields:
        options["current_timestep_callback"] = current_time
    try:
        transformer.enable_cache(kind(**options))
    except (TypeError, ValueError) as error:
        raise InputError(" ".join(str(error).split()), field=f"cache:{name}") from error
    try:
        if not _has_hooks(transformer):
            raise InputError(
                f"found nothing to cache in {type(transformer).__name__}: name its modules"
                f" ({', '.join(key for key in fields if key.endswith('identifiers'))})",
                field=f"cache:{name}",
            )
        with _failures_named(name):
            yield
    finally:
        transformer.disable_cache()


@contextmanager
def _failures_named(name: str) -> Iterator[None]:
    """Turn what fails inside the cache's own code (FasterCache without guidance, say) into one clear line."""
    try:
        yield
    except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        where = str(frame.f_globals.get("__name__", ""))
        if not where.startswith(("diffusers.hooks", "cache_dit")):
            raise
        raise LeanwamError(
            f"cache:{name} does not work on this model: {type(error).__name__} in {where}, line {line}: {error}"
        ) from error


def _has_hooks(transformer: Any) -> bool:
    """Whether a cache has put a hook on any part of the network."""
    return any(
        getattr(module, "_diffusers_hook", None) is not None and module._diffusers_hook.hooks
        for module in transformer.modules()
        if module is not transformer
    )


def _dtype(name: str, key: str, value: Any) -> torch.dtype:
    found = getattr(torch, str(value).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise InputError(f"{key} is a dtype like float32", field=f"cache:{name}", value=value)
    return found


@contextmanager
def _cache_dit(transformer: Any, options: dict[str, Any]) -> Iterator[None]:
    """cache-dit's DBCache; options are those of its ``DBCacheConfig`` (``Fn_compute_blocks=1``, …)."""
    try:
        cache_dit = importlib.import_module("cache_dit")
    except ModuleNotFoundError as error:
        raise InputError(
            "cache-dit is not installed: pip install cache-dit", field="cache", value="cache_dit"
        ) from error
    try:
        config = cache_dit.DBCacheConfig(**options)
        cache_dit.enable_cache(transformer, cache_config=config)
    except (TypeError, ValueError) as error:
        raise InputError(" ".join(str(error).split()), field="cache:cache_dit") from error
    try:
        with _failures_named("cache_dit"):
            yield
    finally:
        cache_dit.disable_cache(transformer)
