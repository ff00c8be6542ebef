"""Comparison of settings within rounds, and the choice.

In a round every setting runs once, one after the other, so that they share the drift of the
machine. Two settings are compared by the ratio of their rates in the same round, and by the median
of these ratios. All functions are pure: equal rates give equal choices.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from datapipe.tune.setting import Setting

MARGIN = 0.03
"""Share of the rate that is not worth a larger setting."""

Rounds = Sequence[Mapping[Setting, float]]
"""Batches a second of the settings that took part in each round."""

_NEEDED = ((0.4, 1), (0.75, 2), (math.inf, 4))
"""Ratios, and after how many rounds such a ratio suffices to drop a setting. A disturbance lasts
longer than a trial, so few trials may all be wrong in the same way."""

_LEAST, _LEAST_OF_FEW = 0.05, 0.1  # spread of ratios at least; of fewer than four rounds
_DOUBT = 1.5  # errors, within which a setting is not measurably slower
_SURE = 2.5  # errors, beyond which more rounds would not change a comparison
_STEEP = 1.1  # times as fast as the best so far, at least, while adding workers helps


class Ratio(NamedTuple):
    """Rate of a setting as a share of another's."""

    median: float
    # low, high: quartiles over the rounds
    low: float
    high: float
    rounds: int  # in which both took part

    @property
    def error(self) -> float:
        """Error of the median: the spread of the ratios over the root of their number."""
        least = _LEAST if self.rounds > 3 else _LEAST_OF_FEW
        return max(self.high - self.low, least) / math.sqrt(self.rounds)

    def is_below(self, limit: float) -> bool:
        """Check that more rounds would not lift the ratio to a limit."""
        needed = next(rounds for most, rounds in _NEEDED if self.median < most)
        return self.rounds >= needed and self.median + _SURE * self.error < limit


def ratio(rounds: Rounds, setting: Setting, other: Setting) -> Ratio | None:
    """Compare two settings; None if no round has both."""
    found = sorted(
        rates[setting] / rates[other] for rates in rounds if setting in rates and other in rates
    )
    if not found:
        return None
    if len(found) == 1:
        return Ratio(found[0], found[0], found[0], 1)
    low, median, high = statistics.quantiles(found, n=4, method="inclusive")
    return Ratio(median, low, high, len(found))


def fastest(rounds: Rounds, settings: Sequence[Setting]) -> Setting:
    """Return the fastest setting: each is compared with the best so far, in the given order."""
    best = settings[0]
    for setting in settings[1:]:
        found = ratio(rounds, setting, best)
        if found is not None and found.median > 1:
            best = setting
    return best


def choose(rounds: Rounds, settings: Sequence[Setting], margin: float = MARGIN) -> Setting:
    """Choose the first of some settings that is not measurably slower than the fastest."""
    best = fastest(rounds, settings)
    for setting in settings:
        found = ratio(rounds, setting, best)
        if setting == best or (found and found.median + _DOUBT * found.error >= 1 - margin):
            return setting
    raise AssertionError("the fastest is one of the settings")


def settled(
    rounds: Rounds, settings: Sequence[Setting], margin: float = MARGIN
) -> dict[Setting, str]:
    """Find settings that further rounds would not make the choice, with the reason.

    They are slower than the fastest, or larger than the choice and no faster.
    """
    best = fastest(rounds, settings)
    chosen = choose(rounds, settings, margin)
    out: dict[Setting, str] = {}
    for setting in settings:
        found = ratio(rounds, setting, best)
        if found and found.is_below(1 - margin):
            out[setting] = f"{1 - found.median:.0%} slower than {best}"
            continue
        found = ratio(rounds, setting, chosen) if setting.size > chosen.size else None
        if found and found.is_below(1 + margin):
            out[setting] = f"not faster than {chosen}"
    return out


def is_flat(rates: Sequence[float]) -> bool:
    """Check that the last two of some rates, by number of workers, are no faster than the others.

    Two, because one worker may be no faster than none, and yet two faster than one.
    """
    return len(rates) > 2 and max(rates[-2:]) < _STEEP * max(rates[:-2])
