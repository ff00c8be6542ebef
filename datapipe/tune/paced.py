"""Search for the smallest setting with which training waits little enough."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from datapipe.tune.effects import Effects, student
from datapipe.tune.setting import Setting
from datapipe.tune.sweep import Sweep
from datapipe.tune.trial import Trial

_UNPACED = 0.4  # of the budget, for finding the candidates
_SURE = 0.975
_CLEAR = math.log(1.4)  # distance from the needed rate at which one trial is enough
_BLOCK = 10  # steps whose waits are summed
_STEPS = 200  # that must have counted before a setting is taken early: rare waits must show
_MANY = 400  # steps after which more would change nothing
_HARDLY = 0.25  # of the waiting, or of the limit for it, that is not worth a larger setting
_PARTS = 3  # trials that the time for one setting is divided into


@dataclass(frozen=True, kw_only=True)
class WaitShare:
    """Time that training waits with a setting."""

    share: float  # of the time of training
    error: float  # standard error of `share`
    steps: int  # that counted
    step: float  # seconds of a step


def waiting(trials: list[Trial]) -> WaitShare | None:
    """Combine paced trials of one setting; None if none counted."""
    counted = [trial for trial in trials if trial.batches]
    if not counted:
        return None
    waits = [wait for trial in counted for wait in trial.waits]
    steps = len(waits)
    busy = sum(trial.busy for trial in counted)
    step = busy / steps
    total = sum(waits) + busy
    share = sum(waits) / total if total > 0 else 0.0
    blocks = [sum(waits[at : at + _BLOCK]) for at in range(0, steps - _BLOCK + 1, _BLOCK)]
    error = 0.0
    if len(blocks) > 1:
        error = statistics.stdev(blocks) * math.sqrt(len(blocks)) / total if total > 0 else 0.0
    return WaitShare(share=share, error=error, steps=steps, step=step)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The speed of training."""

    step: Callable[[Any], object]  # a step of training, or a sleep
    seconds: float | None  # of a step; None if it is to be measured
    max_wait: float  # share of its time that training may wait


def find_sufficient(sweep: Sweep, pace: Pace, found: dict[Setting, WaitShare]) -> Setting | None:
    """Find the smallest setting that keeps waiting under the limit; None if none does.

    A few trials as fast as batches come rule out settings that are slower than training; then the
    others are tried at its speed, smallest first. Their shares of waiting go into `found`.
    """
    budget = sweep.end - sweep.began
    seconds = pace.seconds
    sweep.round(sweep.active)
    if seconds is None:
        seconds = _measure_step(sweep, pace)
    while seconds is not None and sweep.left > (1 - _UNPACED) * budget:
        effects = sweep.effects()
        unclear = [s for s in sweep.active if effects and _is_unclear(effects, s, seconds, sweep)]
        if not unclear or not sweep.round(unclear):
            break
    effects = sweep.effects()
    if effects is None or seconds is None:
        return None
    candidates = []
    for setting in list(sweep.active):
        most = _room(effects, setting, seconds, _SURE)[1] if setting in effects.settings else 0.0
        if most >= 1 - pace.max_wait:
            candidates.append(setting)
        elif setting in effects.settings:
            sweep.dropped[setting] = f"makes at most {most:.2f} of what training takes"
    for number, setting in enumerate(candidates):
        share = 1 / min(3, len(candidates) - number)
        seen = _try_paced(sweep, setting, pace, seconds, sweep.left * share)
        if seen is None:
            continue
        found[setting] = seen
        if seen.share <= pace.max_wait:
            return setting
        sweep.dropped[setting] = f"keeps training waiting {seen.share:.1%} of its time"
    return None


def least_waiting(found: Mapping[Setting, WaitShare], max_wait: float) -> Setting | None:
    """Return the smallest setting that waits about as short as the best; None without any."""
    if not found:
        return None
    least = min(seen.share for seen in found.values())
    enough = least + max(max_wait, least) * _HARDLY
    return min((s for s, seen in found.items() if seen.share <= enough), key=lambda s: s.size)


def _try_paced(
    sweep: Sweep, setting: Setting, pace: Pace, seconds: float, allowed: float
) -> WaitShare | None:
    """Run at the speed of training until its share of waiting is clear, or the time is up."""
    end = sweep.tools.clock() + allowed
    trials: list[Trial] = []
    seen: WaitShare | None = None
    while True:
        left = min(end - sweep.tools.clock(), sweep.left)
        part = max(allowed / _PARTS, _BLOCK * 2 * seconds)
        aimed = min(part, _MANY * seconds, left - sweep.cost(setting, 0.0))
        if aimed < _BLOCK * seconds:
            return seen
        # 70 % of the steps count.
        trial = sweep.try_one(
            setting, seconds=0.7 * aimed, round=len(trials), step=pace.step, least=_BLOCK
        )
        if trial is None:
            return None if setting in sweep.dropped else seen
        trials.append(trial)
        seen = waiting(trials)
        if seen is None:
            return None
        reach = student(_SURE, max(3.0, seen.steps / _BLOCK)) * seen.error
        if seen.share - reach > pace.max_wait and seen.steps >= 2 * _BLOCK:
            return seen
        if seen.share + reach <= pace.max_wait and seen.steps >= _STEPS:
            return seen
        if seen.steps >= _MANY:
            return seen


def _measure_step(sweep: Sweep, pace: Pace) -> float | None:
    """Measure the seconds of a step of training, with the fastest setting so far."""
    effects = sweep.effects()
    if effects is None:
        return None
    fastest = max(effects.settings, key=lambda setting: effects.interval(setting)[0])
    trial = sweep.try_one(fastest, seconds=0.05 * sweep.left, round=0, step=pace.step, least=3)
    seen = waiting([trial]) if trial is not None else None
    return seen.step if seen is not None else None


def _is_unclear(effects: Effects, setting: Setting, seconds: float, sweep: Sweep) -> bool:
    """Check whether more trials could rule a setting in or out."""
    if setting not in effects.settings:
        return True
    room, most = _room(effects, setting, seconds, _SURE)
    if sweep.tried()[setting] > 1 or abs(math.log(room)) > _CLEAR:
        return abs(math.log(room)) < math.log(most / room) and sweep.tried()[setting] < 4
    return True


def _room(effects: Effects, setting: Setting, seconds: float, share: float) -> tuple[float, float]:
    """Return how many times faster than training a setting is, and an upper bound."""
    rate, _, most = effects.interval(setting, 2 * share - 1)
    return rate * seconds, most * seconds
