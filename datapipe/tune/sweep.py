"""Interleaved rounds of trials that drop settings as they are settled, within a budget of time."""

from __future__ import annotations

import logging
import math
import random
import signal
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self

from datapipe.tune.effects import Effects, Observation, fit, inner_noise, settled
from datapipe.tune.setting import Setting
from datapipe.tune.trial import Aim, EmptyLoader, Make, Trial, Watcher, run_trial

logger = logging.getLogger(__name__)

TOUCH = -1
"""Round of the first trial, which loads files and imports for the others."""

_SHORTEST, _LONGEST = 0.3, 3.0  # seconds of a segment
_FIRST, _BATCHES = 20, 80  # batches that a segment of the first round and later should have
_LENGTHS = (0.75, 1.5)  # of a segment, relative to what is aimed at
_ROUNDS = 4  # that should fit into what is left of the budget
_ALONE = 3  # rounds where there is nothing to compare


class Interrupt:
    """Context that remembers a Ctrl-C, which may come while `__del__` or a callback runs.

    Python swallows an exception there, and a sweep would go on for minutes.

    Attributes:
        came: whether SIGINT raised `KeyboardInterrupt` anywhere since this was entered.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: object = None

    def check(self) -> None:
        """Raise a swallowed interrupt.

        Raises:
            KeyboardInterrupt: Ctrl-C came.
        """
        if self.came:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        # Only the main thread may set handlers; it is also the one that Ctrl-C interrupts.
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                signal.signal(signal.SIGINT, self._remember)
                self._before = before
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self.check()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        assert callable(self._before)
        try:
            self._before(number, frame)
        except KeyboardInterrupt:
            self.came = True
            raise


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Options of a sweep."""

    make: Make  # as for `tune_workers`
    clock: Callable[[], float]  # seconds
    # makes a meter of memory and CPU time for a trial, with the argument whether to probe the
    # interpreter's lock too; None for none
    watcher: Callable[[bool], Watcher] | None
    max_memory: float | None  # bytes; None for no limit
    margin: float  # share of the rate that is not worth a larger setting
    seed: int  # of the order of trials
    on_trial: Callable[[], object]  # called after each trial, failed ones included
    interrupt: Interrupt = field(default_factory=Interrupt)


