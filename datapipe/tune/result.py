"""Results of a sweep."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from datapipe.diagnosis.loader_rules import Limit
from datapipe.tune.choice import Ratio, ratio
from datapipe.tune.paced import WaitShare
from datapipe.tune.setting import Setting
from datapipe.tune.sweep import Sweep
from datapipe.tune.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Results of one setting. A figure that is not known is None."""

    setting: Setting
    rate: float | None = None  # batches a second, in a median trial
    ratio: Ratio | None = None  # of its rate to that of the fastest, in the same rounds
    samples: float | None = None  # a second
    startup: float | None = None  # seconds until the first batch, median
    memory: int | None = None  # most bytes of all processes
    trials: int = 0  # that counted, without those at the speed of training
    waiting: float | None = None  # share of its time that training waited
    out: str = ""  # why it was not tried to the end; empty if it was

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold."""
        own = {name: value for name, value in vars(self).items() if name != "setting"}
        ratio = self.ratio._asdict() if self.ratio is not None else None
        return self.setting.to_dict() | own | {"ratio": ratio}


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """The setting to take, and the figures behind it.

    Examples:
        >>> def make(**workers):
        ...     return datapipe.make_loader("shards/", batch_size=4, **workers)
        >>> result = datapipe.tune_workers(make, num_workers=(0, 1), prefetch_factor=(2,), budget=2)
        >>> result.num_workers in (0, 1)
        True
        >>> print(result)  # doctest: +SKIP
    """

    num_workers: int  # to take
    prefetch_factor: int | None  # to take; None without workers
    variant: Mapping[str, Any]  # further arguments of `make` to take, if several were tried
    rate: float  # batches a second
    samples_rate: float | None  # samples a second; None if batches do not tell their size
    # None without a step time: how many times faster than training the loader is, the share of its
    # time that training waits, and whether that is no longer than `max_wait`
    room: float | None
    waiting: float | None
    sufficient: bool | None
    step_time: float | None  # seconds of a step of training; None if there is none
    reason: str  # for this setting, and why a larger one does not help
    settled: bool  # whether the time sufficed to be sure
    limit: Limit | None  # of the loader with this setting; None if it was not measured
    settings: tuple[Tried, ...]  # all that were to be tried, smallest first
    trials: tuple[Trial, ...]  # all that counted batches, in order
    seconds: float  # that it took
    interrupted: bool = False  # whether Ctrl-C ended it early

    @property
    def chosen(self) -> Tried:
        """Results of the chosen setting."""
        workers = {"num_workers": self.num_workers, "prefetch_factor": self.prefetch_factor}
        wanted = workers | dict(self.variant)
        return next(tried for tried in self.settings if tried.setting.arguments == wanted)

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold, without the batches of trials."""
        own = {name: value for name, value in vars(self).items() if name != "variant"}
        return {
            **self.chosen.setting.to_dict(),
            **own,
            "limit": self.limit.to_dict() if self.limit is not None else None,
            "settings": [tried.to_dict() for tried in self.settings],
            "trials": [trial.to_dict() for trial in self.trials],
        }

    def __str__(self) -> str:
        return self.reason


def summarise(sweep: Sweep, waiting: Mapping[Setting, WaitShare]) -> tuple[Tried, ...]:
    """Return the results of each setting, smallest first."""
    return tuple(_tried(sweep, setting, waiting.get(setting)) for setting in sweep.settings)


def _tried(sweep: Sweep, setting: Setting, waiting: WaitShare | None) -> Tried:
    every = [trial for trial in sweep.trials if trial.setting == setting]
    found = Tried(
        setting=setting,
        startup=statistics.median(trial.startup for trial in every) if every else None,
        memory=max((trial.memory for trial in every), default=0) or None,
        waiting=waiting.share if waiting is not None else None,
        out=sweep.dropped.get(setting, ""),
    )
    unpaced = sweep.unpaced(setting)
    if not unpaced:
        return found
    rate = sweep.rate(setting)
    each = sum(t.samples for t in unpaced) / sum(t.batches for t in unpaced)
    return replace(
        found,
        rate=rate,
        ratio=ratio(sweep.rounds(), setting, sweep.fastest()),
        samples=rate * each if all(trial.samples for trial in unpaced) else None,
        trials=len(unpaced),
    )
