"""A connection to Ray: one that is running, or one started here and stopped again.

Nothing home-made: Ray schedules, restarts policy replicas and moves arrays. On SLURM the user's script starts
Ray (``examples/slurm``) and this connects to it. Ray passes Python objects between its processes as pickles;
they come from this program's own processes alone, never from a file.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from leanwam.errors import InputError, LeanwamError, require

#: Object store of a Ray started here: requests and chunks are kilobytes, pixels some megabytes.
_STORE_BYTES = 200 * 2**20


@contextmanager
def ray_session(address: str | None = None, *, n_cpus: int | None = None) -> Iterator[Any]:
    """The ``ray`` module, connected.

    Args:
        address: of a running Ray (``auto``, ``HOST:PORT``); None starts one on this machine and stops it at the
            end. A connection that is there already is used and left as it is.
        n_cpus: logical CPUs of a Ray started here; by default those this process may use.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: no Ray answers at the address.
        LeanwamError: Ray could not be started.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        _send_token()
    ray = require("ray", "ray")
    if ray.is_initialized():
        if address is not None and address not in ("auto", ray.get_runtime_context().gcs_address):
            raise InputError("this process is connected to another Ray", field="--ray", value=address)
        with redirect_stdout(sys.stderr):
            yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": "error"}
    main = threading.current_thread() is threading.main_thread()
    on_sigterm = signal.getsignal(signal.SIGTERM) if main else None
    if address is not None:
        try:
            ray.init(address=address, namespace="leanwam", **quiet)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            hint = "; if it wants a token: RAY_AUTH_TOKEN, or RAY_AUTH_MODE=disabled on both sides"
            raise InputError(f"no Ray answers there: {first}{hint}", field="--ray", value=address) from error
    else:
        _start(ray, n_cpus or len(os.sched_getaffinity(0)), quiet)
    if callable(on_sigterm):
        signal.signal(signal.SIGTERM, on_sigterm)  # ray.init puts its own in place, which ends the process
    try:
        # Ray's threads print warnings to stdout, which belongs to the commands' one JSON object
        with redirect_stdout(sys.stderr):
            yield ray
    finally:
        ray.shutdown()


def _send_token() -> None:
    """Make Ray send its token to a cluster named by HOST:PORT, where there is one and nobody decided otherwise.

    ``ray start`` of Ray 2.60 asks for the token in ``~/.ray/auth_token``; a client sends it to ``auto`` by itself,
    to an address only if ``RAY_AUTH_MODE`` says so before Ray is imported.
    """
    known = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if known or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _start(ray: Any, n_cpus: int, quiet: dict[str, Any]) -> None:
    """Start Ray here; a second try where the machine was too busy for Ray's own patience of 30 s."""
    for name in ("RAY_prestart_worker_first_driver", "RAY_enable_worker_prestart"):
        os.environ.setdefault(name, "0")  # no spare processes: a run's actors are all it needs
    with _workers_find_this_package():
        for last in (False, True):
            try:
                ray.init(
                    address="local",  # not the Ray that may be running here
                    num_cpus=n_cpus,
                    include_dashboard=False,
                    object_store_memory=_STORE_BYTES,
                    **quiet,
                )
                return
            except Exception as error:
                ray.shutdown()
                if last:
                    first = (str(error).splitlines() or [type(error).__name__])[0]
                    raise LeanwamError(f"Ray could not be started here: {first}") from error


@contextmanager
def _workers_find_this_package() -> Iterator[None]:
    """Ray's processes inherit the environment they are started in: put this package's place on their path."""
    import leanwam

    before = os.environ.get("PYTHONPATH")
    here = str(Path(leanwam.__file__).parents[1])
    os.environ["PYTHONPATH"] = here if not before else os.pathsep.join([here, before])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
