"""One timed run of a loader with one setting, and the part of it that counts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader

from datapipe.diagnosis.loader_figures import LoaderFigures, Usage
from datapipe.loader.loader import Loader
from datapipe.loader.metrics.meter import Reading
from datapipe.profile.measure.usage import UsageMeter
from datapipe.tune.setting import Setting

Make = Callable[..., Iterable[Any]]

_PATIENCE = 0.1  # of the time that should count, for batches that were ready at the start
_MOST = 20_000  # batches that count
_LATECOMERS = 0.5  # of the time until the first batch, that the last worker may start later
_SETTLING = 0.3  # of the steps at the speed of training, until a fast loader is ahead again


@dataclass(kw_only=True)
class Arrivals:
    """Batches of a trial, over one pass of the loader or several."""

    # asked, got: times at which each batch was asked for, and received
    asked: list[float] = field(default_factory=list)
    got: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)  # of each batch; 0 if unknown
    ends: list[int] = field(default_factory=list)  # batches taken at the end of each pass
    rows: int = 1  # of `input_ids` for each sample: 2 if samples are preference pairs
    skip: int | None = None  # batches of the warm-up; None until it is over


def bounds(arrivals: Arrivals, *, group: int, paced: bool = False) -> tuple[int, int]:
    """Return the first batch that counts, and the first one after those that count.

    Workers that began together deliver together, so batches count in groups of one from each
    worker: a group takes the same time wherever in a burst it begins. Where passes end, whole
    passes count, with the time that starting another one takes, as it does in training. At the pace
    of training all count but the first 30 %, in which a loader that is fast enough gets ahead.
    """
    stop = len(arrivals.got)
    first = stop if arrivals.skip is None else arrivals.skip
    ends = [end for end in arrivals.ends if end >= first]
    if len(ends) > 1:
        return ends[0], ends[-1]
    if paced:
        return first + int(_SETTLING * (stop - first)), stop
    return first, stop - (stop - first) % group


def count(arrivals: Arrivals, first: int, stop: int) -> dict[str, Any]:
    """Return fields of a `Trial` for the batches from `first` to `stop`."""
    taken, asked, got = range(first, stop), arrivals.asked, arrivals.got
    return {
        "batches": len(taken),
        "samples": sum(arrivals.samples[first:stop]),
        "seconds": got[stop - 1] - got[first - 1] if taken else 0.0,
        "waits": tuple(got[at] - asked[at] for at in taken),
        "busy": sum(asked[at] - got[at - 1] for at in taken),
    }


def samples_of(batch: Any, *, rows: int = 1) -> int:
    """Count the samples of a batch; 0 if unknown, as for a pack, which is one row.

    A batch of datapipe has "valid" or "images_per_sample". Of others, the first dimension of the
    first tensor counts, as `torch.utils.data.default_collate` makes it.
    """
    if isinstance(batch, Mapping):
        if "valid" in batch:
            return int(batch["valid"].sum()) if hasattr(batch["valid"], "sum") else 0
        if "cu_seq_lens_q" in batch:
            return 0
        if "images_per_sample" in batch:
            return _rows(batch["images_per_sample"])
        if "input_ids" in batch:
            return _rows(batch["input_ids"]) // rows
        batch = [*batch.values()]
    if isinstance(batch, list | tuple):
        # A tuple of columns; a list of samples would be a batch without collation.
        return next((rows for value in batch if (rows := _rows(value))), 0)
    return _rows(batch)


def _rows(value: Any) -> int:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    return len(value) if isinstance(value, list | tuple) else 0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Machine that trials run on: by default this one. Tests give a clock of their own."""

    clock: Callable[[], float] = time.perf_counter  # seconds
    sleep: Callable[[float], object] = time.sleep
    meter: Callable[..., UsageMeter] = UsageMeter  # called with `probe_gil` for each trial


class EmptyLoader(Exception):
    """An iterable that yields nothing."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    setting: Setting
    # of the batches that count, timed from the one before
    batches: int
    samples: int
    seconds: float  # that passed
    waits: tuple[float, ...]  # seconds that each batch was waited for
    busy: float  # seconds between getting a batch and asking for the next
    round: int  # of the sweep, from 0
    paced: bool  # whether batches were taken at the speed of training
    startup: float  # seconds until the first batch
    total: float  # seconds that the trial took, closing included
    memory: int = 0  # most bytes of all processes; 0 if nothing was metered
    figures: LoaderFigures | None = None  # of the loader at work; None if it was not probed
    over: bool = False  # whether it was stopped because it took too much memory
    key: str | None = None  # under which a result is kept; None if the loader has none

    @property
    def rate(self) -> float:
        """Batches a second; 0 if none counts."""
        return self.batches / self.seconds if self.seconds > 0 else 0.0

    @property
    def overhead(self) -> float:
        """Seconds that do not count."""
        return max(0.0, self.total - self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold, without the single batches."""
        names = ("round", "paced", "batches", "samples", "seconds", "rate", "startup", "total")
        return self.setting.to_dict() | {name: getattr(self, name) for name in (*names, "memory")}


