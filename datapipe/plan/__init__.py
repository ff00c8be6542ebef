"""The plan of an epoch: pure functions of sizes, options and a seed. No I/O, no torch."""

from datapipe.plan.order import Permutation
from datapipe.plan.plan import PLAN_VERSION, EpochPlan, PlanOptions, Step

__all__ = ["PLAN_VERSION", "EpochPlan", "Permutation", "PlanOptions", "Step"]
