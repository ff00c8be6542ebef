"""Plans over made-up samples."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from datapipe.plan.epoch import EpochPlan, Source
from datapipe.plan.options import PlanOptions
from datapipe.plan.steps import Step
from datapipe.plan.units import Sizes, Units


class AllBlocks:
    """The blocks of a plan, made when asked for."""

    def __init__(self, plan: EpochPlan) -> None:
        self.plan = plan
        self.epoch = plan.epoch
        self.count = plan.blocks

    def __call__(self, block: int, before: int) -> Units:
        return self.plan.lay_out(self.plan.form(block), block, before)


def make_sizes(samples: int, seed: int = 0) -> Sizes:
    """Sizes of `samples` samples: up to 60 tokens, up to three images of 8 of them."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 4, samples)
    text = random.integers(1, 37, samples)
    return Sizes(text + 8 * images, text // 2, images, 8 * images, images)


def make_source(samples: int, options: PlanOptions, **more: Any) -> Source:
    sizes = make_sizes(samples)
    return Source.of_dataset(samples, options, measure=lambda chosen: sizes[chosen], **more)


@pytest.fixture(scope="session")
def source() -> Callable[..., Source]:
    return make_source


@pytest.fixture(scope="session")
def blocks() -> Callable[..., AllBlocks]:
    """Makes the blocks of an epoch over some samples: `blocks(samples, epoch=0, **options)`."""

    def make(samples: int, epoch: int = 0, **options: Any) -> AllBlocks:
        made = PlanOptions(**({"shuffle": True, "seed": 3} | options))
        return AllBlocks(EpochPlan(make_source(samples, made), made, epoch))

    return make


def _order_of(steps: list[Step]) -> list[int]:
    return [int(sample) for step in steps for sample in step.units.samples]


@pytest.fixture(scope="session")
def order_of() -> Callable[[list[Step]], list[int]]:
    """Samples of some steps in global order."""
    return _order_of
