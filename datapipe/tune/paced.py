"""Search for the smallest setting with which training waits little enough."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from datapipe.tune.setting import Setting
from datapipe.tune.sweep import Sweep
from datapipe.tune.trial import Trial

_HOPELESS = 0.7  # of the rate of training and of the fastest setting, below which one is left out
_BLOCK = 10  # steps whose waits are summed
_STEPS = 200  # that must have counted before a setting is taken: rare waits must show
_MANY = 400  # steps after which more would change nothing
_SURE = 2.0  # standard errors
_HARDLY = 0.25  # of the waiting that is not worth a larger setting
_PARTS = 3  # trials that the time for one setting is divided into


@dataclass(frozen=True, kw_only=True)
class WaitShare:
    """Time that training waits with a setting."""

    share: float  # of the time of training
    error: float  # standard error of `share`
    steps: int  # that counted
    step: float  # seconds of a step

    @classmethod
    def of(cls, *trials: Trial | None) -> WaitShare | None:
        """Combine paced trials of one setting; None if none counted."""
        counted = [trial for trial in trials if trial is not None]
        waits = [wait for trial in counted for wait in trial.waits]
        if not waits:
            return None
        busy = sum(trial.busy for trial in counted)
        total = max(sum(waits) + busy, 1e-9)
        blocks = [sum(waits[at : at + _BLOCK]) for at in range(0, len(waits) - _BLOCK + 1, _BLOCK)]
        error = 0.0
        if len(blocks) > 1:
            error = statistics.stdev(blocks) * math.sqrt(len(blocks)) / total
        share = sum(waits) / total
        return cls(share=share, error=error, steps=len(waits), step=busy / len(waits))

    def suffices(self, most: float) -> bool | None:
        """Check that training waits `most` of its time at most; None if more steps must tell."""
        reach = _SURE * self.error
        if self.steps >= _MANY:
            return self.share <= most
        if self.steps >= 2 * _BLOCK and self.share - reach > most:
            return False
        return True if self.steps >= _STEPS and self.share + reach <= most else None


def find_sufficient(sweep: Sweep, found: dict[Setting, WaitShare]) -> None:
    """Try settings at the speed of training, smallest first, until one keeps waiting short enough.

    A look at the rates comes first, and leaves out what is far too slow. Shares of waiting go into
    `found`.
    """
    sweep.look()
    rates: dict[tuple[int, int], float] = {}  # by number of the variant, and of workers
    for setting in sweep.measured():
        rates.setdefault((setting.place, setting.num_workers), sweep.rate(setting))
    seconds = sweep.goal.step_time
    if rates and seconds is None:
        best = max(sweep.measured(), key=sweep.rate)
        first = WaitShare.of(sweep.try_paced(best, seconds=0.05 * sweep.left, batches=3))
        seconds = None if first is None else first.step
    if not rates or seconds is None:
        return
    needed = min(1 / seconds, sweep.rate(sweep.fastest()))
    candidates = list(sweep.active)
    for number, setting in enumerate(candidates):
        rate = rates.get((setting.place, setting.num_workers), math.inf)
        if rate < _HOPELESS * needed:
            sweep.drop(setting, why=f"makes {rate * seconds:.2f} of what training takes")
        if setting not in sweep.active or not sweep.measure(setting):
            continue
        share = 1 / min(3, len(candidates) - number)
        seen = _try_paced(sweep, setting, seconds, sweep.left * share)
        if seen is None:
            continue
        found[setting] = seen
        if seen.share <= sweep.goal.max_wait:
            return
        sweep.drop(setting, why=f"keeps training waiting {seen.share:.1%} of its time")


def least_waiting(found: Mapping[Setting, WaitShare], max_wait: float) -> Setting | None:
    """Return the smallest setting that waits little enough, or else about as little as any.

    None if nothing was found.
    """
    if not found:
        return None
    least = min(seen.share for seen in found.values())
    enough = max_wait if least <= max_wait else least * (1 + _HARDLY)
    return min((s for s, seen in found.items() if seen.share <= enough), key=lambda s: s.size)


def _try_paced(sweep: Sweep, setting: Setting, seconds: float, allowed: float) -> WaitShare | None:
    """Run at the speed of training until its share of waiting is clear, or the time is up."""
    end = sweep.machine.clock() + allowed
    part = max(allowed / _PARTS, _BLOCK * 2 * seconds)
    trials: list[Trial] = []
    seen: WaitShare | None = None
    while seen is None or seen.suffices(sweep.goal.max_wait) is None:
        left = min(end - sweep.machine.clock(), sweep.left)
        aimed = min(part, _MANY * seconds, left - sweep.overhead(setting))
        if aimed < _BLOCK * seconds:
            break
        # 70 % of the steps count.
        trial = sweep.try_paced(setting, seconds=0.7 * aimed, batches=_BLOCK)
        if trial is None:
            break
        trials.append(trial)
        seen = WaitShare.of(*trials)
    return seen if setting in sweep.active else None
