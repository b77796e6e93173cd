"""Dense calls of the reference WAM, made along closed-loop episodes, into a trace."""

from __future__ import annotations

from pathlib import Path

from leanwam.cli.output import console, print_json, progress_console
from leanwam.errors import InputError


def command(
    *,
    out: Path,
    tasks: str = "trained",
    calls: int = 56,
    steps: int = 50,
    heads: str = "action,proprio",
    checkpoint: str = "heads",
    threads: int = 1,
    ray: tuple[str, ...] | None = None,
    workers: int | None = None,
    json: bool = False,
) -> None:
    """Record dense calls of the reference WAM along its own episodes; run again after a kill to go on.

    Example: leanwam record --out calls.trace.zarr --calls 56

    Args:
        out: the store, NAME.trace.zarr.
        tasks: names separated by commas, a family (PnP, articulated), or trained for all the model knows.
        calls: calls in all, at most 4 of an episode, the tasks taking turns.
        steps: denoising steps of every stream.
        heads: the heads to record, separated by commas (video too if wanted).
        checkpoint: a shipped checkpoint's name or a run's folder.
        threads: CPU threads of the model.
        ray: make the calls on Ray: --ray starts one here, --ray ADDRESS (or auto) connects to one. The trace is
            the one that is recorded without it.
        workers: processes that make calls on Ray; by default one for each CPU.
        json: print one JSON object on stdout.
    """
    from rich.progress import Progress

    from leanwam.models.reference import load_reference
    from leanwam.rollouts.recorded import record_calls
    from leanwam.rollouts.tasks import select_tasks

    if calls < 1 or threads < 1:
        raise InputError("must be at least 1", field="--calls, --threads", value=(calls, threads))
    if (ray is None and workers is not None) or (workers is not None and workers < 1):
        raise InputError("is at least 1 and wants --ray", field="--workers", value=workers)
    if ray is not None and len(ray) > 1:
        raise InputError("names one address", field="--ray", value=" ".join(ray))
    import torch

    torch.set_num_threads(threads)
    model = load_reference(checkpoint)
    chosen = select_tasks(tasks, model.config.tasks)
    model.set_steps(steps)
    with Progress(console=progress_console(), transient=True) as bar:
        row = bar.add_task("recording dense calls", total=calls)

        def advance(n: int) -> None:
            bar.advance(row, n)

        if ray is None:
            summary = record_calls(model, chosen, calls, out, heads.split(","), progress=advance)
        else:
            from leanwam.rollouts.cluster import ray_session
            from leanwam.rollouts.cluster.recording import record_calls_on_ray

            with ray_session(ray[0] if ray else None) as connected:
                summary = record_calls_on_ray(
                    connected,
                    model,
                    checkpoint,
                    chosen,
                    calls,
                    out,
                    heads.split(","),
                    threads=threads,
                    n_workers=workers,
                    progress=advance,
                )
    if json:
        print_json(summary)
        return
    console().print(
        f"{out}: {summary['n_calls']} calls of {summary['n_tasks']} tasks, {steps} steps, heads {heads}; "
        f"{summary['n_recorded_now']} recorded now, {summary['ms_per_call']:.0f} ms per call"
        if summary["ms_per_call"] is not None
        else f"{out}: all {summary['n_calls']} calls were there already",
        markup=False,
    )
