"""Small models with random weights, and synthetic demonstrations."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch

from leanwam.models.reference.checkpoint import build_model
from leanwam.models.reference.codec import PatchCodec, fit_codec
from leanwam.models.reference.config import Config, load_preset
from leanwam.models.reference.dataset import Episodes, TrainingData, prepare_config
from leanwam.models.reference.model import Conditions, ReferenceWAM
from leanwam.models.reference.observation import ObservationBatch, task_indices
from leanwam.models.reference.sampling import draw_noise, present_tokens

# Two threads that wait for each other on a busy machine take a hundred times as long as one.
torch.set_num_threads(1)

PRESETS = ("heads", "joint")


def small(preset: str, **training: object) -> Config:
    """A preset with a narrow network and few steps; the same streams, samplers and reading."""
    config = load_preset(preset)
    settings = {"n_updates": 12, "batch_size": 16, "warmup": 4, "save_every_s": 1e9, **training}
    return msgspec.structs.replace(
        config,
        width=32,
        n_layers=2,
        n_heads=2,
        mlp_ratio=2,
        training=msgspec.structs.replace(config.training, **settings),
    )


def episodes(preset: str, n: int = 6, length: int = 24) -> Episodes:
    """Episodes in which the hand drives to the object: learnable, and small."""
    random = np.random.default_rng(0)
    hands, actions, worlds, pixels = [], [], [], []
    for _ in range(n):
        hand, goal = random.uniform(-0.3, 0.3, 3), random.uniform(-0.3, 0.3, 3)
        world = np.zeros((3, 7), np.float32)
        world[0, :3], world[0, 3], world[2, :3] = goal, 1.0, goal
        for _ in range(length):
            action = np.clip(5.0 * (goal - hand), -1.0, 1.0)
            hands.append([*hand, 0.5])
            actions.append([*action, -1.0])
            worlds.append(world)
            image = np.full((2, 64, 64, 3), 40, np.uint8)
            row, column = (np.clip(hand[:2] + 0.5, 0.0, 0.99) * 56).astype(int)
            image[:, row : row + 8, column : column + 8] = 220
            pixels.append(image)
            hand = hand + 0.1 * action
    is_pixels = preset.startswith("joint")
    return Episodes(
        np.arange(n) * length,
        np.full(n, length),
        [("push", "reach")[i % 2] for i in range(n)],
        np.array(hands, np.float32),
        np.array(actions, np.float32),
        None if is_pixels else np.stack(worlds),
        np.stack(pixels) if is_pixels else None,
    )


@functools.cache
def fitted(preset: str) -> tuple[Episodes, PatchCodec | None]:
    """The synthetic demonstrations and the codec fitted on them."""
    demos = episodes(preset)
    config = small(preset)
    return demos, fit_codec(config, demos, seed=0, n_frames=48) if config.codec else None


def prepared(preset: str, **training: object) -> tuple[Config, TrainingData, PatchCodec | None]:
    """Configuration and data of a small run."""
    demos, codec = fitted(preset)
    config = prepare_config(small(preset, **training), demos, codec)
    return config, TrainingData(config, demos, codec), codec


def random_model(preset: str, **changes: object) -> ReferenceWAM:
    """A small model with weights large enough that every part matters."""
    config, _, codec = prepared(preset)
    torch.manual_seed(1)
    model = build_model(msgspec.structs.replace(config, **changes))
    if codec is not None and model.codec is not None:
        model.codec.load_state_dict(codec.state_dict())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("modulation", "modulation.weight", "out.weight")):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval().requires_grad_(False)


def observation(preset: str, batch: int = 3) -> ObservationBatch:
    """A batch of different observations."""
    demos, _ = fitted(preset)
    rows = np.arange(batch) * 7
    return ObservationBatch(
        tuple("push" if i % 2 else "reach" for i in range(batch)),
        demos.proprio[rows],
        None if demos.world is None else demos.world[rows],
        None if demos.pixels is None else demos.pixels[rows],
    )


def conditions(model: ReferenceWAM, given: ObservationBatch) -> tuple[Conditions, dict[str, torch.Tensor]]:
    """The conditions of a call and its noise."""
    made = Conditions(model, task_indices(model.config, given.task), present_tokens(model, given))
    seeds = range(len(given.task))
    return made, {name: draw_noise(name, seeds, s.shape) for name, s in model.config.streams.items()}


def one_step(
    model: ReferenceWAM,
    given: ObservationBatch,
    shift: dict[str, float],
    *,
    times: dict[str, float] | None = None,
    only_row: int | None = None,
) -> dict[str, torch.Tensor]:
    """One step's outputs, with constants added to some streams' samples (of one row, or of all)."""
    made, samples = conditions(model, given)
    for name, value in shift.items():
        rows = slice(None) if only_row is None else only_row
        samples[name] = samples[name].clone()
        samples[name][rows] += value
    batch = len(given.task)
    at = {name: torch.full((batch,), (times or {}).get(name, 0.7)) for name in model.config.streams}
    return model.step(made, samples, at)


@pytest.fixture(params=PRESETS)
def preset(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def wam() -> SimpleNamespace:
    """The functions above, for the tests of this folder."""
    functions = (small, episodes, prepared, random_model, observation, conditions, one_step)
    return SimpleNamespace(**{function.__name__: function for function in functions})
