"""Plans over made-up samples."""

import numpy as np
import pytest

from datapipe.plan.epoch import EpochPlan, Source
from datapipe.plan.options import PlanOptions
from datapipe.plan.units import Sizes


class AllBlocks:
    """The blocks of a plan, made when asked for."""

    def __init__(self, plan):
        self.plan = plan
        self.epoch = plan.epoch
        self.count = plan.blocks

    def __call__(self, block, before):
        return self.plan.lay_out(self.plan.form(block), block, before)


def make_sizes(samples, seed=0):
    """Sizes of `samples` samples: up to 60 tokens, up to three images of 8 of them."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 4, samples)
    text = random.integers(1, 37, samples)
    return Sizes(text + 8 * images, text // 2, images, 8 * images, images)


def make_source(samples, options, **more):
    sizes = make_sizes(samples)
    return Source.of_dataset(samples, options, measure=lambda chosen: sizes[chosen], **more)


@pytest.fixture(scope="session")
def source():
    return make_source


@pytest.fixture(scope="session")
def blocks():
    """Makes the blocks of an epoch over some samples: `blocks(samples, epoch=0, **options)`."""

    def make(samples, epoch=0, **options):
        made = PlanOptions(**({"shuffle": True, "seed": 3} | options))
        return AllBlocks(EpochPlan(make_source(samples, made), made, epoch))

    return make


def _order_of(steps):
    return [int(sample) for step in steps for sample in step.units.samples]


@pytest.fixture(scope="session")
def order_of():
    """Samples of some steps in global order."""
    return _order_of
