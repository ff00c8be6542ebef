"""A loader at work: times of its stages, and how long workers and caller waited."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from datapipe.decode.normalize import KERNEL
from datapipe.diagnosis.loader_figures import LoaderFigures, Usage
from datapipe.diagnosis.loader_rules import Limit, find_limit
from datapipe.errors import PlanError
from datapipe.loader.loader import Loader
from datapipe.loader.metrics.meter import Reading
from datapipe.loader.metrics.stage_clock import Event
from datapipe.profile.measure.usage import UsageMeter
from datapipe.report.table import plain, ratio

_WARM_UP = 0.1  # of the time, before anything counts


@dataclass(frozen=True, kw_only=True)
class PipelineRun:
    reading: Reading  # of its meter, warm-up left out
    usage: Usage  # of the machine in that time
    step_time: float | None  # seconds of the consumer for each batch; None without a consumer
    skipped: int  # samples that failed
    # stages of all threads or processes, if they were asked for
    events: list[Event] = field(default_factory=list, repr=False)

    @property
    def rate(self) -> float:
        """Samples per second."""
        return ratio(self.reading.samples, self.reading.seconds)

    @property
    def waited(self) -> float:
        """Share of the time, 0 to 1, that the caller spent asking for batches."""
        return min(1.0, ratio(self.reading.waited, self.reading.seconds))

    @property
    def idle(self) -> float:
        """Share of the workers' time, 0 to 1, that they waited for work."""
        return min(1.0, ratio(self.reading.idle, self.reading.workers * self.reading.seconds))

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold; times in seconds."""
        reading: dict[str, Any] = plain(self.reading)
        del reading["waits"], reading["ready"]
        return reading | {
            "rate": self.rate,
            "step_time": self.step_time,
            "skipped": self.skipped,
            "usage": plain(self.usage),
        }


def run_pipeline(
    loader: Loader, *, seconds: float, step_time: float | None = None, events: bool = False
) -> PipelineRun:
    """Take batches for some time, as fast as they come or with a sleep of `step_time` after each.

    Batches that were prepared ahead do not count; a loader that ends before any counts is a
    `PlanError`. With `events`, the begin and end of each stage are kept.
    """
    KERNEL.load()
    meter, machine = loader.start_metering(events=events), UsageMeter(probe_gil=True)
    options, skipped, count = loader.options, loader.skipped, 0
    each = options.num_workers if options.in_processes else 1
    ahead = options.prefetch_factor * each if options.num_workers else 0
    try:
        batches, begun = iter(loader), time.perf_counter()
        for number, _ in enumerate(batches):  # the warm-up
            if step_time:
                time.sleep(step_time)
            passed = time.perf_counter() - begun
            if passed >= seconds or (number > ahead and passed >= _WARM_UP * seconds):
                break
        machine.start()
        before, began = meter.reading(), time.perf_counter_ns()
        for _ in batches:
            count += 1
            if time.perf_counter_ns() - began >= 1e9 * seconds:
                break
            if step_time:
                time.sleep(step_time)
        reading, usage = meter.reading().since(before), machine.stop()
    finally:
        loader.close()
    if not count:
        raise PlanError(
            f"the loader ended after {before.batches} batches, before anything could be measured; "
            "make it with epochs=None"
        )
    return PipelineRun(
        reading=reading,
        usage=usage,
        step_time=step_time,
        skipped=loader.skipped - skipped,
        events=[event for event in meter.events if event.end > began],
    )


def find_bottleneck(run: PipelineRun, paced: PipelineRun | None = None, **more: Any) -> Limit:
    """Find the limit of a loader; `more` are further fields of `LoaderFigures`."""
    seen = LoaderFigures(reading=run.reading, usage=run.usage, **more)
    if paced is not None:
        seen = replace(seen, waited=paced.waited, room=ratio(run.rate, paced.rate))
    return find_limit(seen)
