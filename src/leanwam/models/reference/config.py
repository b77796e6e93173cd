"""What a reference model is, as frozen data: streams, who reads whom, samplers, training.

A preset is a TOML file of the package (``presets/``); the configuration of a trained model travels with its
checkpoint as JSON and also holds the tasks and the normalisation that the training data gave it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from leanwam.errors import InputError
from leanwam.plans import TokenLayout, resolve_frames

Alignment = Literal["spread", "early"]


class Sampler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A diffusers scheduler: its class name and its configuration."""

    class_name: str = msgspec.field(name="class")
    config: dict[str, Any]

    @property
    def prediction_type(self) -> str:
        return str(self.config.get("prediction_type", "epsilon"))

    @property
    def is_flow(self) -> bool:
        return self.prediction_type == "flow_prediction"


class Affine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Per dimension: environment units = normalised * scale + offset."""

    scale: tuple[float, ...]
    offset: tuple[float, ...]


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stream of tokens.

    Attributes:
        times: environment steps from now, one per entry (frame, action or proprio); also RoPE's first axis.
        grid: tokens per entry as (views, rows, columns); (1, 1, 1) for action and proprio.
        width: numbers per token.
        n_clean: leading entries that are given (the present) and not denoised.
        reads: streams whose keys and values this one attends to; itself included.
        n_steps: denoising steps by default.
        loss_weight: of the stream's mean squared error.
        residual: denoised entries are differences from the last clean one.
        skip: the expert predicts what the best linear guess of the flow from x_t (``linear_flow``) leaves.
        sampler: the scheduler that steps this stream.
    """

    times: tuple[float, ...]
    grid: tuple[int, int, int]
    width: int
    n_clean: int
    reads: tuple[str, ...]
    n_steps: int
    sampler: Sampler
    loss_weight: float = 1.0
    residual: bool = False
    skip: bool = False

    @property
    def tokens_per_entry(self) -> int:
        return math.prod(self.grid)

    @property
    def n_tokens(self) -> int:
        return len(self.times) * self.tokens_per_entry

    @property
    def n_clean_tokens(self) -> int:
        return self.n_clean * self.tokens_per_entry

    @property
    def n_noisy(self) -> int:
        """Entries that are denoised."""
        return len(self.times) - self.n_clean

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the denoised sample: (entry, *grid without its leading ones, width)."""
        grid = list(self.grid)
        while grid and grid[0] == 1:
            grid.pop(0)
        return (self.n_noisy, *grid, self.width)


class Codec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The frozen patch codec of the pixel observation.

    Attributes:
        patch: edge of a patch in pixels.
        width: numbers per patch.
        residual_clamp: how far a number's residual may be enlarged before it is predicted. 0: every number's
            residual gets unit mean square, however small it is in pixels. c > 0: a number is treated as if its
            residual had at least the share c of the largest one's size in pixels; 1: one scale for all, so that
            the squared error of the latent is that of the pixels.
    """

    patch: int
    width: int
    residual_clamp: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.residual_clamp <= 1.0:
            raise InputError("lies between 0 and 1", field="codec.residual_clamp", value=self.residual_clamp)


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model is trained.

    Attributes:
        share_clean: share of the samples with independent times in which a stream is exactly clean (time 0),
            as it is once an asynchronous sampler has finished it.
        save_every_s: seconds between checkpoints.
        task_weights: how often a task is drawn, relative to 1.
        frames: a frame plan (``drop_middle``): the video tokens that it leaves out are not computed in training.
            A random plan (``mae25``) is drawn anew for every update, the same number of tokens each time.
        loss_frames: a frame plan: the tokens that it leaves out carry no loss, but are computed.
        held_out_episodes: of each task, the last so many demonstrations are not trained on.
        init: the ``checkpoint_id`` of the model whose weights training began from; set by training.
    """

    seed: int
    n_updates: int
    batch_size: int
    learning_rate: float
    warmup: int
    weight_decay: float
    ema_decay: float
    share_clean: float
    save_every_s: float
    task_weights: dict[str, float] = {}
    frames: str | None = None
    loss_frames: str | None = None
    held_out_episodes: int = 0
    init: str | None = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reference model.

    Attributes:
        observation: ``keypoints`` (object and goal poses) or ``pixels`` (two views).
        width, n_layers, n_heads, mlp_ratio: of every expert.
        n_fourier: octaves of the sine and cosine features beside each number of a token.
        alignment: how streams with different numbers of steps share the network's calls, see ``sampling``.
        tasks: names in the order of the task embedding; set by training.
        normalization: per stream; set by training.
    """

    name: str
    observation: Literal["keypoints", "pixels"]
    width: int
    n_layers: int
    n_heads: int
    mlp_ratio: int
    n_fourier: int
    alignment: Alignment
    streams: dict[str, Stream]
    training: Training
    codec: Codec | None = None
    tasks: tuple[str, ...] = ()
    normalization: dict[str, Affine] = {}

    def layout(self) -> TokenLayout:
        """The video's token grid, and how many tokens the other streams have: what a frame plan is drawn on."""
        video = self.streams["video"]
        views, rows, columns = video.grid
        others = {name: stream.n_tokens for name, stream in self.streams.items() if name != "video"}
        return TokenLayout(len(video.times), views, rows, columns, others)

    def __post_init__(self) -> None:
        if set(self.streams) != {"video", "action", "proprio"}:
            raise InputError(
                "the streams are video, action and proprio", field="streams", value=list(self.streams)
            )
        if self.width % self.n_heads or (self.width // self.n_heads) % 8:
            raise InputError(
                "width / n_heads must be a multiple of 8 (RoPE)", field="width", value=self.width
            )
        if (self.codec is None) != (self.observation == "keypoints"):
            raise InputError("pixels need a codec and keypoints have none", field="codec", value=self.codec)
        for name, stream in self.streams.items():
            _check_stream(name, stream, self.streams)
        reading_groups(self.streams)
        if self.training.held_out_episodes < 0:
            raise InputError(
                "must not be negative",
                field="training.held_out_episodes",
                value=self.training.held_out_episodes,
            )
        kept = set(range(self.streams["video"].n_clean_tokens, self.streams["video"].n_tokens))
        for field in ("frames", "loss_frames"):
            text = getattr(self.training, field)
            if text is not None:
                kept &= set(resolve_frames(text, self.layout()).video)
                if not kept and self.streams["video"].loss_weight != 0.0:
                    raise InputError(
                        "leaves no video token to learn; training without the video says streams.video.loss_weight = 0",
                        field=f"training.{field}",
                        value=text,
                    )


def reading_groups(streams: dict[str, Stream]) -> tuple[tuple[str, ...], ...]:
    """Streams that read each other form a group, run jointly; groups in the order in which they are read.

    Raises:
        InputError: streams of a group that do not all read the same; a group of several streams that is
            read by a later one.
    """
    reach = {name: _reachable(name, streams) for name in streams}
    groups: list[tuple[str, ...]] = []
    for name in streams:
        group = tuple(other for other in streams if other in reach[name] and name in reach[other])
        if group not in groups:
            groups.append(group)
    groups.sort(key=lambda group: len(reach[group[0]]))
    for group in groups:
        for name in group:
            if set(streams[name].reads) != reach[group[0]]:
                raise InputError(
                    "streams that read each other read the same streams, and whatever those read",
                    field=f"streams.{name}.reads",
                    value=streams[name].reads,
                )
            outside = set(streams[name].reads) - set(group)
            wide = [g for g in groups if len(g) > 1 and outside & set(g)]
            if wide:
                raise InputError(
                    "only a stream that reads no later one can be read from outside its group",
                    field=f"streams.{name}.reads",
                    value=wide[0],
                )
    return tuple(groups)


def load_preset(name: str) -> Config:
    """The configuration of a preset (``heads``, ``joint``, ``joint-drop-middle``) or of a TOML file.

    A file may say ``extends = "joint"`` (a preset, or a file beside it): it then holds only what differs.
    """
    path = Path(name)
    if path.suffix != ".toml":
        return decode_table(_read_table(name), file=f"{name}.toml")
    return decode_table(_read_table(name), file=path)


def _read_table(name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """A preset's or a file's TOML table, whatever it extends filled in."""
    if name in seen:
        raise InputError("extends itself", field="extends", value=" → ".join((*seen, name)))
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise InputError("there is no such preset file", file=path)
        data = path.read_bytes()
    else:
        known = presets()
        if name not in known:
            raise InputError(f"unknown preset; known: {', '.join(known)}", field="preset", value=name)
        data = resources.files("leanwam.models.reference").joinpath("presets", f"{name}.toml").read_bytes()
    try:
        table: dict[str, Any] = msgspec.toml.decode(data)
    except msgspec.DecodeError as error:
        raise InputError(f"is no model configuration: {error}", file=name) from error
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise InputError("names a preset or a .toml file", file=name, field="extends", value=base)
    if base.endswith(".toml"):
        base = str(path.parent / base)
    return _merged(_read_table(base, (*seen, name)), table)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``base`` with the changes in place of its values, tables entry by entry."""
    both = {
        key: _merged(base[key], value)
        for key, value in changes.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return {**base, **changes, **both}


def presets() -> list[str]:
    """Names of the presets in the package."""
    folder = resources.files("leanwam.models.reference").joinpath("presets")
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def decode_config(data: bytes, *, file: object) -> Config:
    """Decode JSON and check; unknown keys and wrong types are ``InputError`` that names the place."""
    with _named(file):
        return msgspec.json.decode(data, type=Config)


def decode_table(table: dict[str, Any], *, file: object) -> Config:
    """The configuration that a TOML table says; errors as in ``decode_config``."""
    with _named(file):
        return msgspec.convert(table, type=Config)


@contextmanager
def _named(file: object) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(error.rule, file=file, field=error.field, value=error.value) from error
    except msgspec.DecodeError as error:
        raise InputError(f"is no model configuration: {error}", file=file) from error


#: Fields that came later. At their default they are no part of what a model's identity is taken over, so
#: that the identity of earlier checkpoints, which preregistrations name, stays what it was.
_LATER: dict[str, dict[str, Any]] = {
    "codec": {"residual_clamp": 0.0},
    "training": {"frames": None, "loss_frames": None, "held_out_episodes": 0, "init": None},
    "streams": {"skip": False},
}


def identity_bytes(config: Config) -> bytes:
    """The configuration as the bytes that ``checkpoint_id`` is taken over."""
    table = msgspec.to_builtins(config)
    for part, defaults in _LATER.items():
        places = table["streams"].values() if part == "streams" else [table[part] or {}]
        for place in places:
            for field, default in defaults.items():
                if place.get(field, default) == default:
                    place.pop(field, None)
    return msgspec.json.encode(table, order="sorted")


def _check_stream(name: str, stream: Stream, streams: dict[str, Stream]) -> None:
    where = f"streams.{name}"
    unknown = [other for other in stream.reads if other not in streams]
    if unknown or name not in stream.reads:
        raise InputError("reads itself and other known streams", field=f"{where}.reads", value=stream.reads)
    if not 0 <= stream.n_clean < len(stream.times):
        raise InputError(
            "leaves at least one entry to denoise", field=f"{where}.n_clean", value=stream.n_clean
        )
    if stream.n_steps < 1 or stream.width < 1 or min(stream.grid) < 1:
        raise InputError("n_steps, width and grid are at least 1", field=where)
    if stream.residual and stream.n_clean == 0:
        raise InputError("a residual needs a clean entry", field=f"{where}.residual")


def _reachable(name: str, streams: dict[str, Stream]) -> set[str]:
    found: set[str] = {name}
    todo = [name]
    while todo:
        for other in streams[todo.pop()].reads:
            if other not in found:
                found.add(other)
                todo.append(other)
    return found
