"""Figures of steps: what is exchange, who is waited for, and where operators limit a step."""

import pytest

from datapipe.diagnosis.step_figures import Operator, Peaks, RankStep, compare_ranks, fastest, place
from tests.case_files import table

RANKS, ROOFLINES = (table(f"diagnosis/{name}") for name in ("ranks", "rooflines"))
PEAKS = Peaks(flops={"float32": 1e12, "bfloat16": 8e12}, bandwidth=1e11, source="table")


@pytest.mark.parametrize("name", RANKS)
def test_exchange_is_told_from_waiting_for_the_slowest_rank(name):
    case = RANKS[name]
    steps = {
        turn: {rank: RankStep(0.1, *times) for rank, times in step.items()}
        for turn, step in enumerate(case["steps"])
    }
    found = compare_ranks(steps, case.get("rank", 0))
    assert (found is None) == (case["found"] is None)
    for field, value in (case["found"] or {}).items():
        assert getattr(found, field) == pytest.approx(value), field


@pytest.mark.parametrize("name", ROOFLINES)
def test_an_operator_is_limited_by_what_takes_longer(name):
    case, usual = ROOFLINES[name], {"dtype": "float32", "flops": 0, "bytes": 0}
    operators = [Operator(**usual | given) for given in case["operators"]]
    found = place(operators, PEAKS, 0.1)
    for field, value in case["found"].items():
        assert getattr(found, field) == pytest.approx(value), field
    if "fastest" in case:
        assert fastest(operators) == pytest.approx(case["fastest"])
