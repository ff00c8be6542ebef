"""The batches of a trial that count."""

from itertools import accumulate

import pytest

from datapipe.tune.trial import Arrivals, bounds, count


def arrived(gaps, *, skip, ends=None):
    """Batches that come so many seconds after each other, taken at once."""
    got = list(accumulate(gaps))
    return Arrivals(
        asked=[0.0, *got[:-1]], got=got, samples=[2] * len(got), ends=ends or [], skip=skip
    )


def counted(arrivals, *, group, paced=False):
    return count(arrivals, *bounds(arrivals, group=group, paced=paced))


def test_start_and_warm_up_are_left_out():
    segment = counted(arrived([9, 3, 1, 1, 1, 1], skip=2), group=1)
    assert (segment.batches, segment.samples, segment.seconds) == (4, 8, 4)
    assert segment.waits == (1, 1, 1, 1)


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (1, 3), (2, 1), (3, 2)])
def test_bursts_count_as_a_whole_wherever_the_trial_begins_and_ends(begin, end):
    # Four workers that deliver together: four batches in four seconds, and then all at once.
    gaps = [4.0, 0.0, 0.0, 0.0] * 9
    segment = counted(arrived(gaps[: len(gaps) - end], skip=4 + begin), group=4)
    assert segment.batches / segment.seconds == 1.0
    assert segment.batches >= 24


def test_whole_passes_count_with_the_time_that_starting_one_takes():
    # Passes of three batches; starting one takes five seconds.
    arrivals = arrived([5, 1, 1] * 4 + [5, 1], skip=2, ends=[3, 6, 9, 12])
    segment = counted(arrivals, group=2)
    assert (segment.batches, segment.seconds) == (9, 21)


def test_at_the_speed_of_training_waits_and_work_make_up_the_time():
    arrivals = Arrivals(
        asked=[0, 3, 5.0, 7.5], got=[2, 3.5, 5.0, 8.5], samples=[1] * 4, ends=[], skip=1
    )
    segment = counted(arrivals, group=4, paced=True)
    assert segment.waits == (0.5, 0.0, 1.0)
    assert segment.busy == 1 + 1.5 + 2.5
    assert segment.seconds == 6.5 == sum(segment.waits) + segment.busy


def test_at_the_speed_of_training_a_loader_has_time_to_get_ahead():
    segment = counted(arrived([1.0] * 12, skip=2), group=1, paced=True)
    assert segment.batches == 7


@pytest.mark.parametrize(("skip", "batches"), [(None, 0), (2, 0), (1, 4)])
def test_less_than_a_group_is_nothing(skip, batches):
    assert counted(arrived([1.0] * 5, skip=skip), group=4).batches == batches
