"""What a study's cards say, as plain data: what the tables of results are made from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from leanwam.studies.spec import Study

#: Of every hypothesis, as the verdict on a card names them.
_KEPT = ("delta", "interval", "tost_interval", "tost_p", "difference_p", "state")


@dataclass(frozen=True)
class CardOutcome:
    """One comparison as its card tells it.

    Attributes:
        lean, anchor: the arms.
        word: of the headline (SAME, NOT SAME, CAN'T TELL).
        alpha: of the claim.
        of: by hypothesis (ALL, subsets, in the card's order): successes and rollouts of both arms (``success``,
            ``dense``), difference, intervals and p-values, as shares.
    """

    lean: str
    anchor: str
    word: str
    alpha: float
    of: dict[str, dict[str, Any]]


def card_outcomes(study: Study) -> Iterator[CardOutcome]:
    """The study's comparisons in their order; every card must be there.

    Raises:
        FileNotFoundError: a card was not made yet (``leanwam study run``).
    """
    for item in study.comparisons:
        verdict = json.loads((item.card / "card.json").read_text())["verdict"]
        of = {}
        for found in verdict["hypotheses"]:
            lean, n_lean, anchor, n_anchor = found["counts"]
            counted = {"success": [lean, n_lean], "dense": [anchor, n_anchor]}
            of[found["name"]] = counted | {key: found[key] for key in _KEPT}
        arms, claim = item.prereg.arms, item.prereg.claim
        yield CardOutcome(arms.lean, arms.anchor, verdict["headline"]["word"], claim.alpha, of)
