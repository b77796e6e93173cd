"""Is it really faster? Plans timed against the untouched model, beside what operation counts promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leanwam.cli.output import console, print_json, progress_console
from leanwam.errors import InputError


def forward(
    *,
    plans: str = "frames=drop_middle",
    batch: str = "1,4,8",
    model: str = "random:joint",
    device: str = "cpu",
    backends: str = "eager",
    rounds: int = 20,
    threads: int = 1,
    out: Path | None = None,
    card: Path | None = None,
    json: bool = False,
) -> None:
    """Time one evaluation of the network under frame plans, whole against thinned, in interleaved rounds.

    Example: leanwam bench forward --plans frames=drop_middle --batch 1,4,8

    Args:
        plans: frame plans (frames=drop_middle;frames=mae25:seed=0).
        batch: batch sizes.
        model: a checkpoint, random:PRESET, or world and world:reduced (X-WAM's size and layout).
        device: cpu or cuda.
        backends: eager, compile and, on cuda, graph and compile+graph.
        rounds: timed rounds; in each every arm runs once, in random order.
        threads: CPU threads.
        out: write the whole result here (JSON), raw samples included.
        card: write the rows here as leanwam judge run --bench reads them.
        json: print the whole result as one JSON object on stdout.
    """
    from leanwam.bench import worldshape
    from leanwam.bench.forward import compare, compare_reference, frame_plans
    from leanwam.bench.subjects import describe, load_subject

    setting = _Setting("forward", batch, backends, device, rounds, threads)
    specs = frame_plans(_plans(plans))
    runs: list[Callable[[Any], dict[str, Any]]] = []
    if model.split(":")[0] == "world":
        import torch

        shape = {"world": worldshape.Shape(), "world:reduced": worldshape.REDUCED}.get(model)
        if shape is None:
            raise InputError("is world or world:reduced", field="--model", value=model)
        kind = torch.bfloat16 if device == "cuda" else torch.float32
        world = worldshape.build(shape, torch.device(device), kind)
        about: dict[str, Any] = {"checkpoint": model, "dtype": str(kind).removeprefix("torch.")}
        frames = [spec.frames or "" for spec in specs]
        for size, backend in setting.pairs():
            runs.append(
                lambda options, size=size, backend=backend: compare(  # type: ignore[misc]
                    worldshape.subjects(world, frames, size),
                    list(world.layers),
                    torch.device(device),
                    options,
                    batch=size,
                    backend=backend,
                    machine=setting.machine(kind),
                )
            )
    else:
        subject = load_subject(model, device)
        about = describe(subject, model)
        for size, backend in setting.pairs():
            runs.append(
                lambda options, size=size, backend=backend: compare_reference(  # type: ignore[misc]
                    subject, specs, size, options, backend=backend, machine=setting.machine()
                )
            )
    _finish(setting, about, runs, out=out, card=card, json=json)


def generate(
    *,
    plans: str = "dense;sparse_10;video=prefix:5;plain_10",
    batch: str | None = None,
    model: str = "random:heads",
    device: str = "cpu",
    backends: str = "eager",
    until: str | None = None,
    caches: bool = False,
    rounds: int = 20,
    threads: int = 1,
    out: Path | None = None,
    card: Path | None = None,
    json: bool = False,
) -> None:
    """Time whole sampling calls under plans against the untouched model, in interleaved rounds.

    Example: leanwam bench generate --plans "sparse_10;video=prefix:5" --until action --caches

    Args:
        plans: plans, or .toml plan files, separated by semicolons.
        batch: batch sizes; by default 1,4,8, for a host model 1.
        model: a checkpoint, random:PRESET, or host:MODULE:FACTORY (or host:FILE.py:FACTORY), a function of
            yours that returns (model, run) for a model that leanwam.host knows: see docs/hosts. Caches are
            plans there: cache:first_block:threshold=0.1.
        device: cpu or cuda.
        backends: eager, compile.
        until: streams that are asked for, e.g. action: every arm stops when they are done.
        caches: each plan, and the untouched model, also with the lossless caches.
        rounds: timed rounds; in each every arm runs once, in random order.
        threads: CPU threads.
        out: write the whole result here (JSON), raw samples included.
        card: write the rows here as leanwam judge run --bench reads them.
        json: print the whole result as one JSON object on stdout.
    """
    from dataclasses import replace

    from leanwam.bench.generate import compare
    from leanwam.bench.subjects import describe, load_subject
    from leanwam.plans import refuse_cache
    from leanwam.rollouts.policy import NO_CACHES

    if model.startswith("host:"):
        if until is not None or caches:
            raise InputError("concern the reference model, not a host", field="--until, --caches")
        _generate_host(plans, batch or "1", model, device, backends, rounds, threads, out, card, json)
        return
    setting = _Setting("generate", batch or "1,4,8", backends, device, rounds, threads)
    specs = _plans(plans)
    for spec in specs:
        refuse_cache(spec, NO_CACHES)
    subject = load_subject(model, device)
    wanted = _streams(until, list(subject.config.streams))
    runs: list[Callable[[Any], dict[str, Any]]] = [
        lambda options, size=size, backend=backend: compare(  # type: ignore[misc]
            subject,
            specs,
            size,
            replace(options, until=wanted, caches=caches),
            backend=backend,
            machine=setting.machine(),
        )
        for size, backend in setting.pairs()
    ]
    about = {**describe(subject, model), "until": None if wanted is None else list(wanted)}
    _finish(setting, about, runs, out=out, card=card, json=json)


def _generate_host(
    plans: str,
    batch: str,
    model: str,
    device: str,
    backends: str,
    rounds: int,
    threads: int,
    out: Path | None,
    card: Path | None,
    json: bool,
) -> None:
    from leanwam.bench.hosts import compare_host, describe, load_host

    setting = _Setting("generate", batch, backends, device, rounds, threads)
    if setting.backends != ("eager",):
        raise InputError("a host runs as its factory built it: eager", field="--backends", value=backends)
    specs = _plans(plans)
    subjects = {size: load_host(model, batch=size, device=device) for size in setting.sizes}
    runs: list[Callable[[Any], dict[str, Any]]] = [
        lambda options, size=size: compare_host(  # type: ignore[misc]
            subjects[size], specs, size, options, machine=setting.machine()
        )
        for size in setting.sizes
    ]
    _finish(setting, describe(subjects[setting.sizes[0]]), runs, out=out, card=card, json=json)


def train(
    *,
    plans: str = "frames=drop_middle",
    batch: str = "8,32",
    preset: str = "joint",
    rounds: int = 10,
    threads: int = 1,
    out: Path | None = None,
    card: Path | None = None,
    json: bool = False,
) -> None:
    """Time whole training updates under frame plans, and where an update's time goes.

    Example: leanwam bench train --preset joint --plans frames=drop_middle --batch 8

    Args:
        plans: frame plans (frames=drop_middle;frames=mae25:seed=0).
        batch: batch sizes.
        preset: heads, joint, or a .toml file.
        rounds: timed rounds; in each every arm updates once, in random order.
        threads: CPU threads.
        out: write the whole result here (JSON), raw samples included.
        card: write the rows here as leanwam judge run --bench reads them.
        json: print the whole result as one JSON object on stdout.
    """
    from leanwam.bench.forward import frame_plans
    from leanwam.bench.train import compare
    from leanwam.models.reference import load_preset

    setting = _Setting("train", batch, "eager", "cpu", rounds, threads)
    specs = frame_plans(_plans(plans))
    config = load_preset(preset)
    runs: list[Callable[[Any], dict[str, Any]]] = [
        lambda options, size=size: compare(config, specs, size, options, machine=setting.machine())  # type: ignore[misc]
        for size, _ in setting.pairs()
    ]
    _finish(setting, {"preset": config.name}, runs, out=out, card=card, json=json)


class _Setting:
    """The options that the three commands share, checked, and the machine's rates, measured once."""

    def __init__(
        self, target: str, batch: str, backends: str, device: str, rounds: int, threads: int
    ) -> None:
        import torch

        from leanwam.bench.backends import check_backends

        self.target, self.device, self.rounds = target, device, rounds
        sizes = batch.split(",")
        if not all(size.strip().isdigit() and int(size) > 0 for size in sizes):
            raise InputError("wants batch sizes like 1,4,8", field="--batch", value=batch)
        self.sizes = [int(size) for size in sizes]
        if rounds < 1 or threads < 1:
            raise InputError("must be at least 1", field="--rounds, --threads", value=(rounds, threads))
        if device not in ("cpu", "cuda"):
            raise InputError("is cpu or cuda", field="--device", value=device)
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("there is no CUDA device here", field="--device", value=device)
        self.backends = check_backends(backends.split(","), device)
        torch.set_num_threads(threads)
        self._machines: dict[Any, Any] = {}

    def pairs(self) -> list[tuple[int, str]]:
        """Every batch size on every backend."""
        return [(size, backend) for backend in self.backends for size in self.sizes]

    def machine(self, dtype: Any = None) -> Any:
        """What this machine does at best, see ``bench.bounds``."""
        import torch

        from leanwam.bench.bounds import measure_machine

        if dtype not in self._machines:
            self._machines[dtype] = measure_machine(self.device, dtype or torch.float32)
        return self._machines[dtype]

    def machines(self) -> list[dict[str, Any]]:
        from dataclasses import asdict

        return [asdict(machine) for machine in self._machines.values()]


def _finish(
    setting: _Setting,
    about: dict[str, Any],
    runs: list[Callable[[Any], dict[str, Any]]],
    *,
    out: Path | None,
    card: Path | None,
    json: bool,
) -> None:
    from leanwam.bench.environment import environment
    from leanwam.bench.generate import Options
    from leanwam.bench.rows import FORMAT, bounds_lines, card_rows, disturbance_lines, table

    n_warmup = 2
    result: dict[str, Any] = {"format": FORMAT, "target": setting.target, "model": about}
    merged: dict[str, Any] = {"rows": [], "parts": {}, "bounds": {}, "samples": {}}
    with _bar(len(runs) * (setting.rounds + n_warmup)) as advance:
        for run in runs:
            found = run(Options(n_rounds=setting.rounds, n_warmup=n_warmup, progress=advance))
            merged["rows"] += found["rows"]
            for key in ("parts", "bounds", "samples"):
                merged[key] |= found[key]
    result["environment"] = environment(setting.device)
    result["machine"] = setting.machines()
    result["alarms"] = [f"{item['name']}: {item['alarm']}" for item in merged["rows"] if item["alarm"]]
    result["contended"] = any(item["contention"]["contended"] for item in merged["samples"].values())
    result |= merged
    if out is not None:
        _write(out, result)
    if card is not None:
        _write(card, card_rows(merged["rows"]))
    if json:
        print_json(result)
        return
    text = console()
    lines = table(merged["rows"]) + bounds_lines(merged["bounds"]) + _part_lines(merged["parts"])
    for line in lines + disturbance_lines(merged["samples"]):
        text.print(line, markup=False)


def _part_lines(parts: dict[str, Any]) -> list[str]:
    lines = []
    for name, shares in parts.items():
        shown = {part: value["share"] if isinstance(value, dict) else value for part, value in shares.items()}
        told = ", ".join(
            f"{part} {share:.1%}" for part, share in sorted(shown.items(), key=_by_share) if share is not None
        )
        lines.append(f"time of {name}: {told}")
    return lines


def _by_share(item: tuple[str, float | None]) -> float:
    return -(item[1] or 0.0)


def _write(file: Path, content: Any) -> None:
    import json as encoder

    text = encoder.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=file) from error


def _plans(text: str) -> list[Any]:
    from leanwam.plans import parse_plans

    return parse_plans(text)


def _streams(text: str | None, known: list[str]) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(text.split(","))
    for name in names:
        if name not in known:
            raise InputError(f"no such stream (there is {', '.join(known)})", field="--until", value=name)
    return names


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import Progress

    with Progress(console=progress_console(), transient=True) as bar:
        row = bar.add_task("timing", total=total)
        yield lambda n: bar.advance(row, n)


COMMANDS = {"forward": forward, "generate": generate, "train": train}
