"""Operators of a step on the roofline of a machine."""

import pytest

from datapipe.diagnosis.step_roofline import Operator, Peaks, fastest, place
from tests.case_files import table

CASES = table("diagnosis/rooflines")
PEAKS = Peaks(flops={"float32": 1e12, "bfloat16": 8e12}, bandwidth=1e11, source="table")


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_limited_by_what_takes_longer(name):
    case, usual = CASES[name], {"dtype": "float32", "flops": 0, "bytes": 0}
    operators = [Operator(**usual | given) for given in case["operators"]]
    found = place(operators, PEAKS, 0.1)
    for field, value in case["found"].items():
        assert getattr(found, field) == pytest.approx(value), field
    if "fastest" in case:
        assert fastest(operators) == pytest.approx(case["fastest"])
