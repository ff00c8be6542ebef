"""One timed run of a loader with one setting."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch.utils.data import DataLoader

from datapipe.diagnosis.loader_figures import Usage
from datapipe.loader.loader import Loader
from datapipe.loader.metrics.meter import Reading, Stage
from datapipe.tune.arrivals import LoaderPass, Segment, count, long_wait, samples_of
from datapipe.tune.setting import Setting

Make = Callable[..., Iterable[Any]]

_LATE = 4  # times the time that should count, if passes are short and starting takes long
_GROUPS = 4  # of batches, within which a trial stops at a long wait
_PATIENCE = 0.1  # of the time that should count, for batches that were ready at the start
_MOST = 20_000  # batches that count
_LATECOMERS = 0.5  # of the time until the first batch, that the last worker may start later
_SETTLING = 0.3  # of the steps at the speed of training


class EmptyLoader(Exception):
    """An iterable that yields nothing."""


class Watcher(Protocol):
    """Interface of a `UsageMeter`, for meters on other clocks."""

    @property
    def memory(self) -> int: ...

    def start(self) -> None: ...

    def mark(self) -> None: ...

    def stop(self) -> Usage: ...


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Goal of a trial."""

    seconds: float  # of the segment that counts, at least
    deadline: float  # time of the clock at which to stop with what there is
    least: int = 2  # batches that count, at least
    # a step of training with a batch; None takes batches as fast as they come. The warm-up of a
    # paced trial takes batches as fast as they come too, so that none is left ready, and the first
    # 30 % of the steps do not count: until then a loader that is fast enough is ahead again.
    step: Callable[[Any], object] | None = None
    whole: bool = False  # count whole passes, for short iterables
    max_memory: float | None = None  # bytes at which to stop; None for no limit


