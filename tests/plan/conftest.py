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


@pytest.fixture(scope="session")
def blocks():
    """Makes the blocks of an epoch over some samples: `blocks(samples, epoch=0, **options)`.

    Samples have up to 60 tokens, and up to three images of 8 of them.
    """

    def make(samples, epoch=0, **options):
        random = np.random.default_rng(0)
        images = random.integers(0, 4, samples)
        text = random.integers(1, 37, samples)
        sizes = Sizes(text + 8 * images, text // 2, images, 8 * images, images)
        made = PlanOptions(**({"shuffle": True, "seed": 3} | options))
        source = Source.of_dataset(samples, made, measure=lambda chosen: sizes[chosen])
        return AllBlocks(EpochPlan(source, made, epoch))

    return make
