"""The reference WAM: collect demonstrations, train, gate the predicted frames, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leanwam.cli.output import command_line
from leanwam.cli.reference_frames import frames
from leanwam.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from leanwam.models.reference.dataset import Episodes
    from leanwam.rollouts.table import EpisodeRow


def collect(
    *,
    out: Path,
    episodes: int = 60,
    tasks: str = "all",
    observation: Literal["keypoints", "pixels"] = "keypoints",
    seed: int = 0,
    workers: int = 1,
) -> None:
    """Collect demonstrations of the styled scripted experts; run again after a kill to go on.

    Example: leanwam reference collect --out keypoints.demos.zarr --episodes 60

    Args:
        out: the store, NAME.demos.zarr.
        episodes: successful demonstrations per task.
        tasks: names separated by commas, a family (PnP, articulated), or all.
        observation: keypoints (object and goal poses) or pixels (two views).
        seed: of starts, styles and noise.
        workers: processes; the store is the same whatever their number.
    """
    from leanwam.cli.output import progress_console
    from leanwam.rollouts import collect as collect_demonstrations
    from leanwam.rollouts import select_tasks

    store = collect_demonstrations(
        select_tasks(tasks), episodes, out, seed, observation, n_workers=workers, command=command_line()
    )
    failed = sum(store.meta["n_failed"].values())
    progress_console().print(
        f"{out}: {store.n_episodes} episodes, {len(store.action)} observations; {failed} attempts of the expert failed"
    )


def train(
    *,
    demos: Path,
    out: Path,
    preset: str = "heads",
    tasks: str = "all",
    updates: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    init: str | None = None,
    threads: int = 1,
) -> None:
    """Train a reference WAM on demonstrations; run again after a kill to go on.

    Example: leanwam reference train --demos keypoints.demos.zarr --out runs/heads

    Args:
        demos: a demonstration store (leanwam reference collect).
        out: the run's folder; what it holds at the end is a checkpoint.
        preset: heads, joint, joint-policy, joint-drop-middle, joint-mae25, joint-loss-only, or a preset's .toml file.
        tasks: names of tasks of the store, separated by commas, or all.
        updates: optimiser updates, instead of the preset's.
        batch_size: samples per update, instead of the preset's.
        seed: of weights, batches and noise, instead of the preset's.
        init: begin from the weights, the codec and the normalisation of this checkpoint (a name or a run's folder);
            tasks that it does not know begin untrained.
        threads: CPU threads; another number changes the last digits.
    """
    import msgspec
    import torch

    from leanwam.cli.output import progress_console
    from leanwam.models.reference.checkpoint import load_reference
    from leanwam.models.reference.codec import fit_codec
    from leanwam.models.reference.config import load_preset
    from leanwam.models.reference.dataset import TrainingData, prepare_config
    from leanwam.models.reference.training import Run
    from leanwam.models.reference.training import train as run_training

    config = load_preset(preset)
    changed = {"n_updates": updates, "batch_size": batch_size, "seed": seed}
    for name, value in changed.items():
        if value is not None and value < (0 if name == "seed" else 1):
            raise InputError("is too small", field=f"--{name.removeprefix('n_')}", value=value)
    given = {name: value for name, value in changed.items() if value is not None}
    config = msgspec.structs.replace(config, training=msgspec.structs.replace(config.training, **given))
    torch.set_num_threads(threads)
    episodes, source = load_episodes(demos, tasks)
    episodes, held_out = episodes.split(config.training.held_out_episodes)
    source |= {"n_episodes": len(episodes.task), "n_held_out": len(held_out.task)}
    begun = None if init is None else load_reference(init)
    if begun is not None and begun.config.observation != config.observation:
        raise InputError(
            f"sees {begun.config.observation}, not {config.observation}", field="--init", value=init
        )
    if begun is not None:
        codec = begun.codec
    else:
        codec = None if config.codec is None else fit_codec(config, episodes, seed=config.training.seed)
    config = prepare_config(config, episodes, codec, None if begun is None else begun.config.normalization)
    data = TrainingData(config, episodes, codec)
    run = Run(out, command_line(), episodes.digest(), data_source=source)
    model = run_training(config, data, run, None if codec is None else codec.state_dict(), begun)
    progress_console().print(f"{out}: {config.training.n_updates} updates, {model.n_parameters()} parameters")


def load_episodes(demos: Path, tasks: str = "all") -> tuple[Episodes, dict[str, object]]:
    """The demonstrations of the chosen tasks, and what a manifest says about where they come from."""
    from leanwam.models.reference.dataset import Episodes
    from leanwam.rollouts.demo_store import Demonstrations

    store = Demonstrations.load(demos)
    episodes = Episodes(
        store.start,
        store.length,
        [str(name) for name in store.task],
        store.proprio,
        store.action,
        store.world,
        store.pixels,
    )
    if tasks != "all":
        episodes = episodes.only([name.strip() for name in tasks.split(",")])
    kept = (
        "command",
        "seed",
        "horizon",
        "steps_after_success",
        "n_episodes_per_task",
        "n_failed",
        "versions",
    )
    source: dict[str, object] = {key: store.meta[key] for key in kept if key in store.meta}
    return episodes, {"store": demos.name, "n_episodes": len(episodes.task), **source}


def evaluate(
    *,
    checkpoint: str = "heads",
    out: Path,
    table: Path,
    episodes: int = 50,
    tasks: str = "trained",
    steps: tuple[int, ...] = (50, 10, 4, 1),
    lanes: int = 32,
    threads: int = 1,
    json: bool = False,
) -> None:
    """Closed-loop success of the dense model with several numbers of denoising steps, on paired starts.

    Run again after a kill to go on: finished episodes are in the table.

    Example: leanwam reference evaluate --checkpoint heads --table eval.jsonl --out evaluation.json

    Args:
        checkpoint: a shipped checkpoint or a run's folder.
        out: the summary, a JSON file.
        table: the episode table, NAME.jsonl.
        episodes: start states per task.
        tasks: names separated by commas, a family, or trained (all that the model knows).
        steps: numbers of denoising steps, each an arm of the table.
        lanes: environments that are run side by side, and rows of a batch.
        threads: CPU threads of the model.
        json: print the summary on stdout.
    """
    import torch

    from leanwam.cli.output import console, print_json
    from leanwam.models.reference import load_reference
    from leanwam.models.reference.checkpoint import write_atomically
    from leanwam.models.reference.identity import checkpoint_id
    from leanwam.plans import parse_plan
    from leanwam.rollouts import read_rows, select_tasks
    from leanwam.rollouts.arms import run_plan

    if not steps or len(set(steps)) != len(steps):
        raise InputError("numbers of denoising steps, each once", field="--steps", value=steps)
    if min(threads, lanes, episodes) < 1:
        raise InputError("must be at least 1", field="--threads, --lanes, --episodes")
    torch.set_num_threads(threads)
    model = load_reference(checkpoint)
    chosen = select_tasks(tasks, model.config.tasks)
    arms: dict[str, Any] = {}
    for n_steps in steps:
        arm = f"plain_{n_steps}"
        done = run_plan(model, parse_plan(arm), chosen, table, arm=arm, n_episodes=episodes, n_lanes=lanes)
        arms[arm] = {"n_steps": n_steps, **summarise(done["tasks"]), "n_crashed": done["n_crashed"]}
    rows = [row for row in read_rows(table) if row.arm in arms and row.episode < episodes]
    summary = {
        "command": command_line(),
        "checkpoint": checkpoint_id(model),
        "n_episodes_per_task": episodes,
        "n_executed": sorted({row.n_executed for row in rows}),
        "horizon": sorted({row.horizon for row in rows}),
        "pairs_proved": _pairs_proved(rows),
        "versions": sorted({row.versions for row in rows}),
        "arms": arms,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, _json_bytes(summary))
    if json:
        print_json(summary)
    else:
        console().print(_table(arms))


def summarise(counts: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Success per task, per family (mean over its tasks) and over all tasks, from (successes, episodes).

    A crashed episode is no success.
    """
    from leanwam.rollouts import TASKS

    per_task: dict[str, dict[str, Any]] = {
        task: {
            "family": TASKS[task].family,
            "n_success": good,
            "n_episodes": n,
            "success_rate": good / n if n else None,
        }
        for task, (good, n) in counts.items()
    }
    families = sorted({item["family"] for item in per_task.values()})
    chosen = {name: [item for item in per_task.values() if item["family"] == name] for name in families}
    return {
        "success_rate": _mean(list(per_task.values())),
        "families": {name: _mean(items) for name, items in chosen.items()},
        "tasks": per_task,
    }


def _mean(items: list[dict[str, Any]]) -> float | None:
    rates = [item["success_rate"] for item in items if item["success_rate"] is not None]
    return sum(rates) / len(rates) if rates else None


def _pairs_proved(rows: list[EpisodeRow]) -> bool:
    """Whether all arms began every episode in the same simulator state, by its hash."""
    seen: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        seen.setdefault((row.task, row.episode), set()).add(row.start_state)
    return all(len(states) == 1 for states in seen.values())


def _table(arms: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(title="success, %")
    table.add_column("task")
    table.add_column("family")
    for arm in arms.values():
        table.add_column(f"{arm['n_steps']} steps", justify="right")
    first = next(iter(arms.values()))
    for task, item in first["tasks"].items():
        table.add_row(
            task, item["family"], *(_percent(arm["tasks"][task]["success_rate"]) for arm in arms.values())
        )
    for family in first["families"]:
        table.add_row(f"mean {family}", "", *(_percent(arm["families"][family]) for arm in arms.values()))
    table.add_row("mean", "", *(_percent(arm["success_rate"]) for arm in arms.values()))
    return table


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f}"


def _json_bytes(payload: dict[str, Any]) -> bytes:
    import json

    return json.dumps(payload, indent=1, allow_nan=False).encode() + b"\n"


COMMANDS = {"collect": collect, "train": train, "frames": frames, "evaluate": evaluate}