@dataclass(frozen=True, kw_only=True)
class Trial(Segment):
    """One timed run."""

    setting: Setting
    round: int  # of the sweep, from 0
    began: float  # time of the clock
    paced: bool  # whether batches were taken at the speed of training
    startup: float  # seconds until the first batch
    total: float  # seconds that the trial took, closing included
    length: int | None = None  # batches of a pass; None if none came to its end
    usage: Usage | None = None  # of the machine, in the segment; None if nothing watched
    # of a datapipe loader in the segment, if it was metered
    stages: Mapping[str, Stage] = field(default_factory=dict)
    caller: float | None = None  # CPU seconds of the thread that took the batches
    over: bool = False  # whether it was stopped because it took too much memory
    processes: bool = False  # whether the workers are known to be processes
    key: str | None = None  # under which a result is kept; None if the loader has none

    @property
    def rate(self) -> float:
        """Batches a second; 0 if none counts."""
        return self.batches / self.seconds if self.seconds > 0 else 0.0

    @property
    def memory(self) -> int:
        """Most bytes of all processes; 0 if nothing watched."""
        return self.usage.memory if self.usage is not None else 0

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold, without the single batches."""
        names = ("round", "paced", "batches", "samples", "seconds", "rate", "startup", "total")
        return self.setting.to_dict() | {name: getattr(self, name) for name in (*names, "memory")}


def run_trial(
    make: Make,
    setting: Setting,
    aim: Aim,
    *,
    round: int,
    clock: Callable[[], float],
    watcher: Watcher | None,
    meter_stages: bool = False,
    epoch: int | None = None,
) -> Trial:
    """Make a loader, take its batches, and close it.

    Start and warm-up do not count: at least two batches, one from each worker. An iterable that
    ends is begun again, and the same does not count again. A datapipe loader is set to `epoch`, so
    that each trial reads other samples first, and times its stages if `meter_stages`.

    Raises:
        EmptyLoader: the iterable yields nothing.
        Exception: any error of `make` or of the iterable.
    """
    began = clock()
    run = _TrialRun(setting, aim, clock, watcher)
    try:
        run.open(make, epoch=epoch, meter_stages=meter_stages)
        run.take()
    finally:
        run.close()
    return Trial(
        **vars(run.segment()),
        **run.seen,
        setting=setting,
        round=round,
        began=began,
        paced=aim.step is not None,
        startup=run.passes[0].got[0] - began,
        total=clock() - began,
    )


class _TrialRun:
    """A trial in progress."""

    def __init__(
        self,
        setting: Setting,
        aim: Aim,
        clock: Callable[[], float],
        watcher: Watcher | None,
    ) -> None:
        self.passes: list[LoaderPass] = []
        self.seen: dict[str, Any] = {}  # fields of `Trial`
        workers = max(1, setting.num_workers)
        self._group = workers
        self._skip = max(2, workers)  # one batch of each worker
        self._stock = workers * (setting.prefetch_factor or 0)
        # Batches after which the trial may stop, and the wait that it then stops at.
        self._long: tuple[int, float] | None = None
        self._arguments = setting.arguments
        self._aim = aim
        self._clock = clock
        self._watcher = watcher
        self._loader: Any = None
        self._iterator: Any = None
        self._before: Reading | None = None
        self._caller = 0.0
        self._since: float | None = None  # when what counts began
        self._warm = False  # whether the warm-up of this pass is over
        self._began = clock()

    def open(self, make: Make, *, epoch: int | None, meter_stages: bool) -> None:
        """Make the loader."""
        if self._watcher is not None:
            self._watcher.start()
        self._loader = make(**self._arguments)
        self.seen["processes"] = isinstance(self._loader, DataLoader)
        if isinstance(self._loader, Loader):
            self.seen["processes"] = self._loader.options.workers == "processes"
            self.seen["key"] = self._loader.components().find_tuning_key()
            if epoch is not None:
                self._loader.set_epoch(epoch)
            if meter_stages:
                self._loader.start_metering()

    def take(self) -> None:
        """Take batches until enough of them count."""
        self._begin()
        while True:
            part = self.passes[-1]
            if len(self.passes) == 1 and len(part.got) == self._skip - 1:
                self._mark()  # in the warm-up, since it takes milliseconds
            part.asked.append(self._clock())
            try:
                batch = next(self._iterator)
            except StopIteration:
                part.asked.pop()
                part.ended = True
                if self._passed() or self._enough():
                    break
                self._begin()
                continue
            now = self._clock()
            part.got.append(now)
            part.samples.append(samples_of(batch))
            self._warm_up(part)
            if self._must_stop(now) or (self._may_stop(part, now) and self._enough()):
                break
            if self._aim.step is not None and (self._warm or self._aim.whole):
                self._aim.step(batch)
            del batch
        self._read_meters()

    def segment(self) -> Segment:
        """Return the part of the run that counts so far."""
        passes = list(self.passes)
        if self._aim.step is not None and len(passes) == 1:
            skip = passes[0].skip
            skip += int(_SETTLING * max(0, len(passes[0].got) - skip))
            passes = [replace(passes[0], skip=skip)]
        paced = self._aim.step is not None
        made = count(passes, group=self._group, paced=paced, whole=self._aim.whole)
        if not made.batches and any(part.ended for part in passes):
            # Too short to leave anything out.
            made = count(passes, group=1, paced=paced, whole=True)
        return made

    def close(self) -> None:
        """Stop the workers and drop all references, for any kind of iterable."""
        if self._watcher is not None:
            self.seen["usage"] = self._watcher.stop()
        closed = self._loader is None or isinstance(self._loader, Sequence)
        with ExitStack() as stack:  # all of them, last one first, even if one raises
            for thing, name in (
                (self._loader, "close"),
                (self._iterator, "_shutdown_workers"),  # of torch's, which else waits for `del`
                (self._iterator, "close"),
            ):
                if callable(close := getattr(thing, name, None)):
                    stack.callback(close)
                    closed = True
            del thing, close
            self._iterator = self._loader = None
        if not closed:
            gc.collect()  # workers may end with objects in a reference cycle

    def _warm_up(self, part: LoaderPass) -> None:
        """Begin to count after two batches, one of each worker, and half as long as starting took.

        The last worker to start may take that much longer than the first. Batches that were ready
        with the first one do not count either, if that does not take too long.
        """
        if self._warm:
            return
        taken, now = len(part.got), part.got[-1]
        began = self._began if len(self.passes) == 1 else part.began
        started = part.got[0] - began
        part.skip = max(self._skip, taken + 1)
        passed = now - part.got[0]
        stock_left = taken < self._stock and passed < _PATIENCE * self._aim.seconds
        if taken >= self._skip and passed >= _LATECOMERS * started and not stock_left:
            part.skip, self._warm = taken, True
            if self._since is None:
                self._since = now

    def _begin(self) -> None:
        self._warm, self._long = False, None
        self.passes.append(LoaderPass(began=self._clock(), skip=self._skip))
        self._iterator = iter(self._loader)

    def _passed(self) -> bool:
        """Check whether the pass that ended is the last one."""
        part = self.passes[-1]
        if part.got:
            self.seen["length"] = max(self.seen.get("length", 0), len(part.got))
            return self._must_stop(self._clock())
        if len(self.passes) == 1:
            raise EmptyLoader("it yields no batch at all")
        self.passes.pop()  # an iterator can be gone through once
        return True

    def _must_stop(self, now: float) -> bool:
        aim = self._aim
        if self._watcher is not None and aim.max_memory is not None:
            self.seen["over"] = self._watcher.memory > aim.max_memory
        return self.seen.get("over", False) or now >= aim.deadline

    def _may_stop(self, part: LoaderPass, now: float) -> bool:
        """Check that stopping is neither too early nor within a burst.

        A slow batch during which the time runs out counts: otherwise slow batches would be left out
        more often than others (the inspection paradox).
        """
        taken = len(part.got) - part.skip
        if not self._warm or self._since is None or taken < 1 or self._aim.whole:
            return False
        if part.asked[-1] - self._since < self._aim.seconds and taken < _MOST:
            return False
        if self._aim.step is not None:
            return True
        if self._long is None:
            self._long = taken, long_wait(part, self._group)
        since, least = self._long
        return now - part.asked[-1] >= least or taken >= since + _GROUPS * self._group

    def _enough(self) -> bool:
        if self._aim.whole and len(self.passes) == 1:
            return False  # workers may have been started in it
        segment = self.segment()
        late = self._clock() - (self._since or 0.0) > _LATE * self._aim.seconds
        if segment.batches >= _MOST or (segment.batches and late):
            return True
        return segment.batches >= self._aim.least and segment.seconds >= self._aim.seconds

    def _mark(self) -> None:
        if self._watcher is not None:
            self._watcher.mark()
            self._caller = time.thread_time()
        if isinstance(self._loader, Loader) and self._loader.meter is not None:
            self._before = self._loader.meter.reading()

    def _read_meters(self) -> None:
        if self._watcher is not None:
            self.seen["caller"] = time.thread_time() - self._caller
            self.seen["usage"] = self._watcher.stop()
        if self._before is not None:
            self.seen["stages"] = self._loader.meter.reading().since(self._before).stages
