"""Meter of CPU time, memory, storage and the interpreter's lock."""

from __future__ import annotations

import resource
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from datapipe.cpus import available_cpus, own_cpus
from datapipe.diagnosis.loader_figures import Usage

_EVERY = 0.25  # seconds between two samples of memory
_SHARE = 0.01  # of the time that sampling may take

_PERIOD = 0.002  # seconds between two probes of the lock; each takes some 10 µs
_LOOK = 25  # probes between two reads of the kernel's figures, which take the lock themselves
_SLACK = 0.00015  # seconds that a sleep may be late on an idle machine: timers and waking up

# Raised for a process that ends meanwhile, or that may not be inspected.
_GONE = (psutil.Error, OSError, NotImplementedError)


class UsageMeter:
    """Measures the `Usage` from `start` to `stop`.

    A thread samples memory four times a second, less often where that takes long; a peak that is
    shorter may be missed. With `probe_gil`, another one probes the interpreter's lock.
    """

    def __init__(self, *, probe_gil: bool = False) -> None:
        self._peak = _Peak()
        self._probe = _LockProbe() if probe_gil else None
        self._usage: Usage | None = None
        self._began = self._cpu = self._busy = 0.0

    def start(self) -> None:
        """Begin. A meter measures once."""
        for sampler in (self._peak, self._probe):
            if sampler is not None:
                sampler.begin(self)
        self.mark()

    def mark(self) -> None:
        """Count from now on, as if it began here. The peak of memory stays."""
        if self._probe:
            self._probe.counted = self._probe.sums
        self._busy, self._cpu = busy_seconds(), cpu_seconds()
        self._began = time.perf_counter()

    def stop(self) -> Usage:
        """End, and return the usage. Later calls return the same."""
        if self._usage is not None:
            return self._usage
        cpu, busy = cpu_seconds() - self._cpu, busy_seconds() - self._busy
        seconds, cores = time.perf_counter() - self._began, available_cpus()
        spare = len(own_cpus()) - cores  # CPUs beyond a quota
        self._usage = Usage(
            seconds=seconds,
            cpu=max(0.0, cpu),
            cores=cores,
            others=max(0.0, busy - cpu - spare * seconds),
            gil=self._probe.stop() if self._probe else None,
            **self._peak.stop(),
        )
        return self._usage

    @property
    def memory(self) -> int:
        """Most bytes so far."""
        return self._peak.memory


class Sampler(threading.Thread):
    """Thread that does something again and again until it has `ended`; knows no owner."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.ended = threading.Event()

    def begin(self, owner: object) -> None:
        """Start the thread; it ends with its owner at the latest."""
        self.start()
        weakref.finalize(owner, self.ended.set)

    def end(self) -> None:
        self.ended.set()
        self.join()


class _Peak(Sampler):
    def __init__(self) -> None:
        super().__init__("datapipe-usage")
        self.memory = 0
        self._first: dict[tuple[int, float], int] = {}
        self._last: dict[tuple[int, float], int] = {}

    def start(self) -> None:
        self._sample()
        self._first = dict(self._last)
        super().start()

    def stop(self) -> dict[str, Any]:
        """End the thread; return the most bytes of memory, and those read from storage."""
        self.end()
        self._sample()
        read = sum(read - self._first.get(key, 0) for key, read in self._last.items())
        return {"memory": self.memory, "read": read if self._last else None}

    def _sample(self) -> None:
        tree = own_tree()
        self.memory = max(self.memory, memory_bytes(tree))
        # Processes that have ended keep their last figure.
        self._last |= bytes_read(tree)

    def run(self) -> None:
        pause = _EVERY
        while not self.ended.wait(pause):
            began = time.thread_time()
            self._sample()
            pause = max(_EVERY, (time.thread_time() - began) / _SHARE)


class _LockProbe(Sampler):
    """Sampler that sleeps, and notes how much later than asked it runs Python code again.

    A thread that holds the lock is asked to release it after 5 ms (`sys.getswitchinterval`), so
    where Python code always runs, the probe waits at least 5 of every 7 ms. Time that it waited for
    a processor is known from the kernel and does not count.
    """

    def __init__(self) -> None:
        super().__init__("datapipe-lock-probe")
        self.sums = self.counted = (0.0, 0.0)  # seconds late, and all; where counting began

    def stop(self) -> float:
        """End the thread; return the share of its time, 0 to 1, that it waited for the lock."""
        self.end()
        late, total = (now - before for now, before in zip(self.sums, self.counted, strict=True))
        return min(1.0, max(0.0, late) / total) if total > 0 else 0.0

    def run(self) -> None:
        began = last = time.perf_counter()
        late, probes, queued = 0.0, 0, queued_seconds()
        while not self.ended.is_set():
            time.sleep(_PERIOD)
            now = time.perf_counter()
            late += max(0.0, now - last - _PERIOD - _SLACK)
            last = now
            probes += 1
            if probes % _LOOK == 0 or self.ended.is_set():
                waited = queued_seconds() - queued
                self.sums = (late - waited, now - began - waited)


def queued_seconds() -> float:
    """Return the seconds that this thread has waited for a processor; 0 if they are unknown."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def own_tree() -> list[psutil.Process]:
    """Return this process and all living ones that it has started, directly or not."""
    own = psutil.Process()
    with suppress(*_GONE):
        return [own, *own.children(recursive=True)]
    return [own]


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all that it has started, ended ones included.

    A process that ends hands its time to the one that waits for it, so the sum never falls.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for process in own_tree()[1:]:
        with suppress(*_GONE):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def busy_seconds() -> float:
    """Return the CPU time that all processes took of this one's CPUs, since the boot."""
    each = psutil.cpu_times(percpu=True)
    # `guest` is part of `user`, and its like of `nice`; a hypervisor's time counts too.
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    own = [each[number] for number in own_cpus() if number < len(each)]
    return sum(getattr(times, name, 0.0) for times in own for name in names)


def memory_bytes(tree: list[psutil.Process]) -> int:
    """Return the memory of a tree; pages that its processes share count once, if the kernel tells.

    Without a proportional set size, they count once for each process.
    """
    total = 0
    for process in tree:
        with suppress(*_GONE):
            try:
                total += process.memory_full_info().pss
            except (psutil.AccessDenied, AttributeError):
                total += process.memory_info().rss
    return total


def bytes_read(tree: list[psutil.Process]) -> dict[tuple[int, float], int]:
    """Return the bytes that storage delivered to each process, by process id and start time."""
    read = {}
    for process in tree:
        with suppress(*_GONE):
            read[process.pid, process.create_time()] = int(process.io_counters().read_bytes)
    return read
