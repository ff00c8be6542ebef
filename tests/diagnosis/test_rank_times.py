"""The same steps on several ranks: what is exchange, and who is waited for."""

import pytest

from datapipe.diagnosis.rank_times import RankStep, compare_ranks
from tests.case_files import table

CASES = table("diagnosis/ranks")


@pytest.mark.parametrize("name", CASES)
def test_exchange_is_told_from_waiting_for_the_slowest_rank(name):
    case = CASES[name]
    steps = {
        turn: {rank: RankStep(0.1, *times) for rank, times in step.items()}
        for turn, step in enumerate(case["steps"])
    }
    found = compare_ranks(steps, case.get("rank", 0))
    assert (found is None) == (case["found"] is None)
    for field, value in (case["found"] or {}).items():
        assert getattr(found, field) == pytest.approx(value), field
