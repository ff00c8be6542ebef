"""What counts of the times at which batches come."""

from __future__ import annotations

from itertools import accumulate

import pytest

from datapipe.tune.arrivals import LoaderPass, count


def passed(gaps: list[float], *, skip: int, began: float = 0.0, ended: bool = False) -> LoaderPass:
    """Batches that come so many seconds after each other, taken at once."""
    got = [began + at for at in accumulate(gaps)]
    asked = [began, *got[:-1]]
    return LoaderPass(
        began=began, asked=asked, got=got, samples=[2] * len(got), skip=skip, ended=ended
    )


def test_start_and_warm_up_are_left_out() -> None:
    segment = count([passed([9, 3, 1, 1, 1, 1], skip=2)], group=1, paced=False, whole=False)
    assert (segment.batches, segment.samples, segment.seconds) == (3, 6, 3)
    assert segment.waits == (1, 1, 1)


@pytest.mark.parametrize("begin", range(4))
@pytest.mark.parametrize("end", range(4))
def test_bursts_count_as_a_whole_wherever_the_trial_begins_and_ends(begin: int, end: int) -> None:
    # Four workers that deliver together: four batches in four seconds, and then all at once.
    gaps = [4.0, 0.0, 0.0, 0.0] * 9
    part = passed(gaps[: len(gaps) - end], skip=4 + begin)
    segment = count([part], group=4, paced=False, whole=False)
    assert segment.batches / segment.seconds == pytest.approx(1.0)
    assert segment.batches >= 16


def test_stock_from_before_does_not_count() -> None:
    # A slow batch has kept back nine others, which come at once when counting would begin.
    gaps = [1.0] * 4 + [10.0] + [0.0] * 9 + [1.0] * 40
    segment = count([passed(gaps, skip=5)], group=2, paced=False, whole=False)
    assert segment.batches / segment.seconds == pytest.approx(1.0)


def test_several_passes_count_together_each_without_its_start() -> None:
    one = passed([5, 1, 1, 1, 1, 1], skip=2, ended=True)
    two = passed([7, 1, 1, 1, 1, 1], skip=2, began=100, ended=True)
    segment = count([one, two], group=1, paced=False, whole=False)
    assert segment.batches / segment.seconds == 1.0
    assert segment.batches == 6


def test_whole_passes_count_from_their_start_without_the_first() -> None:
    first = passed([50, 1, 1], skip=2, ended=True)
    later = passed([2, 1, 1], skip=2, began=100, ended=True)
    cut = passed([2, 1], skip=2, began=200)
    segment = count([first, later, cut], group=4, paced=False, whole=True)
    assert (segment.batches, segment.seconds) == (3, 4)
    alone = count([first], group=4, paced=False, whole=True)
    assert (alone.batches, alone.seconds) == (3, 52)


def test_at_the_speed_of_training_waits_and_work_make_up_the_time() -> None:
    part = LoaderPass(
        began=0, asked=[0, 3, 5.0, 7.5], got=[2, 3.5, 5.0, 8.5], samples=[1] * 4, skip=1
    )
    segment = count([part], group=4, paced=True, whole=False)
    assert segment.waits == (0.5, 0.0, 1.0)
    assert segment.busy == 1 + 1.5 + 2.5
    assert segment.seconds == 6.5 == sum(segment.waits) + segment.busy


def test_too_little_is_nothing() -> None:
    segment = count([passed([1, 1, 1], skip=2)], group=4, paced=False, whole=False)
    assert segment.batches == 0
