"""Figures of a training loop, and the verdict on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from datapipe.diagnosis.loader_rules import Limit
from datapipe.diagnosis.step_figures import RankTimes, StepRoofline
from datapipe.report.page import Level

_Loss = Literal["data", "transfer", "communication", "straggler", "synchronisation", "loop"]
Kind = Literal[_Loss, "host", "memory", "compute", "unknown"]


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
class SampledSteps:
    """Steps that torch's profiler recorded: medians. Shares of their time are 0 to 1."""

    steps: int = 0  # their number
    exchange: float = 0.0  # in collectives while nothing else ran, or a slower rank was waited for
    # in collectives while other work ran: on a GPU they are hidden, on the CPU they take processors
    beside: float = 0.0
    synchronisation: float = 0.0  # in which the host waited for the GPU
    waiter: str = ""  # operator that did so for the most time; "" without any
    busy: float | None = None  # in which the GPU had work; None without a GPU
    operators: float = 0.0  # in torch's operators
    ranks: RankTimes | None = None  # the same steps on other ranks; None without any
    roofline: StepRoofline | None = None  # of the fastest step; None if peaks are not known


@dataclass(frozen=True, kw_only=True)
class LoopFigures:
    """Measured shares of a training loop. Shares are fractions of the loop's time, 0 to 1."""

    turns: int  # in which they were measured
    left_out: Mapping[str, int] = field(default_factory=dict)  # turns that were not, by reason
    # wait, transfer, step, rest: on the host; together 1
    wait: float = 0.0
    transfer: float = 0.0
    step: float = 0.0
    rest: float = 0.0
    # share of time that the device had nothing to do between steps, from events on the device; None
    # without them
    idle: float | None = None
    device_transfer: float | None = None  # transfers on the device, likewise
    utilization: float | None = None  # share of time that the GPU was busy, by NVML
    recorded: SampledSteps = SampledSteps()
    marked: bool = True  # whether the loop marks its steps
    limit: Limit | None = None  # of a datapipe loader
    hints: tuple[str, ...] = ()  # on another loader
    datasets: tuple[DatasetShare, ...] = ()  # of a mixture

    @property
    def busy(self) -> float | None:
        """Share of time that the GPU was busy; None if it is not known."""
        # NVML sees all steps at their own speed.
        return self.recorded.busy if self.utilization is None else self.utilization

    @property
    def waiting(self) -> float:
        """Loss by waiting: no more than the device is idle between steps."""
        return self.wait if self.idle is None else min(self.wait, self.idle)

    @property
    def exchanging(self) -> float:
        """Loss by exchange with other ranks, without waiting for slower ones."""
        ranks = self.recorded.ranks
        return max(0.0, self.recorded.exchange - (0.0 if ranks is None else ranks.waiting))

    @property
    def straggling(self) -> float:
        """Loss as ranks wait: this one for a slower one, or others for this one's compute."""
        ranks = self.recorded.ranks
        if ranks is None:
            return 0.0
        holds = ranks.slowest is not None
        return max(ranks.waiting, ranks.holding * (1 - ranks.for_data) if holds else 0.0)

    @property
    def carrying(self) -> float:
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
