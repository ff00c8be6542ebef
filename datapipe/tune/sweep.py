"""Trials of several settings within a budget of time, in interleaved rounds."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from datapipe.progress import readable_size
from datapipe.tune.choice import MARGIN, Rounds, fastest, is_flat, settled
from datapipe.tune.setting import Setting
from datapipe.tune.trial import EmptyLoader, Machine, Make, Trial, TrialRun

logger = logging.getLogger(__name__)

TOUCH = -1
"""Round of the first trial, which loads files and imports for the others."""

_SHORTEST, _LONGEST = 0.3, 4.0  # seconds that count in a trial
_BATCHES = 160  # that a trial should count
_ROUNDS = 5  # that should fit into the budget
_ALONE = 3  # rounds where there is nothing to compare


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Goal of a sweep; the arguments of `tune_workers`."""

    budget: float = 60.0  # seconds
    step_time: float | None = None  # seconds of a step of training; None if unknown
    train: Callable[[Any], object] | None = None  # a step of training
    max_wait: float = 0.01  # share of its time that training may wait
    max_memory: float | None = None  # bytes; None for no limit
    margin: float = MARGIN  # share of the rate that is not worth a larger setting

    @property
    def is_paced(self) -> bool:
        """True if settings are tried at the speed of training."""
        return self.train is not None or self.step_time is not None


