"""Figures of a loader at work, from which `loader_rules.py` concludes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datapipe.loader.metrics.meter import Reading, Stage
from datapipe.report.table import ratio


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Resources that this process and all its descendants took during some time."""

    seconds: float  # that passed
    cpu: float  # CPU seconds, those of descendants that have ended included
    cores: int  # that this process may use
    others: float  # CPU seconds that other processes took of these cores
    # share of the time, 0 to 1, that a thread would have waited for the interpreter's lock of this
    # process; None if it was not probed
    gil: float | None
    memory: int  # most bytes at any time; memory that processes share counts once
    # bytes that came from storage and not from the page cache; None if the system does not say
    read: int | None

    @property
    def busy(self) -> float:
        """Share of the cores' time, 0 to 1, that was in use, by others too."""
        return min(1.0, ratio(self.cpu + self.others, self.cores * self.seconds))

    @property
    def others_share(self) -> float:
        """Share of the cores' time that other processes took."""
        return ratio(self.others, self.cores * self.seconds)


@dataclass(frozen=True, kw_only=True)
class LoaderFigures:
    """A loader at work, as it was measured. Figures that are unknown are None or empty."""

    reading: Reading  # of its meter; without stages if it has none
    in_loop: bool = False  # whether the thread that takes batches does something else too
    caller_cpu: float | None = None  # CPU seconds of that thread
    usage: Usage | None = None  # of the machine; without it the loader's own clocks decide
    processes: bool = False  # whether workers are processes, each with a lock of its own
    waited: float | None = None  # share of its time that training of a known speed waited
    room: float | None = None  # how many times as much as that training takes the loader makes
    # stage whose library has threads of its own, whose CPU time the stage's clock does not see
    threaded: str | None = None
    scaling: float | None = None  # how many times the work of one thread all cores do

    @property
    def all_stages(self) -> dict[str, Stage]:
        found = self.reading.all_stages
        if self.threaded in found and self.usage is not None:
            unseen = max(0.0, self.usage.cpu - sum(stage.cpu for stage in found.values()))
            found[self.threaded] += Stage(cpu=unseen)
        return found

    @property
    def worked(self) -> Mapping[str, Stage]:
        """Stages of the threads that make batches: of the workers if there are any."""
        return self.reading.stages if self.reading.workers else self.all_stages
