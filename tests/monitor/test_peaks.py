"""Peaks of processors: measured for CPUs, known by name for GPUs."""

import pytest

from datapipe.monitor.peaks import cpu_peaks, gpu_peaks
from tests.case_files import cases


def test_peaks_of_the_cpu_are_plausible_and_never_below_what_a_step_has_reached():
    threads = 10**6  # a number not measured yet
    measured = cpu_peaks(threads, reached={"float32": 1.0})
    assert 1e8 < measured.rate("float32") == measured.rate("float64") < 1e15
    assert 1e8 < measured.bandwidth < 1e13
    for reached in (1e18, 1.0):
        assert cpu_peaks(threads, reached={"float32": reached}).rate("float32") == 1e18
    assert cpu_peaks(threads).rate("bfloat16") < 1e15


@pytest.mark.parametrize(("name", "known", "teraflops"), cases("monitor/gpus"))
def test_a_gpu_is_known_by_its_name(name, known, teraflops):
    found = gpu_peaks(name)
    assert (found.source, found.rate("bfloat16")) == (known, pytest.approx(1e12 * float(teraflops)))


def test_float32_on_a_gpu_is_faster_with_rounded_factors():
    exact, rounded = gpu_peaks("NVIDIA A100"), gpu_peaks("NVIDIA A100", tf32=True)
    assert (exact.rate("float32"), rounded.rate("float32")) == (19.5e12, 156e12)
    assert gpu_peaks("NVIDIA A1000") is None
