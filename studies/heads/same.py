"""Whether another run of this study gave the same rows and cards, but for times and the table's hash.

    python studies/heads/same.py ../other-clone/studies/heads

Exit code 1 and one line for each difference.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TIMES = ("time_utc", "duration_s")
OF_THE_RUN = ("first_utc", "sha256")


def rows(table: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The rows of a table without their times."""
    found = [json.loads(line) for line in table.read_text().splitlines()]
    assert len({(row["arm"], row["task"], row["episode"]) for row in found}) == len(found)
    return {
        (row["arm"], row["task"], row["episode"]): {k: v for k, v in row.items() if k not in TIMES}
        for row in found
    }


def card(file: Path) -> Any:
    """A card without the times of its rollouts and the hash of its table."""
    return json.loads(
        file.read_text(), object_hook=lambda part: {k: v for k, v in part.items() if k not in OF_THE_RUN}
    )


def main(other: Path) -> int:
    """Compare."""
    mine, theirs = rows(HERE / "episodes.jsonl"), rows(other / "episodes.jsonl")
    cards = sorted(file.relative_to(HERE) for file in HERE.glob("*/card/card.json"))
    different = [str(key) for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
    different += [str(name) for name in cards if card(HERE / name) != card(other / name)]
    for name in different:
        print("differs:", name)
    print(f"{len(mine)} and {len(theirs)} rows, {len(cards)} cards: {len(different)} differences")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
