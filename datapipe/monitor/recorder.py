"""Recorder of single steps by torch's profiler, and the figures of all recorded steps.

A recorded step takes some microseconds an operator longer, so a few are recorded.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any

from datapipe.diagnosis.loop_rules import MOSTLY
from datapipe.diagnosis.rank_times import RankTimes
from datapipe.diagnosis.step_roofline import StepRoofline, fastest, place
from datapipe.monitor.peaks import cpu_peaks, gpu_peaks
from datapipe.monitor.ranks import RankSamples
from datapipe.monitor.step_sample import StepSample, sample_of
from datapipe.monitor.trace import profiled

logger = logging.getLogger(__name__)

_REMEMBERED = 31  # steps


@dataclass(frozen=True, kw_only=True)
class SampledSteps:
    """Steps that torch's profiler recorded. Shares are of their time, 0 to 1; medians.

    Attributes:
        steps: their number.
        exchange: in collectives while nothing else ran; waiting for slower ranks is in it.
        beside: in collectives while other work ran: on a GPU they are hidden, on the CPU they take
            processors from it.
        synchronisation: in which the host waited for the GPU.
        waiter: operator that did so for the most time; "" without any.
        busy: in which the GPU had work; None without a GPU.
        operators: in torch's operators.
        ranks: the same steps on other ranks; None without any.
        roofline: of a usual step; None if the machine's peaks are not known.
    """

    steps: int
    exchange: float
    beside: float
    synchronisation: float
    waiter: str
    busy: float | None
    operators: float
    ranks: RankTimes | None
    roofline: StepRoofline | None


class StepRecorder:
    """Recorder of single steps. For the thread that runs the loop.

    Attributes:
        samples: of the steps so far.
        turn: number of the turn recorded last.
    """

    def __init__(self) -> None:
        self.samples: deque[StepSample] = deque(maxlen=_REMEMBERED)
        self._ranks = RankSamples()
        self._profiler: Any = None
        self.turn = self._begun = 0
        self._waited = 0.0
        self._broken = False

    @property
    def runs(self) -> bool:
        """True while a step is recorded."""
        return self._profiler is not None

    def begin(self, *, turn: int, waited: float) -> None:
        """Start the profiler, unless another one runs or it cannot be used.

        Args:
            turn: number of the turn, the same on all ranks.
            waited: seconds that the turn waited for its batch.
        """
        torch = sys.modules.get("torch")
        if self._broken or torch is None or profiled() or _prepared():
            return
        # Kineto reads its level when it is first used; torch 2.13 prints two lines otherwise.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        try:
            profile: Any = torch.autograd.profiler.profile
            device = "cuda" if torch.cuda.is_initialized() else None
            profiler = profile(
                use_kineto=True, use_device=device, record_shapes=True, with_flops=True
            )
            profiler.__enter__()
        except Exception as error:  # the profiler may fail for any reason
            self._give_up(error)
            return
        self._profiler, self.turn, self._waited = profiler, turn, waited
        self._begun = time.perf_counter_ns()

    def end(self, *, counts: bool) -> None:
        """Stop the profiler; `counts` is False for a step that was cut short."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        took = time.perf_counter_ns() - self._begun
        if not profiled() or _prepared():
            return  # a profiler of the user took over
        try:
            profiler.__exit__(None, None, None)
            if not counts:
                return
            events = profiler.kineto_results.events()
            sample = sample_of(events, turn=self.turn, took=took, waited=self._waited)
        except Exception as error:
            self._give_up(error)
            return
        self.samples.append(sample)
        self._ranks.write(self.samples)

    def figures(self, *, thoroughly: bool) -> SampledSteps | None:
        """Return the figures of the recorded steps; None if there are none.

        Args:
            thoroughly: whether to read other ranks' steps, and to measure the machine's peaks; both
                take time.
        """
        samples = self.samples
        if not samples:
            return None
        # One of them may be no usual step, such as one with an evaluation inside.
        middle = median_low(sample.seconds for sample in samples)
        usual = next(sample for sample in samples if sample.seconds == middle)
        return SampledSteps(
            steps=len(samples),
            exchange=median(sample.exchange / sample.seconds for sample in samples),
            beside=median(sample.beside / sample.seconds for sample in samples),
            synchronisation=median(s.synchronisation / s.seconds for s in samples),
            waiter=usual.waiter,
            busy=None if usual.busy is None else median(_busy(sample) for sample in samples),
            operators=median(_in_operators(sample) for sample in samples),
            ranks=self._ranks.compare() if thoroughly else None,
            roofline=_roofline(usual) if thoroughly else None,
        )

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        logger.warning(
            "exchange and the roofline of steps stay unknown, as torch's profiler failed: %s", error
        )


def _prepared() -> bool:
    """Check whether there is a `torch.profiler.profile`, which may not run yet.

    Starting ours would take its events, or end the process. torch counts its steps until its `with`
    block is left.
    """
    from torch.autograd.profiler import KinetoStepTracker

    there = KinetoStepTracker.erase_step_count("ProfilerStep")
    if there:
        KinetoStepTracker.init_step_count("ProfilerStep")
    return bool(there)


def _busy(sample: StepSample) -> float:
    return (sample.busy or 0.0) / sample.seconds


def _in_operators(sample: StepSample) -> float:
    used = sum(operator.seconds for operator in sample.operators)
    # Autograd's threads run beside the loop's, and on a GPU kernels run beside each other.
    return min(1.0, used / sample.seconds)


def _roofline(sample: StepSample) -> StepRoofline | None:
    torch, peaks = sys.modules["torch"], None
    if _in_operators(sample) < MOSTLY:
        return None
    if sample.busy is None:
        peaks = cpu_peaks(torch.get_num_threads(), reached=fastest(sample.operators))
    else:
        tf32 = torch.backends.cuda.matmul.allow_tf32
        peaks = gpu_peaks(torch.cuda.get_device_name(), tf32=tf32)
    return None if peaks is None else place(sample.operators, peaks, sample.seconds)
