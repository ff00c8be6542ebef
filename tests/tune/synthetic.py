"""Loaders of known costs on a virtual clock: workers that share resources, noise, drift.

What a worker does to a batch takes work, in seconds on an idle machine. Workers that are active at
the same time share cores, the interpreter's lock or a bus, and slow each other down. Batches are
handed out in order, as `torch.utils.data.DataLoader` does it: each worker has `prefetch_factor`
batches in hand, none of which is begun before another was taken.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from datapipe.diagnosis.loader_figures import Usage

Drift = Callable[[float], float]
"""How fast the machine is at a time, 1 on average."""

WORKERS = (0, 1, 2, 4, 8)
PREFETCH = (2, 4)
SETTINGS: tuple[tuple[int, int | None], ...] = (
    (0, None),
    *((workers, ahead) for workers in WORKERS[1:] for ahead in PREFETCH),
)

LONG_RUN = 1200  # batches
_LOOK = 0.5  # seconds after which drift is looked at again


class NoMeter:
    """A meter of a machine that measures nothing."""

    memory = 0

    def start(self) -> None: ...

    def mark(self) -> None: ...

    def stop(self) -> Usage:
        return Usage(seconds=1.0, cpu=0.0, cores=1, others=0.0, gil=None, memory=0, read=None)


class Clock:
    """A machine for trials whose time passes only when it is spent."""

    def __init__(self, meter: Callable[[], Any] = NoMeter) -> None:
        self.now = 1000.0
        self._meter = meter

    def meter(self, *, probe_gil: bool) -> Any:
        return self._meter()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a loader is made of and runs on."""

    name: str  # of the case
    work: float  # seconds for a batch, by one worker alone
    # what workers share: "sleep", "cpu", "gil", "memory", "storage" or "worse"
    kind: str = "cpu"
    share: float = 2.0  # how many of it there are: cores, or workers that a bus or disk can serve
    noise: float = 0.1  # of the work of a batch: standard deviation of its logarithm
    stragglers: float = 0.0  # share of the batches that take five times as long
    startup: float = 0.02  # seconds until the first worker begins
    each: float = 0.0  # seconds that each further worker takes to start
    handover: float = 0.0003  # seconds of the caller for a batch that a worker made
    length: int | None = None  # batches of a pass; None for no end

    def speed(self, active: int) -> float:
        """Of each of the active workers."""
        if self.kind == "sleep":
            return 1.0
        if self.kind == "gil":
            return float(0.98 ** (active - 1) / active)
        shared = min(1.0, self.share / active)
        if self.kind == "worse":  # beyond the cores, workers push each other out of the caches
            return float(shared * 0.93 ** max(0.0, active - self.share))
        return shared


def steady(_: float) -> float:
    """A machine of one's own."""
    return 1.0


class Loader:
    """An iterable that spends virtual time as workers would."""

    def __init__(
        self,
        machine: Machine,
        clock: Clock,
        *,
        num_workers: int,
        prefetch_factor: int | None,
        drift: Drift = steady,
        seed: int = 0,
    ) -> None:
        self.machine = machine
        self.clock = clock
        self.workers = num_workers
        self.ahead = num_workers * (prefetch_factor or 0)
        self.drift = drift
        self.random = random.Random(seed)
        self.closed = 0

    def __iter__(self) -> Iterator[int]:
        machine = self.machine
        self.clock.now += machine.startup if self.workers else 0.0
        return _Iteration(self) if self.workers else self._alone()

    def close(self) -> None:
        self.closed += 1

    def work(self) -> float:
        """Seconds for the next batch."""
        machine = self.machine
        work = machine.work * self.random.lognormvariate(-(machine.noise**2) / 2, machine.noise)
        return work * (5 if self.random.random() < machine.stragglers else 1.0)

    def _alone(self) -> Iterator[int]:
        for number in itertools.islice(itertools.count(), self.machine.length):
            left = self.work()
            while left > 0:
                speed = self.machine.speed(1) * self.drift(self.clock.now)
                step = min(left / speed, _LOOK)
                self.clock.now += step
                left -= step * speed
            yield number


