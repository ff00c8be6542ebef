"""The batches of a trial that count."""

from itertools import accumulate

import pytest

from datapipe.tune.trial import Arrivals, bounds, count
from tests.case_files import table

CASES = table("tune/arrivals")


@pytest.mark.parametrize("name", CASES)
def test_batches_count_in_whole_groups_or_passes(name):
    case = CASES[name]
    gaps = case["gaps"] * case.get("times", 1)
    got = list(accumulate(gaps[: len(gaps) - case.get("less", 0)]))
    arrivals = Arrivals(
        asked=case.get("asked", [0.0, *got[:-1]]),
        got=got,
        samples=[2] * len(got),
        ends=case.get("ends", []),
        skip=case["skip"],
    )
    edges = bounds(arrivals, group=case["group"], paced=case.get("paced", False))
    counted = count(arrivals, *edges)
    for field, value in case["counted"].items():
        found = counted[field]
        assert (list(found) if field == "waits" else found) == value, field
