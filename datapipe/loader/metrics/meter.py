"""Meter of a loader: time of its workers by stage, and waits of its user."""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from datapipe.loader.metrics.stage_clock import MOST_EVENTS, ClockOptions, Event, StageClock, Tally

_REMEMBERED = 10_000  # batches whose waits are kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Figures of one stage, over all threads."""

    seconds: float = 0.0
    # seconds on a CPU; the rest waited for storage, the interpreter's lock or a CPU
    cpu: float = 0.0
    # times it was entered: once a sample or an image, for tokens once a piece of a batch
    count: int = 0
    bytes: int = 0  # moved, if known: encoded ones read, decoded ones made

    def __add__(self, other: Stage) -> Stage:
        return Stage(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in _PARTS})

    def __sub__(self, other: Stage) -> Stage:
        return Stage(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in _PARTS})


_PARTS = fields(Stage)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Figures of a meter."""

    seconds: float  # since the first batch was asked for
    # samples, batches: yielded; samples are those that `valid` marks
    samples: int = 0
    batches: int = 0
    workers: int  # threads or processes; 0 if the caller works
    waited: float = 0.0  # seconds that the caller spent asking for batches
    idle: float = 0.0  # seconds that workers waited for work, summed over them
    # of the workers, by name
    stages: Mapping[str, Stage] = field(default_factory=dict)
    # of the caller's thread while it asked for batches, within `waited`
    caller: Mapping[str, Stage] = field(default_factory=dict)
    waits: tuple[float, ...] = ()  # seconds that the caller waited for each of the latest batches
    ready: tuple[int, ...] = ()  # number of finished batches when each of these was asked for

    @property
    def all_stages(self) -> dict[str, Stage]:
        """Stages of workers and caller together."""
        total = dict(self.stages)
        for name, stage in self.caller.items():
            total[name] = total.get(name, Stage()) + stage
        return total

    def since(self, earlier: Reading) -> Reading:
        """Subtract an earlier reading of the same meter."""
        batches = self.batches - earlier.batches
        latest = slice(max(0, len(self.waits) - batches), None)
        return replace(
            self,
            seconds=self.seconds - earlier.seconds,
            samples=self.samples - earlier.samples,
            batches=batches,
            waited=self.waited - earlier.waited,
            idle=self.idle - earlier.idle,
            stages=_less(self.stages, earlier.stages),
            caller=_less(self.caller, earlier.caller),
            waits=self.waits[latest],
            ready=self.ready[latest],
        )


class Meter:
    """Sums of the clocks of a loader, and of its caller; made by `Loader.start_metering`."""

    def __init__(self, workers: int, options: ClockOptions) -> None:
        self.options = options
        self.caller = StageClock("caller", options)
        self._workers = workers
        self._clocks: list[StageClock] = []  # of worker threads
        self._ended = Tally({}, 0)  # of threads that have ended, and of worker processes
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)  # likewise
        self._start: int | None = None
        self._samples = self._batches = self._waited = 0
        # Times at which each of the latest was asked for, yielded, and finished by its workers.
        self._given: deque[tuple[int, int, int]] = deque(maxlen=_REMEMBERED)

    def clock(self, row: str) -> StageClock:
        """Return a new clock for a worker thread."""
        clock = StageClock(row, self.options)
        self._clocks.append(clock)
        return clock

    def retire(self) -> None:
        """Add the sums of worker threads that have ended, and drop their clocks."""
        clocks, self._clocks = self._clocks, []
        for clock in clocks:
            self.add(clock.read())

    def add(self, tally: Tally) -> None:
        """Add the sums of a worker process."""
        self._ended = self._ended.plus(tally)
        self._events.extend(tally.events)

    def give(self, *, asked: int, finished: int, samples: int) -> None:
        """Count a batch that is yielded now."""
        now = time.perf_counter_ns()
        if self._start is None:
            self._start = asked
        self._samples += samples
        self._batches += 1
        self._waited += now - asked
        self._given.append((asked, now, finished))

    def reading(self) -> Reading:
        """Return the figures so far, for any thread."""
        now = time.perf_counter_ns()
        total = self._ended
        for clock in tuple(self._clocks):
            total = total.plus(clock.read())
        given = tuple(self._given.copy())
        return Reading(
            seconds=0.0 if self._start is None else (now - self._start) / 1e9,
            samples=self._samples,
            batches=self._batches,
            workers=self._workers,
            waited=self._waited / 1e9,
            idle=total.idle / 1e9,
            stages=_stages(total),
            caller=_stages(self.caller.read()),
            waits=tuple((got - asked) / 1e9 for asked, got, _ in given),
            ready=_count_ready(given),
        )

    @property
    def events(self) -> list[Event]:
        """Latest stages of all threads in order, if events were asked for."""
        events = list(self._events.copy())
        for clock in (self.caller, *self._clocks):
            events += clock.read().events
        return sorted(events, key=lambda event: event.start)[-MOST_EVENTS:]


def _stages(tally: Tally) -> Mapping[str, Stage]:
    return {
        stage: Stage(seconds=wall / 1e9, cpu=cpu / 1e9, count=count, bytes=size)
        for stage, (wall, cpu, count, size) in tally.stages.items()
    }


def _less(stages: Mapping[str, Stage], earlier: Mapping[str, Stage]) -> Mapping[str, Stage]:
    left = {stage: now - earlier.get(stage, Stage()) for stage, now in stages.items()}
    return {stage: part for stage, part in left.items() if part.count}


def _count_ready(given: tuple[tuple[int, int, int], ...]) -> tuple[int, ...]:
    """Return the number of batches that were finished when each was asked for."""
    finished_later: list[int] = []  # times of this batch and all after it, sorted
    counts = []
    for asked, _, finished in reversed(given):
        bisect.insort(finished_later, finished)
        counts.append(bisect.bisect_right(finished_later, asked))
    return tuple(reversed(counts))