@dataclass(kw_only=True, eq=False)
class TrialRun:
    """One run of a loader.

    Start and warm-up do not count: at least two batches, one from each worker.
    """

    setting: Setting
    machine: Machine
    seconds: float  # that count, at least
    deadline: float  # time of the clock at which to stop with what there is
    batches: int = 2  # that count, at least
    # a step of training with a batch; None takes batches as fast as they come, as the warm-up does
    step: Callable[[Any], object] | None = None
    max_memory: float | None = None  # bytes at which to stop; None for no limit
    probe: bool = False  # meter the interpreter's lock, and the stages of a datapipe loader
    epoch: int = 0  # of a datapipe loader, so that each trial reads other samples first

    def __post_init__(self) -> None:
        self._began = self.machine.clock()
        self._meter = self.machine.meter(probe_gil=self.probe)
        self._arrivals = Arrivals()
        self._group = max(1, self.setting.num_workers)
        self._seen: dict[str, Any] = {}  # fields of `Trial`
        self._loader: Any = None
        self._before: Reading | None = None
        self._caller = 0.0

    def run(self, make: Make, *, round: int) -> Trial:
        """Make a loader, take its batches, and close it.

        Any error of `make` or of the iterable is raised, and `EmptyLoader` if it yields nothing.
        """
        try:
            self._take(make)
        finally:
            self._close()
        return Trial(
            **count(self._arrivals, *self._bounds()),
            **self._seen,
            setting=self.setting,
            round=round,
            paced=self.step is not None,
            startup=self._arrivals.got[0] - self._began,
            total=self.machine.clock() - self._began,
        )

    def _take(self, make: Make) -> None:
        """Make the loader, and take batches until enough of them count."""
        arrivals = self._arrivals
        self._meter.start()
        self._loader = make(**self.setting.arguments)
        if isinstance(self._loader, Loader):
            parts = self._loader.components()
            self._seen["key"] = parts.find_tuning_key()
            tokens = parts.context.tokens
            arrivals.rows = 2 if tokens is not None and tokens.pairs else 1
            self._loader.set_epoch(self.epoch)
            if self.probe:
                self._loader.start_metering()
        with closing(_batches(self._loader, arrivals, self.machine.clock)) as batches:
            for batch in batches:
                if len(arrivals.got) == max(2, self._group) - 1:
                    self._meter.mark()  # in the warm-up, since it takes milliseconds
                    self._caller, self._before = time.thread_time(), self._reading()
                if arrivals.skip is None and self._is_warm():
                    arrivals.skip = len(arrivals.got)
                if self._is_enough():
                    break
                if self.step is not None and arrivals.skip is not None:
                    self.step(batch)
        if not arrivals.got:
            raise EmptyLoader("yields no batch at all")
        caller = time.thread_time() - self._caller
        usage = self._meter.stop()
        self._seen["memory"] = usage.memory
        if usage.gil is not None:
            self._seen["figures"] = self._figures(usage, caller)

    def _close(self) -> None:
        """Stop the workers and drop all references, for any kind of iterable."""
        self._meter.stop()
        loader, self._loader = self._loader, None
        if callable(close := getattr(loader, "close", None)):
            close()
        else:
            del loader
            gc.collect()  # workers may end with objects in a reference cycle

    def _reading(self) -> Reading | None:
        metered = isinstance(self._loader, Loader) and self._loader.meter is not None
        return self._loader.meter.reading() if metered else None

    def _figures(self, usage: Usage, caller_cpu: float) -> LoaderFigures:
        reading, processes = self._reading(), isinstance(self._loader, DataLoader)
        if reading is not None and self._before is not None:
            reading = reading.since(self._before)
            processes = self._loader.options.in_processes
        else:
            reading = Reading(seconds=usage.seconds, workers=self.setting.num_workers)
        return LoaderFigures(
            reading=reading, usage=usage, caller_cpu=caller_cpu, processes=processes
        )

    def _bounds(self) -> tuple[int, int]:
        return bounds(self._arrivals, group=self._group, paced=self.step is not None)

    def _is_warm(self) -> bool:
        """Check for two batches, one of each worker, and half the time of starting.

        The last worker to start may take that much longer than the first. Batches that were ready
        with the first one do not count either, if that does not take too long.
        """
        taken, first = len(self._arrivals.got), self._arrivals.got[0]
        passed = self._arrivals.got[-1] - first
        ready = self._group * (self.setting.prefetch_factor or 0)
        if taken < ready and passed < _PATIENCE * self.seconds:
            return False
        return taken >= max(2, self._group) and passed >= _LATECOMERS * (first - self._began)

    def _is_enough(self) -> bool:
        """Check that enough batches count, or that the trial has to end."""
        got = self._arrivals.got
        if self.max_memory is not None:
            self._seen["over"] = self._meter.memory > self.max_memory
        if self._seen.get("over") or got[-1] >= self.deadline:
            return True
        first, stop = self._bounds()
        if stop - first >= _MOST:
            return True
        return stop - first >= self.batches and got[stop - 1] - got[first - 1] >= self.seconds


def _batches(
    loader: Iterable[Any], arrivals: Arrivals, clock: Callable[[], float]
) -> Generator[Any]:
    while True:
        asked, before = clock(), len(arrivals.got)
        iterator = iter(loader)
        try:
            for batch in iterator:
                arrivals.asked.append(asked)
                arrivals.got.append(clock())
                arrivals.samples.append(samples_of(batch, rows=arrivals.rows))
                yield batch
                del batch
                asked = clock()
        finally:
            if callable(close := getattr(iterator, "close", None)):
                close()
        if len(arrivals.got) == before:
            return  # an iterator can be gone through once
        arrivals.ends.append(len(arrivals.got))
