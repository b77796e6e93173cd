"""``leanwam reference frames``: do predicted frames beat copying the present one, on unseen demonstrations?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanwam.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from leanwam.models.reference.config import Config
    from leanwam.models.reference.dataset import Episodes


def frames(
    *,
    checkpoint: str,
    demos: Path,
    out: Path,
    rule: str = "10:4",
    frames: str = "trained",
    new_demos: bool = False,
    steps: tuple[int, ...] = (1, 4, 10),
    samples: int = 4,
    pairs: int = 24,
    seed: int = 0,
    threads: int = 1,
    json: bool = False,
) -> int:
    """PSNR of predicted frames against copying the present and against what the codec can express.

    The demonstrations are those that training held out ([training] held_out_episodes). Exit code 1 if the model
    does not beat copy-current at every horizon, by the PSNR of the mean squared error (--rule). A horizon that
    the frame plan leaves out, or that carried no loss in training, is reported and does not gate.

    One sample is a draw from what may happen: even a perfect model's has twice the squared error of its mean. The
    mean of several is the point prediction that a squared error asks for, so it gates; --rule 10:1 asks for more.

    Example: leanwam reference frames --checkpoint runs/joint --demos pixels.demos.zarr --out psnr.json

    Args:
        checkpoint: a run's folder, of a model on pixels.
        demos: the store that it was trained on.
        out: all figures, a JSON file.
        rule: what gates, STEPS:SAMPLES: the mean of so many samples, each in so many video steps.
        frames: a frame plan; by default that of the training (keep_all for every token).
        new_demos: the store is another one than the training's: all of it is unseen.
        steps: numbers of video sampling steps to report.
        samples: samples of every pair; single ones and their mean are reported.
        pairs: frame pairs per task.
        seed: of pairs and noise.
        threads: CPU threads.
        json: print the figures on stdout.
    """
    import sys

    import torch

    from leanwam.cli.output import command_line, console, print_json
    from leanwam.models.reference import load_reference
    from leanwam.models.reference.checkpoint import write_atomically
    from leanwam.models.reference.frame_gate import Rule, gate
    from leanwam.models.reference.identity import checkpoint_id

    wanted = Rule.parse(rule)
    if min(*steps, samples, pairs, threads) < 1:
        raise InputError("must be at least 1", field="--steps, --samples, --pairs, --threads")
    torch.set_num_threads(threads)
    model = load_reference(checkpoint)
    plan = model.config.training.frames if frames == "trained" else frames
    episodes = _unseen(checkpoint, model.config, demos, new_demos)
    with _progress() as advance:
        measured = gate(
            model,
            episodes,
            rule=wanted,
            steps=steps,
            n_samples=samples,
            n_pairs=pairs,
            frames=plan,
            seed=seed,
            advance=advance,
        )
    result = {
        "command": command_line(),
        "checkpoint": checkpoint_id(model),
        "demos": demos.name,
        "unseen": "another store" if new_demos else "held out of the training",
        **measured,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, _bytes(result))
    if json:
        print_json(result)
    else:
        console().print(_table(result))
    print(f"leanwam: {_sentence(result)}", file=sys.stderr)
    return 0 if result["passes"] else 1


def _unseen(checkpoint: str, config: Config, demos: Path, new_demos: bool) -> Episodes:
    """The episodes of the model's tasks that it was not trained on, proved by the digest in its manifest."""
    from leanwam.cli.reference import load_episodes
    from leanwam.models.reference.checkpoint import load_manifest

    episodes, _ = load_episodes(demos, ",".join(config.tasks))
    held_out = config.training.held_out_episodes
    trained_on = load_manifest(checkpoint).get("data", {}).get("digest")
    trained, unseen = episodes.split(held_out)
    is_that_store = trained.digest() == trained_on
    if new_demos:
        if is_that_store:
            raise InputError("is the store of the training: leave out --new-demos", file=demos)
        return episodes
    if not is_that_store:
        raise InputError(
            "is not the store of the training (another digest than in the checkpoint's manifest); --new-demos takes"
            " all of it as unseen",
            file=demos,
        )
    if held_out == 0:
        raise InputError(
            "the checkpoint was trained on every demonstration of this store; give another one with --new-demos",
            field="training.held_out_episodes",
            value=0,
        )
    return unseen


def _sentence(result: dict[str, Any]) -> str:
    """The verdict in one line."""
    gains = ", ".join(
        f"{result['gate']['horizons'][h]['gain_db']:+.2f} dB at t+{h}" for h in result["beats_copy_current"]
    )
    if not gains:
        return "no horizon is computed and trained: nothing can pass the gate"
    verdict = "beats copy-current" if result["passes"] else "does not beat copy-current at every horizon"
    return f"the model {verdict} ({gains}); rule: {result['rule']}"


def _table(result: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(
        title=f"PSNR of the mean error, dB: {result['n_pairs']} frame pairs, {result['n_episodes']} unseen episodes"
    )
    table.add_column("frames", no_wrap=True)
    for title in ("at", "PSNR", "over copying (95 %)", "pair mean"):
        table.add_column(title, justify="right", no_wrap=True)
    rows = [("copy-current", result["copy_current"])]
    for row in result["predictions"]:
        what = row["what"].partition(" (")[0].removesuffix(" samples")
        rows.append((f"{row['video_steps']} steps, {what}", row))
    rows.append(("codec's ceiling", result["codec_ceiling"]))
    for horizon in result["copy_current"]["horizons"]:
        for name, row in rows:
            figures = row["horizons"][horizon]
            low, high = figures["gain_interval_db"]
            gain = "" if name == "copy-current" else f"{figures['gain_db']:+.2f} ({low:+.2f} … {high:+.2f})"
            of_mean, mean = figures["psnr_of_mean_mse_db"], figures["mean_psnr_db"]
            table.add_row(name, f"t+{horizon}", f"{of_mean:.2f}", gain, f"{mean:.2f}")
        table.add_section()
    return table


def _bytes(payload: dict[str, Any]) -> bytes:
    import json

    return json.dumps(payload, indent=1, allow_nan=False).encode() + b"\n"


class _progress:
    """A bar on stderr over network passes."""

    def __enter__(self) -> Any:
        from rich.progress import Progress

        from leanwam.cli.output import progress_console

        self._bar = Progress(console=progress_console(), transient=True)
        self._bar.__enter__()
        row = self._bar.add_task("predicting frames", total=None)
        return lambda done, total: self._bar.update(row, completed=done, total=total)

    def __exit__(self, *stop: Any) -> None:
        self._bar.__exit__(*stop)
