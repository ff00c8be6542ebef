"""Figures of the recorded steps, alone and beside those of other ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from datapipe.diagnosis.loop_rules import MEMORY_LIMIT
from datapipe.diagnosis.rank_times import RankTimes
from datapipe.diagnosis.step_roofline import Peaks, StepRoofline, place
from datapipe.monitor.peaks import cpu_peaks, gpu_peaks
from datapipe.monitor.ranks import RankSamples
from datapipe.monitor.step_sample import StepSample


@dataclass(frozen=True, kw_only=True)
class SampledSteps:
    """Steps that torch's profiler recorded. Shares are of their time, 0 to 1; medians.

    Attributes:
        steps: their number.
        exchange: in collectives while nothing else ran; waiting for slower ranks is in it.
        hidden: in collectives while other work ran.
        busy: in which the GPU had work; None without a GPU.
        ranks: the same steps on other ranks; None without any.
        roofline: of the last step; None if the machine's peaks are not known, or operators take
            too little of the step to say anything.
    """

    steps: int
    exchange: float
    hidden: float
    busy: float | None
    ranks: RankTimes | None
    roofline: StepRoofline | None


def look_at_samples(
    samples: Sequence[StepSample], ranks: RankSamples, *, thoroughly: bool
) -> SampledSteps | None:
    """Return the figures of the recorded steps; None if there are none.

    Args:
        ranks: other ranks' samples.
        thoroughly: whether to read them, and to measure the machine's peaks; both take time.
    """
    if not samples:
        return None
    busy = [sample.busy / sample.seconds for sample in samples if sample.busy is not None]
    return SampledSteps(
        steps=len(samples),
        exchange=median(sample.exchange / sample.seconds for sample in samples),
        hidden=median(sample.hidden / sample.seconds for sample in samples),
        busy=median(busy) if busy else None,
        ranks=ranks.compare() if thoroughly else None,
        roofline=_roofline(samples[-1]) if thoroughly else None,
    )


def _roofline(sample: StepSample) -> StepRoofline | None:
    used = sum(operator.seconds for operator in sample.operators)
    if used < MEMORY_LIMIT * sample.seconds:
        return None
    peaks = _peaks(on_gpu=sample.busy is not None)
    return None if peaks is None else place(sample.operators, peaks, sample.seconds)


def _peaks(*, on_gpu: bool) -> Peaks | None:
    torch = sys.modules["torch"]
    if on_gpu:
        tf32 = torch.backends.cuda.matmul.allow_tf32
        return gpu_peaks(torch.cuda.get_device_name(), tf32=tf32)
    return cpu_peaks(torch.get_num_threads())
