"""Clock of the stages of one thread, and its current work for the watchdog."""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

STAGES = (
    *("plan", "read", "decode", "resize", "transform", "tokenize", "collate", "transfer"),
    "normalize",
)
"""All stages. In the pipeline `normalize` is a part of `resize`."""

MOST_EVENTS = 200_000  # that are kept: three for each of 66,000 samples


@dataclass(frozen=True, slots=True)
class ClockOptions:
    """Options of a clock."""

    events: bool = False  # keep the begin and end of each stage
    # show stages as ranges to `torch.profiler` and, where there is a GPU, to NVTX
    ranges: bool = False


class Event(NamedTuple):
    """Stage of one thread, in nanoseconds of `time.perf_counter_ns`."""

    row: str
    stage: str
    start: int
    end: int


class Tally(NamedTuple):
    """Sums of a clock."""

    # nanoseconds, nanoseconds on a CPU, times entered and bytes moved, by stage
    stages: dict[str, tuple[int, int, int, int]]
    idle: int  # nanoseconds between stages
    events: tuple[Event, ...] = ()  # if they were asked for

    def plus(self, other: Tally) -> Tally:
        """Return the sums of two clocks, without events."""
        stages = dict(self.stages)
        for stage, more in other.stages.items():
            wall, cpu, count, size = map(operator.add, stages.get(stage, (0, 0, 0, 0)), more)
            stages[stage] = wall, cpu, count, size
        return Tally(stages, self.idle + other.idle)


class StageClock:
    """Sums of the time that one thread spends in each stage. Written by that thread alone.

    A change of stage reads two clocks, which takes about half a microsecond. `row` is the name of
    the thread in timelines.
    """

    def __init__(self, row: str, options: ClockOptions = ClockOptions()) -> None:
        self._row = row
        self._options = options
        # With all stages from the start, so that other threads can read it at any time.
        self._stages = {stage: [0, 0, 0, 0] for stage in STAGES}
        self._idle = 0
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._stage: str | None = None
        self._since: int | None = None  # None: the time before the first stage does not count
        self._cpu = 0
        self._range = ExitStack()

    def at(self, stage: str) -> None:
        """Enter a stage, and leave the one before."""
        now, cpu = time.perf_counter_ns(), time.thread_time_ns()
        self._leave(now, cpu)
        self._stage, self._since, self._cpu = stage, now, cpu
        self._stages[stage][2] += 1
        if self._options.ranges:
            open_range(f"datapipe.{stage}", self._range)

    def add(self, size: int) -> None:
        """Count bytes that the stage has moved."""
        if self._stage is not None:
            self._stages[self._stage][3] += size

    def rest(self) -> None:
        """Leave the stage without entering another."""
        now = time.perf_counter_ns()
        self._leave(now, time.thread_time_ns())
        self._stage, self._since = None, now

    def timed(self, stage: str, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function with its time counted."""

        def call(*args: P.args, **options: P.kwargs) -> T:
            self.at(stage)
            try:
                return function(*args, **options)
            finally:
                self.rest()

        return call

    def through(self, stage: str, items: Iterator[T]) -> Iterator[T]:
        """Yield the items with the time of making each counted."""
        advance = self.timed(stage, lambda: next(items, _END))
        while (item := advance()) is not _END:
            yield item

    def read(self) -> Tally:
        """Return the sums so far, for any thread; a stage counts once it is left."""
        stages = {
            stage: (counts[0], counts[1], counts[2], counts[3])
            for stage, counts in self._stages.items()
            if counts[2]
        }
        return Tally(stages, self._idle, tuple(self._events.copy()))

    def take(self) -> Tally:
        """Return the sums, and start at zero; for the thread itself."""
        tally = self.read()
        for counts in self._stages.values():
            counts[:] = [0, 0, 0, 0]
        self._idle = 0
        self._events.clear()
        return tally

    def _leave(self, now: int, cpu: int) -> None:
        if self._since is None:
            return
        if self._stage is None:
            self._idle += now - self._since
            return
        counts = self._stages[self._stage]
        counts[0] += now - self._since
        counts[1] += cpu - self._cpu
        if self._options.events:
            self._events.append(Event(self._row, self._stage, self._since, now))
        self._range.close()


_END: Any = object()


def open_range(name: str, stack: ExitStack) -> None:
    """Open a range of torch's profiler, and of NVIDIA's through NVTX if there is a GPU."""
    import torch

    stack.enter_context(torch.autograd.profiler.record_function(name))
    if torch.cuda.is_available():
        stack.enter_context(torch.cuda.nvtx.range(name))


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
