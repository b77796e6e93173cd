"""The pages' tables are those of the committed results, and its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

from leanwam.cli.main import SUMMARIES

ROOT = Path(__file__).parents[2]


def test_tables_are_those_of_the_results() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "tables.py"), "--check"], check=False)
    assert done.returncode == 0, "run python docs/tables.py"


def test_every_command_named_exists() -> None:
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("    ")]
    named = {name for line in lines for name in re.findall(r"\bleanwam ([a-z]+)", line)}
    assert named <= set(SUMMARIES)
    assert named


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link
