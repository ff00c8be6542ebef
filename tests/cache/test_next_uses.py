"""Next uses are planned in the background, for every epoch that begins."""

import threading

import numpy as np
import pytest

from datapipe.cache.next_use import AHEAD, NEVER, NextUses
from datapipe.plan.units import Units

SAMPLES = 12


class Epoch:
    """One block of all samples, turned around in odd epochs."""

    count = 1

    def __init__(self, epoch):
        order = np.arange(SAMPLES)
        self._order = order[::-1].copy() if epoch % 2 else order

    def __call__(self, block, before):
        return Units(self._order, np.arange(SAMPLES + 1), None)


def next_uses(blocks=Epoch):
    return NextUses(blocks, samples=SAMPLES, rank=0, world_size=1, share=1)


def are_known(uses, epoch):
    """Return whether the last epoch that is planned ahead of one is known."""
    found = uses.of(np.arange(SAMPLES), epoch)
    return bool((found < NEVER - 1).all())


def test_a_sample_is_used_next_in_the_nearest_epoch_that_is_planned():
    uses = next_uses()
    uses.of(np.arange(1), 0)
    uses.wait()
    found = uses.of(np.arange(SAMPLES), 0)
    assert (np.diff(found) == -1).all()  # epoch 1 is turned around
    assert (uses.of(np.arange(SAMPLES), 1) > found).all()


def test_a_plan_that_is_made_while_an_epoch_begins_is_kept_if_it_is_ahead():
    begun, go, planned = threading.Event(), threading.Event(), []

    def blocks(epoch):
        planned.append(epoch)
        if epoch == 3:
            begun.set()
            go.wait()
        return Epoch(epoch)

    uses = next_uses(blocks)
    uses.of(np.arange(1), 0)
    begun.wait()
    uses.of(np.arange(1), 1)
    go.set()
    uses.wait()
    assert planned == [1, 2, 3, *range(4, AHEAD + 2)]
    assert are_known(uses, 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_planning_begins_again_in_the_epoch_after_a_failure():
    fails = True

    def blocks(epoch):
        if fails:
            raise OSError("the plan cannot be read")
        return Epoch(epoch)

    uses = next_uses(blocks)
    uses.of(np.arange(1), 0)
    uses.wait()
    fails = False
    uses.of(np.arange(1), 1)
    uses.wait()
    assert are_known(uses, 1)
