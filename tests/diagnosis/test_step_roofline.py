"""Operators of a step on the roofline of a machine."""

import pytest

from datapipe.diagnosis.step_roofline import Operator, Peaks, fastest, place

PEAKS = Peaks(flops={"float32": 1e12, "bfloat16": 8e12}, bandwidth=1e11, source="table")


def operator(name, **values):
    return Operator(**{"name": name, "dtype": "float32", "flops": 0, "bytes": 0} | values)


@pytest.mark.parametrize(
    ("dtype", "memory"),
    # 10 FLOPs a byte is where float32 turns; of bfloat16 the machine does eight times as many.
    [("float32", 0.2), ("bfloat16", 0.3), ("an unknown one", 0.2)],
)
def test_an_operator_is_limited_by_what_takes_longer(dtype, memory):
    operators = [
        operator("aten::mm", dtype=dtype, flops=2 * 10**10, bytes=10**9, seconds=0.06),
        operator("aten::add", bytes=10**9, seconds=0.02),
        operator("aten::gelu", bytes=10**9, seconds=0.01),
    ]
    found = place(operators, PEAKS, 0.1)
    assert found.memory == pytest.approx(memory)
    assert found.arithmetic == pytest.approx(0.0 if dtype == "bfloat16" else 0.2)
    assert (found.flops, found.bytes) == (2 * 10**10, 3 * 10**9)
    assert found.moved == pytest.approx(0.03)
    assert found.longest == ("aten::mm" if dtype == "bfloat16" else "aten::add")


def test_no_operator_takes_longer_at_the_peaks_than_it_took():
    operators = [
        operator("aten::mm", flops=10**12, seconds=0.04),  # 1 s at the peak
        operator("aten::add", bytes=10**11, seconds=0.05),  # in the caches
        operator("aten::mul", bytes=10**11, seconds=0.05),  # in another thread
    ]
    found = place(operators, PEAKS, 0.1)
    assert found.memory + found.arithmetic <= 1.0
    assert max(found.at_peak, found.moved) <= found.seconds
    assert fastest(operators) == {"float32": pytest.approx(2.5e13)}


def test_a_step_without_operators_is_limited_by_neither():
    found = place([], PEAKS, 0.1)
    assert (found.memory, found.arithmetic, found.longest) == (0.0, 0.0, "")
