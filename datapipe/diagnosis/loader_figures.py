"""Figures of a loader at work, from which `loader_rules.py` concludes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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

    seconds: float  # that it was watched for
    workers: int  # 0 if it works in the caller's thread
    stages: Mapping[str, Stage] = field(default_factory=dict)  # of the workers, by name
    caller: Mapping[str, Stage] = field(default_factory=dict)  # of the thread that takes batches
    caller_cpu: float | None = None  # CPU seconds of that thread
    # seconds that it spent asking for batches, in a loop that does something else too
    asked: float | None = None
    idle: float = 0.0  # seconds that workers waited for work, summed over them
    usage: Usage | None = None  # of the machine; without it the loader's own clocks decide
    processes: bool = False  # whether workers are processes, each with a lock of its own
    waited: float | None = None  # share of its time that training of a known speed waited
    room: float | None = None  # how many times as much as that training takes the loader makes
    # stage whose library has threads of its own, whose CPU time the stage's clock does not see
    threaded: str | None = None
    scaling: float | None = None  # how many times the work of one thread all cores do

    @classmethod
    def of(cls, reading: Reading, **more: Any) -> LoaderFigures:
        """Take the figures of a loader's meter."""
        return cls(
            seconds=max(reading.seconds, 1e-9),
            workers=reading.workers,
            stages=reading.stages,
            caller=reading.caller,
            idle=reading.idle,
            **more,
        )

    @property
    def all_stages(self) -> dict[str, Stage]:
        """Stages of workers and caller together."""
        found = dict(self.stages)
        for name, stage in self.caller.items():
            found[name] = found.get(name, Stage()) + stage
        if self.threaded in found and self.usage is not None:
            unseen = max(0.0, self.usage.cpu - sum(stage.cpu for stage in found.values()))
            found[self.threaded] += Stage(cpu=unseen)
        return found

    @property
    def worked(self) -> Mapping[str, Stage]:
        """Stages of the threads that make batches: of the workers if there are any."""
        return self.stages if self.workers else self.all_stages