class _Iteration(Iterator[int]):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.time = loader.clock.now
        self.starts = [self.time + loader.machine.each * number for number in range(loader.workers)]
        self.batch: dict[int, int] = {}  # of each worker that is busy
        self.left: dict[int, float] = {}  # work of each, in seconds
        self.begun = self.taken = 0
        self.done: dict[int, float] = {}

    def __next__(self) -> int:
        loader, clock = self.loader, self.loader.clock
        if self.taken >= (loader.machine.length or math.inf):
            raise StopIteration
        self._advance(clock.now, None)
        self._advance(math.inf, self.taken)
        clock.now = max(clock.now, self.done.pop(self.taken)) + loader.machine.handover
        self.taken += 1
        return self.taken - 1

    def _assign(self) -> None:
        loader = self.loader
        most = min(self.taken + loader.ahead, loader.machine.length or math.inf)
        for worker in range(loader.workers):
            if self.begun >= most:
                return
            if worker not in self.left and self.starts[worker] <= self.time:
                self.batch[worker], self.left[worker] = self.begun, loader.work()
                self.begun += 1

    def _advance(self, until: float, wanted: int | None) -> None:
        """Let the workers go on until a time, or until a batch is done."""
        machine = self.loader.machine
        while wanted not in self.done and self.time < until:
            self._assign()
            pending = [start for start in self.starts if start > self.time]
            step = min([until - self.time, _LOOK, *(start - self.time for start in pending)])
            if not self.left and not pending:
                assert math.isfinite(until), "no worker makes the batch that is awaited"
                self.time = until
                return
            speed = machine.speed(max(1, len(self.left))) * self.loader.drift(self.time)
            step = min([step, *(left / speed for left in self.left.values())])
            self.time += step
            for worker in list(self.left):
                self.left[worker] -= step * speed
                if self.left[worker] <= 1e-12:
                    self.done[self.batch[worker]] = self.time
                    del self.left[worker]


def wave(period: float, depth: float, phase: float) -> Drift:
    """A neighbour that comes and goes."""
    return lambda time: 1 + depth * math.sin(2 * math.pi * (time / period + phase))


def decline(start: float, length: float, depth: float) -> Drift:
    """A machine that grows warm."""
    return lambda time: 1 - depth * min(1.0, max(0.0, (time - start) / length))


def intruder(begin: float, end: float, takes: float) -> Drift:
    """A process that takes a share of the machine for a while."""
    return lambda time: 1 - takes if begin <= time < end else 1.0


def wander(seed: int, depth: float) -> Drift:
    """A random walk that comes back, a step each second."""
    generator = random.Random(seed)
    values = [0.0]
    for _ in range(1000):
        values.append(0.95 * values[-1] + generator.gauss(0, depth))
    return lambda time: math.exp(values[int(time) % len(values)])


@dataclass(frozen=True, kw_only=True)
class Case:
    """A sweep whose right answer is known."""

    machine: Machine
    drift: Drift = steady  # of the machine while it is tuned
    budget: float = 60.0  # seconds
    step: float | None = None  # seconds of a step of training; None takes batches as they come
    seed: int = 0  # of noise and of the sweep


@cache
def _taken(
    machine: Machine, workers: int, ahead: int | None, step: float, before: int, seed: int
) -> tuple[float, float]:
    """Seconds for `LONG_RUN` batches on an idle machine, and those spent waiting, after others."""
    clock, waited, began = Clock(), 0.0, 0.0
    endless = replace(machine, length=None)
    made = iter(Loader(endless, clock, num_workers=workers, prefetch_factor=ahead, seed=seed))
    for number in range(before + LONG_RUN):
        if number == before:
            waited, began = 0.0, clock()
        asked = clock()
        next(made)
        waited += clock() - asked
        clock.sleep(step)
    return clock() - began, waited


def true_rate(machine: Machine, workers: int, ahead: int | None) -> float:
    """Batches a second on an idle machine, in the long run."""
    return LONG_RUN / _taken(machine, workers, ahead, 0.0, before=32, seed=77)[0]


def true_waiting(machine: Machine, workers: int, ahead: int | None, step: float) -> float:
    """Share of its time that training waits on an idle machine, in the long run."""
    seconds, waited = _taken(machine, workers, ahead, step, before=200, seed=78)
    return waited / seconds


def is_right(
    case: Case,
    workers: int,
    ahead: int | None,
    settings: Sequence[tuple[int, int | None]] = SETTINGS,
) -> bool:
    """Whether a choice among `settings`, smallest first, is the smallest that is good enough.

    Where the truth is within half the margin of the margin, either side is accepted.
    """
    smaller = settings[: settings.index((workers, ahead))]
    if case.step is None:
        rates = {setting: true_rate(case.machine, *setting) for setting in settings}
        best, margin = max(rates.values()), 0.03
        enough = rates[workers, ahead] >= best * (1 - 1.5 * margin)
        return enough and all(rates[setting] < best * (1 - margin / 2) for setting in smaller)
    most = 0.01
    waits = {setting: true_waiting(case.machine, *setting, case.step) for setting in settings}
    least, waiting = min(waits.values()), waits[workers, ahead]
    if any(waits[setting] <= most / 2 for setting in smaller):
        return False
    if waiting <= 1.5 * most:
        return True
    # No setting suffices: then the smallest that waits about as little as any is right.
    shorter = all(waits[setting] > 1.1 * least for setting in smaller)
    return least > most and waiting <= 1.4 * least and shorter
