"""Plan of an epoch: pure functions of sizes, options and a seed. No I/O, no torch."""

from datapipe.plan.epoch import EpochPlan, Source
from datapipe.plan.options import PLAN_VERSION, PlanOptions
from datapipe.plan.order import Permutation
from datapipe.plan.packing import pack_lengths
from datapipe.plan.steps import Position, Share, Step, walk
from datapipe.plan.units import Sizes, Units

__all__ = [
    "PLAN_VERSION",
    "EpochPlan",
    "Permutation",
    "PlanOptions",
    "Position",
    "Share",
    "Sizes",
    "Source",
    "Step",
    "Units",
    "pack_lengths",
    "walk",
]
