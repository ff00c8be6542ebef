"""Figures of a training loop, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from datapipe.diagnosis.loader_rules import Limit
from datapipe.diagnosis.rank_times import RankTimes
from datapipe.diagnosis.step_roofline import StepRoofline
from datapipe.report.page import Level

Kind = Literal[
    "data",
    "transfer",
    "communication",
    "straggler",
    "synchronisation",
    "loop",
    "host",
    "memory",
    "compute",
    "unknown",
]


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """A line of the loop that waited for the device, in the turns probed."""

    where: str  # file and line of the caller, outside of torch
    call: str  # such as `Tensor.item`
    count: int  # calls
    seconds: float  # of all of them
    turns: int  # number of probed turns that made the call


@dataclass(frozen=True, kw_only=True)
class DatasetShare:
    """Samples that a loop was given of a dataset of a mixture, and those that the plan gives it."""

    name: str
    samples: int  # without repeats at the end of an epoch
    tokens: int  # of these, without padding; 0 if batches have none
    share: float  # of all samples, 0 to 1
    planned: float  # share of all samples in the plan
    chance: float = 0.0  # standard deviation of `share` if all is as planned
    is_compared: bool = True  # false if a schedule changes the shares in the course of the run


@dataclass(frozen=True, kw_only=True)
class LoopFigures:
    """Measured shares of a training loop. Shares are of the loop's time, 0 to 1."""

    turns: int  # that they are of
    # wait, transfer, step, rest: on the host; together 1
    wait: float = 0.0
    transfer: float = 0.0
    step: float = 0.0
    rest: float = 0.0
    # share of time that the device had nothing to do between steps, from events on the device; None
    # without them
    idle: float | None = None
    device_transfer: float | None = None  # transfers on the device, likewise
    busy: float | None = None  # share of time that the GPU was busy, by NVML; None if it is unknown
    # blocked in calls that wait for the device; None if neither a probe nor the GPU's events tell
    synchronisation: float | None = None
    synchronisation_outside: float = 0.0  # the part of it outside of the step
    # in collectives that were recorded: while nothing else ran, and while other work did
    exchange: float = 0.0
    beside: float = 0.0
    operators: float | None = None  # of a step, in torch's operators; None if none was recorded
    ranks: RankTimes | None = None  # the same steps on other ranks
    roofline: StepRoofline | None = None  # of a step
    lines: tuple[Blocked, ...] = ()  # that were blocked, longest first
    waiter: str = ""  # operator that waited the most, without a probe
    marked: bool = True  # whether the loop marks its steps
    limit: Limit | None = None  # of a datapipe loader
    hints: tuple[str, ...] = ()  # on another loader
    datasets: tuple[DatasetShare, ...] = ()  # of a mixture

    @property
    def waiting(self) -> float:
        """Loss by waiting: no more than the device is idle between steps."""
        return self.wait if self.idle is None else min(self.wait, self.idle)

    @property
    def exchanging(self) -> float:
        """Loss by exchange with other ranks, without waiting for slower ones."""
        waiting = 0.0 if self.ranks is None else self.ranks.waiting
        return max(0.0, self.exchange - waiting)

    @property
    def straggling(self) -> float:
        """Loss as ranks wait: this one for a slower one, or others for this one's compute."""
        ranks = self.ranks
        if ranks is None:
            return 0.0
        holds = ranks.slowest is not None
        return max(ranks.waiting, ranks.holding * (1 - ranks.for_data) if holds else 0.0)

    @property
    def carrying(self) -> float:
        """Loss by transfers."""
        return self.transfer if self.device_transfer is None else self.device_transfer


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on a training loop."""

    kind: Kind  # "compute" is the good one
    sentence: str  # the finding, with figures
    actions: tuple[str, ...]  # the next things to do, most promising first
    level: Level

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"  - {action}" for action in self.actions)])