class Sweep:
    """Trials of some settings, and their results so far.

    Attributes:
        settings: all, smallest first.
        active: settings that are not dropped.
        trials: all that counted batches, in order.
        dropped: reasons by setting.
        failed: errors of the loader by setting.
    """

    def __init__(self, settings: Sequence[Setting], budget: float, tools: Tools) -> None:
        self.settings = list(settings)
        self.active = list(settings)
        self.trials: list[Trial] = []
        self.dropped: dict[Setting, str] = {}
        self.failed: dict[Setting, Exception] = {}
        self.began = tools.clock()
        self.end = self.began + budget
        self.tools = tools
        self._random = random.Random(tools.seed)
        self._round = 0
        self._count = 0  # trials, for the epochs of datapipe loaders
        self._whole = False
        self._probed: set[Setting] = set()

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self.end - self.tools.clock()

    def touch(self) -> None:
        """Try the smallest setting once, briefly; the next one if it fails."""
        for setting in self.settings:
            if self.try_one(setting, seconds=0.0, round=TOUCH) is not None or self.left <= 0:
                return

    def run(self) -> None:
        """Try settings until all but one are dropped, or the time is up."""
        alone = len(self.active) == 1
        while self.active:
            if not self.round(self.active):
                break
            self._drop_settled()
            if len(self.active) <= 1 and not (alone and self._round < _ALONE):
                break

    def round(self, settings: Sequence[Setting]) -> bool:
        """Try each setting once more, in random order; return whether there was time for any."""
        seconds = self._seconds(settings)
        any_tried = False
        for setting in self._order(settings):
            # Random lengths: what recurs after some number of batches must not always be in step.
            now = seconds * self._random.uniform(*_LENGTHS)
            if setting not in self.active or self.cost(setting, now) > self.left:
                continue
            self.try_one(setting, seconds=now, round=self._round)
            any_tried = True
        self._round += 1
        return any_tried

    def try_one(
        self,
        setting: Setting,
        *,
        seconds: float,
        round: int,
        step: Callable[[Any], object] | None = None,
        least: int = 2,
    ) -> Trial | None:
        """Run one trial; None if it failed, took too much memory, or counted nothing."""
        tools = self.tools
        tools.interrupt.check()
        # Probing takes some CPU time, so it is done once.
        probe = round != TOUCH and step is None and setting not in self._probed
        aim = Aim(
            seconds=seconds,
            deadline=self.end,
            least=least,
            step=step,
            whole=self._whole,
            max_memory=tools.max_memory,
        )
        self._count += 1
        try:
            trial = run_trial(
                tools.make,
                setting,
                aim,
                round=round,
                clock=tools.clock,
                watcher=tools.watcher(probe) if tools.watcher is not None else None,
                meter_stages=probe,
                epoch=self._count - 1,
            )
        except Exception as error:
            reason = f"raised {type(error).__name__}: {error}"
            if isinstance(error, EmptyLoader):
                reason = str(error)
            else:
                logger.info("with %s the loader raised", setting, exc_info=True)
            self.failed[setting] = error
            self._drop(setting, reason)
            tools.on_trial()
            return None
        if trial.over:
            self._exclude(setting, trial)
            return None
        if trial.batches:
            self.trials.append(trial)
            if probe:
                self._probed.add(setting)
        self._look_at_length(trial)
        tools.on_trial()
        return trial if trial.batches else None

    def unpaced(self) -> list[Trial]:
        """Return the trials as fast as batches come, without the first one."""
        return [trial for trial in self.trials if not trial.paced and trial.round != TOUCH]

    def effects(self) -> Effects | None:
        """Estimate the settings' rates; None before the first trial that counts."""
        counted = self.unpaced() or [trial for trial in self.trials if not trial.paced]
        seen = [
            Observation(
                setting=trial.setting,
                round=trial.round,
                log_rate=math.log(trial.rate),
                noise=inner_noise(trial.cycles),
                others=trial.usage.others_share if trial.usage is not None else 0.0,
            )
            for trial in counted
            if trial.setting not in self.failed and trial.rate > 0
        ]
        return fit(seen) if seen else None

    def tried(self) -> dict[Setting, int]:
        """Count the trials of each setting that counted."""
        counts = Counter(trial.setting for trial in self.unpaced())
        return {setting: counts[setting] for setting in self.settings}

    def cost(self, setting: Setting, seconds: float) -> float:
        """Estimate the seconds of a trial whose segment has at least `seconds`."""
        cycle = max(1, setting.num_workers) * self._gap(setting)
        return self._overhead(setting) + max(seconds, cycle)

    def _overhead(self, setting: Setting) -> float:
        """Estimate the seconds of a trial that do not count, from earlier ones."""
        own = [trial for trial in self.trials if trial.setting == setting]
        if own:
            return statistics.median(_overhead(trial) for trial in own[-3:])
        workers = max(1, setting.num_workers)
        # Workers start one after the other, at worst.
        return max(
            (
                _overhead(trial)
                * min(4.0, max(1.0, workers / max(1, trial.setting.num_workers)))
                * (0.5 if trial.round == TOUCH else 1.0)
                for trial in self.trials
                if trial.setting.variant == setting.variant
            ),
            default=0.0,
        )

    def _gap(self, setting: Setting) -> float:
        """Estimate the seconds from batch to batch; of untried settings, as if workers added up."""
        own = [1 / trial.rate for trial in self.trials if trial.setting == setting]
        if own:
            return statistics.median(own)
        alone = [max(1, t.setting.num_workers) / t.rate for t in self.trials if not t.paced]
        return statistics.median(alone) / max(1, setting.num_workers) if alone else 0.0

    def _drop_settled(self) -> None:
        effects = self.effects()
        measured = [s for s in self.active if effects is not None and s in effects.settings]
        if effects is None or len(measured) < 2:
            return
        found = settled(effects, measured, self.tried(), self.tools.margin)
        for setting, reason in found.items():
            self.dropped[setting] = reason
            self.active.remove(setting)

    def _seconds(self, settings: Sequence[Setting]) -> float:
        """Return the seconds of a segment: as long as the overhead of a trial, if there is time."""
        overhead = statistics.fmean(self._overhead(setting) for setting in settings)
        gap = statistics.median(self._gap(setting) for setting in settings)
        # Short trials suffice in the first round, which finds the hopeless settings.
        wanted = max(_SHORTEST, overhead, (_BATCHES if self._round else _FIRST) * gap)
        rounds = max(1, _ROUNDS - self._round) if self._round else _ROUNDS
        share = self.left / (len(settings) * rounds) - overhead
        # Shorter segments would spend the time on starting; fewer rounds are better.
        fair = max(0.05, self.left / len(settings) - overhead)
        least = min(max(_SHORTEST, overhead / 2), fair)
        return max(least, min(wanted, share, _LONGEST))

    def _order(self, settings: Sequence[Setting]) -> list[Setting]:
        order = list(settings)
        self._random.shuffle(order)
        if not self._round:
            # One of each number of workers first, for when time runs out.
            least = min(
                (s.prefetch_factor or 0) for s in settings if s.num_workers or s is order[0]
            )
            order.sort(key=lambda setting: (setting.prefetch_factor or least) > least)
        return order

    def _exclude(self, setting: Setting, trial: Trial) -> None:
        """Drop a setting that took too much memory, and those that would take as much."""
        limit = self.tools.max_memory or 0
        reason = f"took {trial.memory / 1e9:.1f} GB, more than max_memory, {limit / 1e9:.1f} GB"
        self._drop(setting, reason)
        for other in list(self.active):
            if other.covers(setting):
                self._drop(other, f"needs at least the memory of {setting}, which {reason}")
        self.tools.on_trial()

    def _drop(self, setting: Setting, reason: str) -> None:
        self.dropped[setting] = reason
        self.trials = [trial for trial in self.trials if trial.setting != setting]
        if setting in self.active:
            self.active.remove(setting)

    def _look_at_length(self, trial: Trial) -> None:
        """Compare whole passes from now on if passes are shorter than what would be left out."""
        most = max(2, max(setting.num_workers for setting in self.settings))
        if not self._whole and trial.length is not None and trial.length <= 2 * most:
            self._whole = True
            self.trials = [kept for kept in self.trials if kept.round == TOUCH]


def _overhead(trial: Trial) -> float:
    return max(0.0, trial.total - trial.seconds)
