"""A loader at work: times of its stages, and how long workers and caller waited."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from datapipe.diagnosis.loader_figures import LoaderFigures, Usage
from datapipe.diagnosis.loader_rules import Limit, find_limit
from datapipe.errors import PlanError
from datapipe.loader.loader import Loader
from datapipe.loader.metrics.meter import Reading, Stage
from datapipe.loader.metrics.stage_clock import Event
from datapipe.profile.measure.parts import have_kernel, tensor_bytes
from datapipe.profile.measure.usage import UsageMeter
from datapipe.report.table import Percentiles, percentiles, percentiles_ms, ratio

_WARM_UP = 0.1  # of the time, before anything counts


@dataclass(frozen=True, kw_only=True)
class PipelineRun:
    """Measurements of a loader at work."""

    reading: Reading  # of its meter, warm-up left out
    usage: Usage  # of the machine in that time
    step_time: float | None  # seconds of the consumer for each batch; None without a consumer
    bytes_out: float  # of tensors in a batch, on average
    skipped: int  # samples that failed

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

    def per_sample(self, stage: str) -> float:
        """Return the seconds of a stage for a sample, over all threads."""
        return self.reading.all_stages.get(stage, Stage()).seconds / max(self.reading.samples, 1)

    @property
    def wait_times(self) -> Percentiles:
        """Percentiles of the seconds that a batch was waited for."""
        return percentiles(self.reading.waits)

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold; times in seconds."""
        reading, usage = self.reading, self.usage
        return {
            "samples_per_second": self.rate,
            "batches_per_second": ratio(reading.batches, reading.seconds),
            "seconds": reading.seconds,
            "samples": reading.samples,
            "batches": reading.batches,
            "workers": reading.workers,
            "step_time": self.step_time,
            "waited": self.waited,
            "workers_idle": self.idle if reading.workers else None,
            "wait_ms": percentiles_ms(self.wait_times),
            "ready_batches_mean": float(np.mean(reading.ready)) if reading.ready else None,
            "stages": {name: _stage(part) for name, part in reading.stages.items()},
            "caller": {name: _stage(part) for name, part in reading.caller.items()},
            "bytes_per_batch": self.bytes_out,
            "skipped": self.skipped,
            "machine": {
                "cores": usage.cores,
                "cpu_seconds": usage.cpu,
                "others_cpu_seconds": usage.others,
                "lock_wait_share": usage.gil,
                "peak_memory_bytes": usage.memory,
                "read_from_storage_bytes": usage.read,
            },
        }


def run_pipeline(
    loader: Loader,
    *,
    seconds: float,
    step_time: float | None = None,
    tick: Callable[[int], None] | None = None,
) -> PipelineRun:
    """Take batches for some time, as fast as they come or one after each step.

    Batches that were prepared ahead do not count.

    Args:
        loader: best one without end.
        seconds: that count, after the warm-up.
        step_time: seconds of sleep after each batch, in place of a training step.
        tick: called after each batch with their number so far.

    Raises:
        PlanError: the loader ended before a batch counted.
    """
    have_kernel()
    meter = loader.start_metering()
    skipped, size, count = loader.skipped, 0, 0
    try:
        batches = _batches_of(loader, step_time, tick)
        _warm_up(batches, loader, seconds)
        with UsageMeter(probe_gil=True) as machine:
            before, began = meter.reading(), time.perf_counter()
            for batch in batches:
                size, count = size + tensor_bytes(batch), count + 1
                if time.perf_counter() - began >= seconds:
                    break
            reading = meter.reading().since(before)
    finally:
        loader.close()
    if not count:
        raise PlanError(
            f"the loader ended after {before.batches} batches, before anything could be measured; "
            "make it with epochs=None"
        )
    return PipelineRun(
        reading=reading,
        usage=machine.usage,
        step_time=step_time,
        bytes_out=size / count,
        skipped=loader.skipped - skipped,
    )


def record_events(loader: Loader, *, seconds: float) -> list[Event]:
    """Record the stages of every thread or process for some time after the warm-up."""
    meter = loader.start_metering(events=True)
    try:
        batches = _batches_of(loader, None, None)
        _warm_up(batches, loader, seconds)
        began = time.perf_counter_ns()
        for _ in batches:
            if time.perf_counter_ns() - began >= 1e9 * seconds:
                break
    finally:
        loader.close()
    return [event for event in meter.events if event.end > began]


def _batches_of(
    loader: Loader, step_time: float | None, tick: Callable[[int], None] | None
) -> Iterator[dict[str, Any]]:
    """Iterate over the batches, with a step after each."""
    for number, batch in enumerate(loader, start=1):
        yield batch
        if tick is not None:
            tick(number)
        if step_time:
            time.sleep(step_time)


def _warm_up(batches: Iterator[dict[str, Any]], loader: Loader, seconds: float) -> None:
    """Take batches until those that were prepared ahead are gone."""
    options = loader.options
    each = options.num_workers if options.workers == "processes" else 1
    ahead = options.prefetch_factor * each if options.num_workers else 0
    began = time.perf_counter()
    for number, _ in enumerate(batches):
        passed = time.perf_counter() - began
        if passed >= seconds or (number > ahead and passed >= _WARM_UP * seconds):
            return


def _stage(stage: Stage) -> dict[str, float]:
    return {
        "seconds": stage.seconds,
        "cpu_seconds": stage.cpu,
        "count": stage.count,
        "bytes": stage.bytes,
    }


def find_bottleneck(run: PipelineRun, paced: PipelineRun | None = None, **more: Any) -> Limit:
    """Find the limit of a loader.

    Args:
        run: batches taken as fast as they came.
        paced: batches taken at the pace of training; None if it is unknown.
        more: `processes`, `threaded` and `scaling` of `LoaderFigures`.
    """
    seen = LoaderFigures.of(run.reading, usage=run.usage, **more)
    if paced is not None:
        seen = replace(seen, waited=paced.waited, room=ratio(run.rate, paced.rate))
    return find_limit(seen)
