"""A trained model on disk: ``config.json`` and ``model.safetensors`` in a folder. No pickle anywhere."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from leanwam.errors import InputError, require
from leanwam.models.reference.codec import PatchCodec
from leanwam.models.reference.config import Config, decode_config
from leanwam.models.reference.model import ReferenceWAM

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def load_reference(name: str | os.PathLike[str] = "heads") -> ReferenceWAM:
    """A trained reference model, ready to ``generate``: float32 on the CPU, in evaluation mode.

    Args:
        name: a shipped checkpoint (``heads``) or the folder of one.

    Raises:
        InputError: no such checkpoint, a broken file, or weights that do not fit the configuration.
    """
    weights_file = _folder(name) / WEIGHTS
    config = load_config(name)
    if not weights_file.is_file():
        raise InputError("the checkpoint lacks this file", file=weights_file)
    model = build_model(config)
    _load_strictly(model, read_tensors(weights_file), weights_file)
    return model.eval().requires_grad_(False)


def load_config(name: str | os.PathLike[str]) -> Config:
    """A checkpoint's configuration alone, without its weights.

    Raises:
        InputError: as ``load_reference``.
    """
    file = _folder(name) / CONFIG
    if not file.is_file():
        raise InputError("the checkpoint lacks this file", file=file)
    return decode_config(file.read_bytes(), file=file)


def load_manifest(name: str | os.PathLike[str]) -> dict[str, Any]:
    """How a checkpoint came to be (``Trainer.manifest``).

    Raises:
        InputError: there is no such checkpoint, no manifest, or it is no JSON object.
    """
    file = _folder(name) / "manifest.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        raise InputError("the checkpoint lacks this file", file=file) from error
    except msgspec.DecodeError as error:
        raise InputError(f"is no JSON object: {error}", file=file) from error


def build_model(config: Config) -> ReferenceWAM:
    """A model with fresh weights, its codec attached where the configuration has one."""
    model = ReferenceWAM(config)
    if config.codec is not None:
        model.codec = PatchCodec(config.codec.patch, config.codec.width)
    return model


def save_reference(folder: Path, config: Config, tensors: dict[str, Tensor]) -> None:
    """Write configuration and weights, each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CONFIG, msgspec.json.format(msgspec.json.encode(config), indent=1) + b"\n")
    write_tensors(folder / WEIGHTS, tensors)


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    save = require("safetensors.torch", "torch").save
    write_atomically(file, save({name: tensor.contiguous() for name, tensor in tensors.items()}))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        InputError: it is no safetensors file (a pickle is refused, not loaded) or it is cut short.
    """
    load = require("safetensors.torch", "torch").load
    data = file.read_bytes()
    try:
        tensors: dict[str, Tensor] = load(data)
    except Exception as error:
        pickled = data[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05")
        why = "is a pickle, which is never loaded" if pickled else f"is no whole safetensors file: {error}"
        raise InputError(why, file=file) from error
    return tensors


def write_atomically(file: Path, data: bytes) -> None:
    """Replace a file so that a kill or a full disk leaves the old or the new one, never half of it."""
    temporary = file.with_name(file.name + ".tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)  # half a file would hold the space that a full disk lacks
        raise


def _folder(name: str | os.PathLike[str]) -> Path:
    shipped = resources.files("leanwam.models.reference").joinpath("checkpoints")
    names = sorted(entry.name for entry in shipped.iterdir() if entry.is_dir()) if shipped.is_dir() else []
    if isinstance(name, str) and name in names:
        return Path(str(shipped.joinpath(name)))
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(
            f"is neither a shipped checkpoint ({', '.join(names) or 'none'}) nor a folder",
            field="checkpoint",
            value=str(name),
        )
    return folder


def _load_strictly(model: ReferenceWAM, tensors: dict[str, Tensor], file: Path) -> None:
    wanted: dict[str, Any] = model.state_dict()
    for name in sorted(set(wanted) | set(tensors)):
        if name not in tensors:
            raise InputError("the weights lack this tensor", file=file, field=name)
        if name not in wanted:
            raise InputError("the configuration has no such tensor", file=file, field=name)
        if tensors[name].shape != wanted[name].shape:
            raise InputError(
                f"must have the shape {list(wanted[name].shape)}",
                file=file,
                field=name,
                value=list(tensors[name].shape),
            )
        if not torch.isfinite(tensors[name]).all():
            raise InputError("holds numbers that are not finite", file=file, field=name)
    model.load_state_dict(tensors)
