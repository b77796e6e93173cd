"""The state of a training run on disk: one safetensors file, the one before it kept as a spare.

A state carries the SHA-256 of all it holds. One that is cut short or changed by a single bit is not used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanwam.errors import InputError, LeanwamError
from leanwam.models.reference.checkpoint import read_tensors, write_tensors
from leanwam.models.reference.training_log import say

STATE, SPARE = "state.safetensors", "state.previous.safetensors"
_HEADER = "run_state"


@dataclass
class RunState:
    """Where a run is.

    Attributes:
        update: finished updates.
        n_nan, n_nan_in_a_row: updates skipped because loss or gradient was not finite.
        wall_s, cpu_s: spent so far, over all parts of the run.
        last: the last logged mean loss per stream.
    """

    update: int = 0
    n_nan: int = 0
    n_nan_in_a_row: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    last: dict[str, float] = field(default_factory=dict)


def save_state(
    folder: Path,
    state: RunState,
    parameters: Mapping[str, Tensor],
    ema: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Write the state whole; what was the last one becomes the spare."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        tensors[f"parameter/{name}"] = parameter.detach()
        tensors[f"ema/{name}"] = ema[name]
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"adam.{key}/{name}"] = value
    header = {**asdict(state), "sha256": _digest(tensors, asdict(state))}
    tensors[_HEADER] = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
    fresh = folder / "state.next.safetensors"
    write_tensors(fresh, tensors)
    if (folder / STATE).is_file():
        (folder / STATE).replace(folder / SPARE)
    fresh.replace(folder / STATE)


def load_state(
    folder: Path,
    parameters: Mapping[str, Tensor],
    ema: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
) -> RunState | None:
    """Restore in place from the last whole state, or from the spare, said in one line; None where there is neither.

    Raises:
        LeanwamError: there are states, none of them whole.
    """
    failures: list[str] = []
    for file in (folder / STATE, folder / SPARE):
        if not file.is_file():
            if (folder / SPARE).is_file():
                failures.append(f"{file}: is missing")
            continue
        try:
            state, tensors = _read(file, parameters)
        except InputError as error:
            failures.append(str(error))
            continue
        moments: dict[str, dict[str, Tensor]] = {}
        with torch.no_grad():
            for name, tensor in tensors.items():
                kind, _, parameter = name.partition("/")
                if kind == "parameter":
                    parameters[parameter].copy_(tensor)
                elif kind == "ema":
                    ema[parameter].copy_(tensor)
                else:
                    moments.setdefault(parameter, {})[kind.removeprefix("adam.")] = tensor
        for parameter, values in moments.items():
            optimizer.state[parameters[parameter]] = values
        if failures:
            say(f"{failures[0]}; going on from the state before it, update {state.update}")
        return state
    if failures:
        raise LeanwamError("no training state can be read: " + "; ".join(failures))
    return None


def _read(file: Path, parameters: Mapping[str, Tensor]) -> tuple[RunState, dict[str, Tensor]]:
    """A state, proved whole: its hash, its names and its shapes.

    Raises:
        InputError: it is not.
    """
    tensors = read_tensors(file)
    try:
        header = json.loads(bytes(tensors.pop(_HEADER).numpy().tobytes()))
        digest = header.pop("sha256", None)  # states of earlier versions have none
        state = RunState(**header)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError("is no whole training state", file=file) from error
    if digest is not None and digest != _digest(tensors, asdict(state)):
        raise InputError("is not what was written (its hash differs)", file=file)
    for name, parameter in parameters.items():
        for kind in ("parameter", "ema"):
            found = tensors.get(f"{kind}/{name}")
            if found is None or found.shape != parameter.shape:
                raise InputError("is not a state of this model", file=file, field=name)
    if any(name.partition("/")[2] not in parameters for name in tensors):
        raise InputError("is not a state of this model", file=file)
    return state, tensors


def _digest(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> str:
    """SHA-256 over every tensor's name, form and bytes, in name order, and over the run's counters."""
    hashed = hashlib.sha256(json.dumps(state, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        hashed.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        hashed.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