class Sweep:
    def __init__(
        self,
        make: Make,
        settings: Sequence[Setting],
        goal: Goal,
        machine: Machine,
        on_trial: Callable[[Trial], object],
    ) -> None:
        self.settings = list(settings)
        self.active = list(settings)  # that are not dropped
        self.trials: list[Trial] = []  # that counted batches, in order
        self.dropped: dict[Setting, str] = {}  # reasons
        self.error: Exception | None = None  # the first one that the loader raised
        self.goal, self.machine, self._make, self._on_trial = goal, machine, make, on_trial
        self.began = machine.clock()
        self._count = 0  # trials

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self.began + self.goal.budget - self.machine.clock()

    def look(self) -> None:
        """Try each number of workers once, smallest first, until more are no faster.

        Larger prefetch factors are tried later, with the numbers of workers that are left then.
        """
        for setting in self.settings:
            if self._try_one(setting, TOUCH, seconds=0.0) is not None or self.left <= 0:
                break
        for place in dict.fromkeys(setting.place for setting in self.settings):
            kind = [setting for setting in self.active if setting.place == place]
            ladder: dict[int, Setting] = {}
            for setting in kind:
                ladder.setdefault(setting.num_workers, setting)
            rates: list[float] = []
            for workers, setting in ladder.items():
                if is_flat(rates):
                    larger = [other for other in kind if other.num_workers >= workers]
                    self.drop(*larger, why="not tried, as fewer workers are as fast")
                    break
                trial = self._try_if_left(setting, self._seconds([*ladder.values()]), 0)
                rates += [trial.rate] if trial is not None else []

    def race(self) -> None:
        """Look, and try settings in rounds until all but one are dropped, or the time is up."""
        self.look()
        self._settle()
        number, alone = 1, len(self.settings) == 1
        while len(self.active) > 1 or (self.active and alone and number < _ALONE):
            turn = number % len(self.active)
            order = self.active[turn:] + self.active[:turn]
            seconds = self._seconds(order)
            tried = [self._try_if_left(setting, seconds, number) for setting in order]
            if not any(tried):
                break
            self._settle()
            number += 1

    def measure(self, setting: Setting) -> bool:
        """Try a setting as fast as batches come, once; return True if its rate is known."""
        if not self.unpaced(setting):
            self._try_if_left(setting, self._seconds([setting]), 0)
        return bool(self.unpaced(setting))

    def try_paced(self, setting: Setting, *, seconds: float, batches: int) -> Trial | None:
        step_time = self.goal.step_time or 0.0
        step = self.goal.train or (lambda _: self.machine.sleep(step_time))
        return self._try_one(setting, 0, seconds=seconds, batches=batches, step=step)

    def _try_one(
        self,
        setting: Setting,
        round: int,
        *,
        seconds: float,
        batches: int = 2,
        step: Callable[[Any], object] | None = None,
    ) -> Trial | None:
        run = TrialRun(
            setting=setting,
            machine=self.machine,
            seconds=seconds,
            deadline=self.began + self.goal.budget,
            batches=batches,
            step=step,
            max_memory=self.goal.max_memory,
            probe=round == 0 and step is None,  # takes some CPU time, so it is done once
            epoch=self._count,
        )
        self._count += 1
        try:
            trial = run.run(self._make, round=round)
        except EmptyLoader as error:
            self._discard(setting, str(error))
            return None
        except Exception as error:
            logger.info("with %s the loader raised", setting, exc_info=True)
            self.error = self.error or error
            self._discard(setting, f"raised {type(error).__name__}: {error}")
            return None
        if trial.over:
            taken, limit = map(readable_size, (trial.memory, int(self.goal.max_memory or 0)))
            why = f"took {taken}, more than max_memory, {limit}"
            self._discard(setting, why)
            larger = [other for other in self.active if other.covers(setting)]
            self.drop(*larger, why=f"needs at least the memory of {setting}, which {why}")
            return None
        if not trial.batches:
            return None
        self.trials.append(trial)
        self._on_trial(trial)
        return trial

    def drop(self, *settings: Setting, why: str) -> None:
        for setting in settings:
            self.dropped[setting] = why
            if setting in self.active:
                self.active.remove(setting)

    def _discard(self, setting: Setting, why: str) -> None:
        self.drop(setting, why=why)
        self.trials = [trial for trial in self.trials if trial.setting != setting]

    def unpaced(self, setting: Setting) -> list[Trial]:
        """Return the trials of a setting as fast as batches come; the first one if need be."""
        found = [t for t in self.trials if t.setting == setting and not t.paced]
        return [trial for trial in found if trial.round != TOUCH] or found

    def rounds(self) -> Rounds:
        """Return the rates of all rounds; of the first trial if there is no other."""
        found: dict[int, dict[Setting, float]] = {}
        for trial in self.trials:
            if not trial.paced and trial.rate > 0:
                found.setdefault(trial.round, {})[trial.setting] = trial.rate
        touched = found.pop(TOUCH, {})
        return list(found.values()) or [touched]

    def measured(self) -> list[Setting]:
        known = {setting for rates in self.rounds() for setting in rates}
        return [setting for setting in self.settings if setting in known]

    def fastest(self) -> Setting:
        return fastest(self.rounds(), self.measured())

    def rate(self, setting: Setting) -> float:
        """Return the batches a second of a measured setting, in a median trial."""
        return statistics.median(trial.rate for trial in self.unpaced(setting))

    def overhead(self, setting: Setting) -> float:
        """Estimate the seconds of a trial that do not count, from earlier ones."""
        own = [trial.overhead for trial in self.trials if trial.setting == setting]
        if own:
            return statistics.median(own[-3:])
        # Workers start one after the other, at worst, and their number is doubled.
        others = [t for t in self.trials if t.setting.place == setting.place]
        return 2 * max((t.overhead for t in others if t.round != TOUCH), default=0.0)

    def _try_if_left(self, setting: Setting, seconds: float, round: int) -> Trial | None:
        if setting not in self.active or self.overhead(setting) + seconds > self.left:
            return None
        return self._try_one(setting, round, seconds=seconds)

    def _seconds(self, settings: Sequence[Setting]) -> float:
        """Return the seconds of a trial: as long as its overhead, if there is time."""
        overhead = statistics.fmean(self.overhead(setting) for setting in settings)
        gaps = [1 / self.rate(setting) for setting in settings if self.unpaced(setting)]
        gap = statistics.median(gaps) if gaps else 0.0
        wanted = min(max(_SHORTEST, overhead, _BATCHES * gap), _LONGEST)
        share = self.goal.budget / (len(settings) * _ROUNDS) - overhead
        # Shorter trials would spend the time on starting; fewer rounds are better.
        return max(0.05, min(wanted, max(share, overhead / 2)))

    def _settle(self) -> None:
        measured = set(self.measured())
        if active := [setting for setting in self.active if setting in measured]:
            for setting, why in settled(self.rounds(), active, self.goal.margin).items():
                self.drop(setting, why=why)
        # A larger prefetch factor does not make up for a number of workers that is far off.
        kinds = {(s.place, s.num_workers): s for s in self.dropped if s in measured}
        for setting in [setting for setting in self.active if setting not in measured]:
            if smaller := kinds.get((setting.place, setting.num_workers)):
                self.drop(setting, why=f"not tried: {smaller} is {self.dropped[smaller]}")
