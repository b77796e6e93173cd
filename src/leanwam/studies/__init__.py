"""A study as one pipeline: preregistration, plans, rollouts, judge, card; resumable and content-addressed."""

from leanwam.studies.cards import CardOutcome, card_outcomes
from leanwam.studies.pipeline import Outcome, RunArm, run_study
from leanwam.studies.spec import Study, load_study
from leanwam.studies.status import study_status

__all__ = [
    "CardOutcome",
    "Outcome",
    "RunArm",
    "Study",
    "card_outcomes",
    "load_study",
    "run_study",
    "study_status",
]
