"""Ranks as processes that are looked at from outside: memory, open files, phases.

Memory is that of a rank's process and of all its workers. RSS counts a page for every process that
maps it. PSS divides a page by the processes that map it, so its sum over all ranks is what they
take of the machine. USS are the pages that no other process has.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.common import Absent
from benchmarks.peers.process import ENVIRONMENT, Child

LOGS = Path("build/bench/logs")
_PATIENCE = 600.0  # seconds for a phase


class Memory(NamedTuple):
    rss: int = 0
    pss: int = 0
    uss: int = 0

    def most(self, other: Memory) -> Memory:
        return Memory(*map(max, self, other))

    def less(self, other: Memory) -> Memory:
        return Memory(*(a - b for a, b in zip(self, other, strict=True)))


class Seen(NamedTuple):
    """Resources of a rank: memory and processes with its workers, open files without."""

    memory: Memory
    files: int
    processes: int


class Ended(NamedTuple):
    """A phase that all ranks have ended: what each told, and what each had at its end.

    `from_disk` are the bytes that all of them had the disk read in the phase.
    """

    facts: list[dict[str, Any]]
    seen: list[Seen]
    from_disk: int

    @property
    def seconds(self) -> float:
        """Seconds of the slowest rank."""
        return max(float(each["seconds"]) for each in self.facts)

    @property
    def memory(self) -> Memory:
        """Sum over all ranks."""
        return total(each.memory for each in self.seen)


class Rank(Child):
    """A process that calls a function of a module of `benchmarks.peers` with options.

    `ours` runs in this environment, not in that of the peers; `environment` has further variables.
    """

    def __init__(
        self,
        name: str,
        function: str,
        options: dict[str, Any],
        *,
        ours: bool,
        environment: Mapping[str, str] = {},
    ) -> None:
        if not ours and not ENVIRONMENT.exists():
            raise Absent("not installed; run benchmarks/peers/install.sh")
        super().__init__(ours=ours, log=LOGS / f"{name}.log", environment=environment)
        self.tell({"function": function, "options": options})

    def hear(self) -> dict[str, Any]:
        """Return `phase`, `seconds` and other facts of the phase that ends next."""
        facts = super().hear()
        if facts["phase"] == "failed":
            raise Absent(f"{facts['reason']}; see {self.log}")
        return facts

    def look(self) -> Seen:
        found, files = [], 0
        with suppress(psutil.Error):
            own = psutil.Process(self.pid)
            files = own.num_fds()  # maps of files need none
            for each in (own, *own.children(recursive=True)):
                with suppress(psutil.Error):  # it has ended
                    memory = each.memory_full_info()
                    found.append(Memory(memory.rss, memory.pss, memory.uss))
        return Seen(total(found), files, len(found))

    def peak_rss(self) -> int:
        """Return the most bytes that the rank's own process had; pages of mapped files count."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])

    def bytes_from_disk(self) -> int:
        """Return the bytes that the rank's own process had the disk read so far."""
        return int(psutil.Process(self.pid).io_counters().read_bytes)


class Ranks(ExitStack):
    """Some ranks, which go from phase to phase together. Leaving the context ends them."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        super().__init__()
        self._ranks = ranks
        for rank in reversed(ranks):
            self.callback(rank.end)

    def phases(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield name and facts by rank of each phase when all have ended it.

        Absent is raised if a rank ended with an error, or takes too long.
        """
        while True:
            facts = self._wait()
            yield facts[0]["phase"], facts
            if facts[0]["phase"] == "end":
                return
            for rank in self._ranks:
                rank.tell("")

    def _wait(self) -> list[dict[str, Any]]:
        """Return the facts of all ranks. If one fails, others may wait for it forever."""
        waiting = {rank.output: number for number, rank in enumerate(self._ranks)}
        facts: dict[int, dict[str, Any]] = {}
        end = time.monotonic() + _PATIENCE
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(end - time.monotonic(), 0))
            if not ready:
                missing = sorted(waiting.values())
                raise Absent(f"ranks {missing} ended no phase in {_PATIENCE:.0f} s")
            for stream in ready:
                number = waiting.pop(stream)
                facts[number] = self._ranks[number].hear()
        return [facts[number] for number in range(len(self._ranks))]

    def follow(self, until: str = "end") -> dict[str, Ended]:
        """Look at the ranks whenever all have ended a phase, up to the end of one."""
        ended: dict[str, Ended] = {}
        before = 0
        for phase, facts in self.phases():
            now = sum(rank.bytes_from_disk() for rank in self._ranks)
            ended[phase] = Ended(facts, self.look(), now - before)
            before = now
            if phase == until:
                break
        return ended

    def look(self) -> list[Seen]:
        return [rank.look() for rank in self._ranks]

    def peak_rss(self) -> int:
        return max(rank.peak_rss() for rank in self._ranks)

    @contextmanager
    def watched(self, *, every: float, peak: Peak) -> Iterator[None]:
        """Sample the memory of the ranks `every` seconds, and keep the highest in `peak`."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(every):
                peak.add(self.look())

        thread = threading.Thread(target=watch, name="look")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


class Peak:
    """The most that was seen at one moment: `total` of all ranks, the rest of the largest."""

    def __init__(self) -> None:
        self.total = Memory()
        self.rank = Memory()
        self.files = 0

    def add(self, seen: Sequence[Seen]) -> None:
        self.total = self.total.most(total(rank.memory for rank in seen))
        for rank in seen:
            self.rank = self.rank.most(rank.memory)
            self.files = max(self.files, rank.files)


def total(memories: Iterable[Memory]) -> Memory:
    return Memory(*map(sum, zip(Memory(), *memories, strict=True)))


def megabytes(number: float) -> int:
    return round(number / 1e6)
