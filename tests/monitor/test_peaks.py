"""Peaks of processors: measured for CPUs, known by name for GPUs."""

from __future__ import annotations

import pytest
import torch

from datapipe.diagnosis.step_roofline import Peaks
from datapipe.monitor.peaks import cpu_peaks, gpu_peaks


def test_peaks_of_the_cpu_are_plausible() -> None:
    peaks = cpu_peaks(torch.get_num_threads())
    assert 1e8 < peaks.rate("float32") < 1e15
    assert 1e8 < peaks.bandwidth < 1e13
    assert peaks.rate("float64") == peaks.rate("float32")


def test_a_peak_that_a_step_exceeds_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([1e9, 8e9, 9e9])

    def measure(threads: int) -> Peaks:
        return Peaks(flops={"float32": next(found), "bfloat16": 1e9}, bandwidth=1e9, source="test")

    monkeypatch.setattr("datapipe.monitor.peaks._measure", measure)
    threads = 10**6  # a number not measured yet
    for reached, rate in ((0.9e9, 1e9), (2.4e9, 8e9), (2e10, 2e10), (0, 2e10)):
        assert cpu_peaks(threads, reached={"float32": reached}).rate("float32") == rate


@pytest.mark.parametrize(
    ("name", "known", "half"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", 989.4e12),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", "A100", 312e12),
        ("NVIDIA L40S", "L40S", 362e12),
        ("Tesla T4", "T4", 65e12),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, known: str, half: float) -> None:
    found = gpu_peaks(name)
    assert found is not None
    assert (found.source, found.rate("bfloat16")) == (known, half)


def test_float32_on_a_gpu_is_faster_with_rounded_factors() -> None:
    exact, rounded = gpu_peaks("NVIDIA A100"), gpu_peaks("NVIDIA A100", tf32=True)
    assert exact is not None
    assert rounded is not None
    assert (exact.rate("float32"), rounded.rate("float32")) == (19.5e12, 156e12)
    assert gpu_peaks("NVIDIA A1000") is None
