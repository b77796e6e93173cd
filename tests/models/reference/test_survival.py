"""A training run survives a full disk, kills at any moment, and states that are cut short or changed."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from leanwam.errors import LeanwamError
from leanwam.models.reference import checkpoint, training
from leanwam.models.reference.training import Run, interrupted_between_updates, train

STATE, SPARE = "state.safetensors", "state.previous.safetensors"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(training.__file__).parents[3])}
SHARED = str(Path(__file__).with_name("conftest.py"))
PRELUDE = """
import importlib.util, os, random, resource, signal, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location('shared', sys.argv[1])
shared = importlib.util.module_from_spec(spec); spec.loader.exec_module(shared)
from leanwam.errors import LeanwamError
from leanwam.models.reference.training import Run, train
out = Path(sys.argv[2])
config, data, _ = shared.prepared('heads', save_every_s=0.0, n_updates=int(sys.argv[3]))
def go(): train(config, data, Run(out, 'c', 'd1', progress=False))
"""


def run(wam, out, *, after=None, **settings):
    config, data, _ = wam.prepared("heads", **{"save_every_s": 0.0, **settings})
    return train(config, data, Run(out, "c", "d1", after_update=after, progress=False))


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def python(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + script, SHARED, *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )


class Stop(Exception):
    pass


def stopped(wam, out, at):
    """A run that ended after update ``at``, with a state and the one before it."""

    def after(done):
        if done == at:
            raise Stop

    with pytest.raises(Stop):
        run(wam, out, after=after)


def cut_short(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file):
    file.write_bytes(b"")


def a_bit_of_the_weights(file):
    data = bytearray(file.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    file.write_bytes(data)


def a_byte_of_the_names(file):
    data = bytearray(file.read_bytes())
    place = data.index(b'"ema/')
    data[place + 1] = ord("E")
    file.write_bytes(data)


def the_counters(file):
    data = file.read_bytes()
    assert data.count(b'"update": 8') == 1
    file.write_bytes(data.replace(b'"update": 8', b'"update": 9'))


def gone(file):
    file.unlink()


@pytest.mark.parametrize(
    "damage", [cut_short, empty, a_bit_of_the_weights, a_byte_of_the_names, the_counters, gone]
)
def test_a_damaged_state_falls_back_on_the_one_before_and_says_so(wam, tmp_path, capsys, damage):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(wam, whole, save_every_s=1e9)
    stopped(wam, cut, 8)
    damage(cut / "training" / STATE)
    capsys.readouterr()
    run(wam, cut)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("leanwam:")]
    assert len(said) == 1
    assert STATE in said[0]
    assert said[0].endswith(
        "going on from the state before it, update 8"
    )  # saved in the loop, and at its end
    assert weights(whole) == weights(cut)


def test_two_damaged_states_are_an_error_that_names_both(wam, tmp_path):
    stopped(wam, tmp_path, 8)
    cut_short(tmp_path / "training" / STATE)
    a_bit_of_the_weights(tmp_path / "training" / SPARE)
    with pytest.raises(LeanwamError, match=rf"(?s){STATE}: .*{SPARE}: is not what was written"):
        run(wam, tmp_path)


@pytest.mark.slow
def test_kills_at_any_moment_change_nothing(wam, tmp_path):
    """SIGKILL at six random moments, while every update is saved; the end has the bytes of an unharmed run.

    One interpreter forks the runs that are killed, so that the moments fall into updates and saves and not
    into imports.
    """
    n = 24
    done = python(
        """
state = out / 'training' / 'state.safetensors'
moments = random.Random(4)
updates = []
for _ in range(6):
    child = os.fork()
    if child == 0:
        go()
        os._exit(0)
    began = state.stat().st_mtime_ns if state.exists() else 0
    while (state.stat().st_mtime_ns if state.exists() else 0) == began:  # it is at work
        time.sleep(0.002)
        assert os.waitpid(child, os.WNOHANG) == (0, 0), 'ended before it was killed'
    time.sleep(moments.uniform(0.0, 0.08))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        break
    updates.append(status)
