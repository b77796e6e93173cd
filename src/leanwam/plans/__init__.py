"""Plans as data: which head computes at which step, and what stands in for the rest (NumPy only)."""

from leanwam.plans.caches import CACHES, Cache, parse_cache, refuse_cache
from leanwam.plans.families import FAMILIES, SEED_PLANS, family_steps
from leanwam.plans.frames import FRAME_FAMILIES, FrameKeep, TokenLayout, resolve_frames
from leanwam.plans.plan import BACKBONE_STREAMS, HeadPlan, HeadSpec, Plan, PlanSpec
from leanwam.plans.standins import HOLDS, Hold, standin_weights
from leanwam.plans.text import load_plan, parse_plan, parse_plans

__all__ = [
    "BACKBONE_STREAMS",
    "CACHES",
    "FAMILIES",
    "FRAME_FAMILIES",
    "HOLDS",
    "SEED_PLANS",
    "Cache",
    "FrameKeep",
    "HeadPlan",
    "HeadSpec",
    "Hold",
    "Plan",
    "PlanSpec",
    "TokenLayout",
    "family_steps",
    "load_plan",
    "parse_cache",
    "parse_plan",
    "parse_plans",
    "refuse_cache",
    "resolve_frames",
    "standin_weights",
]
