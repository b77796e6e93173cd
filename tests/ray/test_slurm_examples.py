"""The SLURM scripts run as SLURM would run them, with stand-ins for its commands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leanwam.rollouts import Shard
from leanwam.rollouts.manifest import read_runs

EXAMPLES = Path(__file__).parents[2] / "examples" / "slurm"
SRC = Path(__file__).parents[2] / "src"
#: stands in for leanwam: records a run as it does, then sleeps; its arguments go to a file
STAND_IN = """
import sys, time
from pathlib import Path
from leanwam.rollouts.manifest import recorded_run
folder = Path(sys.argv[1])
(folder / "arguments").write_text(" ".join(sys.argv[2:]))
try:
    with recorded_run(folder / "t.runs.jsonl", arm="x"):
        (folder / "started").touch()
        time.sleep(float((folder / "seconds").read_text()))
except KeyboardInterrupt:
    sys.exit(3)
"""


@pytest.fixture
def slurm(tmp_path):
    """A folder with the stand-ins, and the environment of a job."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, body in {
        "scontrol": "printf 'n1\\nn2\\n'",
        "srun": 'echo "$@" >> "$FOLDER/srun"; echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" >> "$FOLDER/tokens"',
        "ray": "true",
    }.items():
        file = commands / name
        file.write_text(f"#!/bin/bash\n{body}\n")
        file.chmod(0o755)
    return tmp_path, {
        **{key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")},
        "PATH": f"{commands}:{os.environ['PATH']}",
        "FOLDER": str(tmp_path),
        "PYTHONPATH": str(SRC),
        "LEANWAM": f"{sys.executable} {tmp_path / 'stand_in.py'} {tmp_path}",
        "SLURM_JOB_ID": "4711",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_ARRAY_TASK_COUNT": "8",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURMD_NODENAME": "n1",
        "RAY_HEAD_WAIT": "0",
        "RAY_NODES_WAIT": "0",
    }


def start(script, environment, *arguments):
    bash = shutil.which("bash")
    return subprocess.Popen(
        [bash, str(EXAMPLES / script), *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_an_array_task_runs_its_shard(slurm):
    folder, environment = slurm
    (folder / "seconds").write_text("0")
    process = start("array.sbatch", environment)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    words = (folder / "arguments").read_text().split()
    assert Shard.parse(words[words.index("--shard") + 1]) == Shard(3, 8)
    assert words[:2] == ["rollouts", "run"]
    assert "exit 0" in out
    (run,) = read_runs(folder / "t.runs.jsonl")
    assert run.state == "done"
    assert run.started["job"]["job_id"] == "4711"
    assert run.started["job"]["array_task_id"] == "3"


@pytest.mark.parametrize("script", ["array.sbatch", "ray.sbatch"])
def test_the_end_of_the_time_is_handed_on_and_recorded(slurm, script):
    folder, environment = slurm
    (folder / "seconds").write_text("60")
    process = start(script, environment, "study.toml", "--workers", "8")
    deadline = time.monotonic() + 60
    while not (folder / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "exit 3" in out
    (run,) = read_runs(folder / "t.runs.jsonl")
    assert (run.state, run.ended["why"]) == ("interrupted", "SIGTERM")


def test_ray_is_started_on_every_node(slurm):
    folder, environment = slurm
    (folder / "seconds").write_text("0")
    process = start("ray.sbatch", environment, "study.toml", "--workers", "8")
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert (folder / "arguments").read_text() == "study run study.toml --ray n1:6379 --workers 8"
    calls = (folder / "srun").read_text().splitlines()
    assert any("-w n1" in call and "start --head" in call for call in calls)
    assert any("-w n2" in call and "--address=n1:6379" in call for call in calls)
    assert "stop" in calls[-1]
    (token,) = set((folder / "tokens").read_text().splitlines())  # one for every node
    assert re.fullmatch("token [0-9a-f]{64}", token)