print(len(updates))
go()
""",
        tmp_path / "cut",
        n,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3
    run(wam, tmp_path / "whole", n_updates=n, save_every_s=1e9)
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")
    manifest = json.loads((tmp_path / "cut" / "manifest.json").read_text())
    assert manifest["n_updates"] == n
    assert not list(tmp_path.rglob("*.tmp"))


class _HalfWritten:
    """A file on a disk that has room for half of what is written."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        return self

    def __exit__(self, *stop):
        self.stream.close()

    def write(self, data):
        self.stream.write(data[: len(data) // 2])
        self.stream.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def disk(monkeypatch):
    """``disk["full"] = True``: every write into a file that is opened from now on ends half-way."""
    state = {"full": False}
    honest = Path.open

    def opened(self, mode="r", *args, **kwargs):
        stream = honest(self, mode, *args, **kwargs)
        return _HalfWritten(stream) if state["full"] and mode in ("wb", "ab") else stream

    monkeypatch.setattr(Path, "open", opened)
    return state


def test_a_full_disk_is_said_and_the_run_goes_on(wam, tmp_path, capsys, disk, monkeypatch):
    monkeypatch.setattr(training, "LOG_EVERY", 2)
    run(wam, tmp_path / "whole", save_every_s=1e9)
    cut = tmp_path / "cut"

    def after(done):
        disk["full"] = 4 <= done < 8

    capsys.readouterr()
    run(wam, cut, after=after)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("leanwam:")]
    saves = [line for line in said if "could not be saved, what was saved before is kept" in line]
    assert len(saves) == 4
    assert all("No space left on device" in line for line in said)
    assert weights(tmp_path / "whole") == weights(cut)
    rows = list(csv.DictReader((cut / "log.csv").open()))
    assert [row["update"] for row in rows] == ["2", "4", "6", "8", "10", "12"]
    assert not list(cut.rglob("*.tmp"))


def test_a_disk_that_stays_full_ends_in_one_line_and_loses_nothing_saved(wam, tmp_path, disk):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(wam, whole, save_every_s=1e9)

    def after(done):
        disk["full"] = done >= 6

    with pytest.raises(
        LeanwamError, match="No space left on device; update 12 could not be saved; run again"
    ):
        run(wam, cut, after=after)
    disk["full"] = False
    assert json.loads((cut / "manifest.json").read_text())["n_updates"] == 6
    seen = []
    run(wam, cut, after=seen.append)
    assert seen[0] == 7
    assert weights(whole) == weights(cut)


def test_a_write_that_the_kernel_refuses_half_way(wam, tmp_path):
    """The real thing in a process of its own: no file may grow beyond 100 kB, a state is larger."""
    run(wam, tmp_path / "whole", n_updates=4, save_every_s=1e9)
    done = python(
        """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def limited(n_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))
limited(100_000)
try:
    go()
except LeanwamError as error:
    print(error)
left = sorted(str(f.relative_to(out)) for f in out.rglob('*.safetensors*'))
limited(resource.RLIM_INFINITY)
print(left)
go()
""",
        tmp_path / "cut",
        4,
    )
    assert done.returncode == 0, done.stderr
    assert "File too large; update 4 could not be saved" in done.stdout
    assert done.stdout.splitlines()[1] == "[]"
    assert done.stderr.count("could not be saved, what was saved before is kept") == 4
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_within_an_update_waits_for_its_end(wam, tmp_path, monkeypatch, number):
    """Ctrl-C between the counting of an update and the optimiser's step: the saved state is a whole one."""
    run(wam, tmp_path / "whole", save_every_s=1e9)
    honest = training.learning_rate

    def at_update_five(config, update):
        if update == 5 and threading.current_thread() is threading.main_thread():
            signal.raise_signal(number)
        return honest(config, update)

    monkeypatch.setattr(training, "learning_rate", at_update_five)
    with pytest.raises(KeyboardInterrupt):
        run(wam, tmp_path / "cut", save_every_s=1e9)
    monkeypatch.setattr(training, "learning_rate", honest)
    assert json.loads((tmp_path / "cut" / "manifest.json").read_text())["n_updates"] == 6
    run(wam, tmp_path / "cut", save_every_s=1e9)
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_outside_the_main_thread_no_signal_is_touched():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def elsewhere():
        with interrupted_between_updates() as give_way:
            give_way()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_failed_write_leaves_the_old_file(tmp_path, disk):
    file = tmp_path / "a"
    checkpoint.write_atomically(file, b"old")
    disk["full"] = True
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write_atomically(file, b"new and longer")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]
