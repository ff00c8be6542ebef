"""Current work of a worker, for the watchdog and the meter."""

from __future__ import annotations

import time
from typing import Protocol

from datapipe.loader.metrics.stage_clock import StageClock


class WatchedJob(Protocol):
    """Job that names its samples for the watchdog."""

    def describe(self, slot: int) -> str: ...


class Watch:
    """Current work of one worker; written by it, read by the watchdog."""

    def __init__(self, clock: StageClock | None = None) -> None:
        self._now: tuple[WatchedJob, int, str, float] | None = None
        self._clock = clock

    def at(self, job: WatchedJob, slot: int, stage: str) -> None:
        """Begin a stage of the sample in a slot."""
        self._now = (job, slot, stage, time.monotonic())
        if self._clock is not None:
            self._clock.at(stage)

    def moved(self, size: int) -> None:
        """Count bytes that the stage has moved."""
        if self._clock is not None:
            self._clock.add(size)

    def idle(self) -> None:
        """End the stage without beginning another."""
        self._now = None
        if self._clock is not None:
            self._clock.rest()

    def report(self, job: WatchedJob | None = None) -> str | None:
        """Describe this worker's work and its duration; None if it is idle or not at `job`."""
        now = self._now
        if now is None or (job is not None and now[0] is not job):
            return None
        job, slot, stage, since = now
        return describe_work(job, slot, stage, time.monotonic() - since)


def describe_work(job: WatchedJob, slot: int, stage: str, seconds: float) -> str:
    """Return the sample in a slot of a job, its stage and the duration, for the log."""
    return f"{job.describe(slot)} in stage '{stage}' for {seconds:.0f} s"
