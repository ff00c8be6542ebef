"""Recorder of single steps by torch's profiler, and the figures of all recorded steps.

A recorded step takes some microseconds an operator longer, so a few are recorded.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from statistics import median
from typing import Any

from datapipe.diagnosis.loop_figures import SampledSteps
from datapipe.diagnosis.loop_rules import MOSTLY
from datapipe.diagnosis.step_figures import StepRoofline, fastest, place
from datapipe.monitor.peaks import cpu_peaks, gpu_peaks
from datapipe.monitor.profiler import start_profiler, stop_profiler
from datapipe.monitor.ranks import RankSamples
from datapipe.monitor.step_sample import StepSample, sample_of

logger = logging.getLogger(__name__)

_REMEMBERED = 31  # steps


class StepRecorder:
    """Recorder of single steps. For the thread that runs the loop."""

    def __init__(self) -> None:
        self.samples: deque[StepSample] = deque(maxlen=_REMEMBERED)  # of the steps so far
        self._ranks = RankSamples()
        self._profiler: Any = None
        self.turn = self._begun = 0  # number and time of the turn recorded last
        self._waited = 0.0
        self._broken = False

    @property
    def runs(self) -> bool:
        return self._profiler is not None

    def begin(self, *, turn: int, waited: float) -> bool:
        """Start the profiler; return False if another one runs or it cannot be used.

        `turn` is the same on all ranks; it waited so many seconds for its batch.
        """
        if self._broken:
            return False
        try:
            self._profiler = start_profiler(record_shapes=True, with_flops=True)
        except Exception as error:  # the profiler may fail for any reason
            self._give_up(error)
        self.turn, self._waited = turn, waited
        self._begun = time.perf_counter_ns()
        return self.runs

    def end(self, *, counts: bool) -> None:
        """Stop the profiler; `counts` is False for a step that was cut short."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        took = time.perf_counter_ns() - self._begun
        try:
            if not stop_profiler(profiler) or not counts:
                return
            events = profiler.kineto_results.events()
            sample = sample_of(events, turn=self.turn, took=took, waited=self._waited)
        except Exception as error:
            self._give_up(error)
            return
        self.samples.append(sample)
        self._ranks.write(self.samples)

    def figures(self, *, thoroughly: bool) -> SampledSteps:
        """Return the figures of the recorded steps.

        `thoroughly` reads other ranks' steps and measures the machine's peaks, which takes time.
        """
        samples = self.samples
        if not samples:
            return SampledSteps()

        def share(name: str) -> float:
            return median((getattr(sample, name) or 0.0) / sample.seconds for sample in samples)

        # Others may have waited for another process, or have an evaluation inside.
        fastest_step = min(samples, key=lambda sample: sample.seconds)
        return SampledSteps(
            steps=len(samples),
            exchange=share("exchange"),
            beside=share("beside"),
            synchronisation=share("synchronisation"),
            waiter=fastest_step.waiter,
            busy=None if fastest_step.busy is None else share("busy"),
            operators=median(map(_in_operators, samples)),
            ranks=self._ranks.compare() if thoroughly else None,
            roofline=_roofline(fastest_step) if thoroughly else None,
        )

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        logger.warning(
            "exchange and the roofline of steps stay unknown, as torch's profiler failed: %s", error
        )


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
