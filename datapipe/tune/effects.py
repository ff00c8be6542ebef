"""Rates of several settings from interleaved trials on a machine that drifts, and the choice.

The logarithm of a rate is modelled as the sum of an effect of the setting, an effect of the round,
and noise. All settings of a round share its drift, which cancels in every comparison. The fit is
Huber's (Robust Statistics, 1981): outliers count for less. The noise is pooled over all settings;
with few rounds, the spread of the batches inside the trials counts too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from datapipe.array_types import Float64
from datapipe.tune.setting import Setting

MARGIN = 0.03
"""Share of the rate that is not worth a larger setting."""

_DOUBT = 0.5  # standard errors, beside those by which the best of several is overestimated
_RIVAL = 3.0  # standard errors behind the best, within which a setting may be the best
_SLOWER = 0.995  # confidence that a setting is slower than the best
_SAME = 0.975  # confidence that a larger one is not faster
_TRIALS = ((math.log(2.5), 1), (math.log(1.3), 2), (0.0, 4))
"""Gaps behind the best, and after how many trials they suffice to drop a setting. A disturbance
lasts longer than a trial, so few trials may all be wrong in the same way."""

_CHUNKS = 8  # of a trial, for its noise from inside
_HUBER = 1.345  # of Huber's weights: 95 % efficient where the noise is normal
_STEPS = 6  # of the fit
_PRIOR = 3.0  # trials that the noise from inside is worth, at 0 degrees of freedom
_ENOUGH = 6  # degrees of freedom at which it is worth half of that
_LEAST = 0.01  # noise at least
_DISTURBED = 0.15  # of the cores' time, from which on a trial counts half
_MAD = 1.4826  # standard deviations of a normal distribution in a median absolute deviation


class Observation(NamedTuple):
    """One trial."""

    setting: Setting
    round: int
    log_rate: float
    noise: float  # standard error of `log_rate`, from inside the trial
    others: float = 0.0  # share of the cores' time that other processes took meanwhile


@dataclass(frozen=True)
class Effects:
    """Effects of the settings."""

    settings: tuple[Setting, ...]  # in the order of the arrays
    log_rate: Float64  # float64 [n], in the mean round
    covariance: Float64  # float64 [n, n] of `log_rate`
    freedom: float  # degrees of freedom of the noise
    noise: float  # standard deviation of a trial's log rate

    def gap(self, faster: Setting, slower: Setting) -> tuple[float, float]:
        """Return the log ratio of two rates, and its standard error."""
        a, b = self.settings.index(faster), self.settings.index(slower)
        gap = float(self.log_rate[a] - self.log_rate[b])
        c = self.covariance
        return gap, math.sqrt(max(0.0, float(c[a, a] + c[b, b] - 2 * c[a, b])))

    def quantile(self, share: float) -> float:
        """Return the quantile of errors in units of their standard error."""
        return student(share, self.freedom)

    def interval(self, setting: Setting, share: float = 0.95) -> tuple[float, float, float]:
        """Return the rate, and bounds that contain it with a probability of `share`."""
        at = self.settings.index(setting)
        middle, error = float(self.log_rate[at]), math.sqrt(float(self.covariance[at, at]))
        reach = self.quantile((1 + share) / 2) * error
        return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


def fit(observations: Sequence[Observation]) -> Effects:
    """Separate settings, rounds and noise. At least one observation is needed."""
    settings = tuple(sorted({seen.setting for seen in observations}, key=lambda s: s.size))
    rounds = sorted({seen.round for seen in observations})
    values = np.array([seen.log_rate for seen in observations])
    rows = np.arange(len(observations))
    of_settings = np.zeros((len(rows), len(settings)))
    of_settings[rows, [settings.index(seen.setting) for seen in observations]] = 1
    of_rounds = np.zeros((len(rows), len(rounds)))
    of_rounds[rows, [rounds.index(seen.round) for seen in observations]] = 1
    # Effects of rounds sum to 0, so that the effect of a setting is its rate in a mean round.
    design = np.hstack([of_settings, of_rounds[:, :-1] - of_rounds[:, -1:]])
    inside = statistics.median(seen.noise for seen in observations)
    freedom = max(0, len(rows) - np.linalg.matrix_rank(design))
    # Trials that other processes disturbed more or less than the median count for less.
    others = np.array([seen.others for seen in observations])
    undisturbed = 1 / (1 + ((others - np.median(others)) / _DISTURBED) ** 2)
    weights = undisturbed
    noise = max(inside, _LEAST)
    for _ in range(_STEPS):
        weighted = weights[:, None] * design
        found, *_ = np.linalg.lstsq(design.T @ weighted, weighted.T @ values, rcond=None)
        residuals = np.abs(values - design @ found)
        noise = _pooled(residuals, weights, freedom, inside)
        scale = max(_scale(residuals, freedom), _LEAST / 2) if freedom > 1 else noise
        weights = undisturbed * np.minimum(1.0, _HUBER * scale / np.maximum(residuals, 1e-12))
    information = design.T @ (weights[:, None] * design)
    covariance: Float64 = np.asarray(noise**2 * np.linalg.pinv(information), np.float64)
    number = len(settings)
    return Effects(
        settings=settings,
        log_rate=found[:number],
        covariance=covariance[:number, :number],
        freedom=freedom + _PRIOR,
        noise=noise,
    )


def _scale(residuals: Float64, freedom: int) -> float:
    return float(_MAD * np.median(residuals)) * math.sqrt(len(residuals) / max(freedom, 1))


def _pooled(residuals: Float64, weights: Float64, freedom: int, inside: float) -> float:
    """Estimate the standard deviation of a trial, from the residuals and from inside the trials."""
    between = float(np.sum(weights * residuals**2))
    prior = _PRIOR / (1 + freedom / _ENOUGH)
    return math.sqrt((between + prior * max(inside, _LEAST) ** 2) / (freedom + prior))


def student(share: float, freedom: float) -> float:
    """Compute a quantile of Student's distribution, to 1 % from 3 degrees of freedom on.

    Expansion of Cornish and Fisher; Abramowitz and Stegun 26.7.5.
    """
    z = statistics.NormalDist().inv_cdf(share)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def inner_noise(cycles: Sequence[float]) -> float:
    """Estimate the standard error of the logarithm of a rate from its groups of batches alone.

    Consecutive groups are not independent: a batch that is late in one comes early in the next. So
    they are joined to a few long ones first.
    """
    chunks = min(len(cycles), _CHUNKS)
    if chunks < 2:
        return 0.1  # unknown: half the noise of a busy machine
    edges = [len(cycles) * at // chunks for at in range(chunks + 1)]
    means = [statistics.fmean(cycles[start:stop]) for start, stop in pairwise(edges)]
    return statistics.stdev(means) / max(statistics.fmean(means), 1e-12) / math.sqrt(chunks)


def choose(effects: Effects, candidates: Iterable[Setting], margin: float = MARGIN) -> Setting:
    """Choose the smallest setting whose rate is not worse than the best beyond margin and noise."""
    ordered = sorted(candidates, key=lambda setting: setting.size)
    best = max(ordered, key=lambda setting: effects.interval(setting)[0])
    gaps = {setting: effects.gap(best, setting) for setting in ordered}
    worth = -math.log1p(-margin)
    rivals = sum(gap <= worth + _RIVAL * error for gap, error in gaps.values())
    doubt = _DOUBT + _luck(rivals)
    return next(s for s in ordered if gaps[s][0] <= worth + doubt * gaps[s][1])


def _luck(number: int) -> float:
    """Return by how many standard errors the best of several equal ones is overestimated.

    Blom's approximation of the expected largest of so many normal numbers.
    """
    return statistics.NormalDist().inv_cdf((number - 0.375) / (number + 0.25))


def settled(
    effects: Effects,
    candidates: Iterable[Setting],
    tried: dict[Setting, int],
    margin: float = MARGIN,
) -> dict[Setting, str]:
    """Find candidates that further trials would not make the choice, with the reason.

    They are slower than the best, or larger than the smallest good one and not faster.
    """
    ordered = sorted(candidates, key=lambda setting: setting.size)
    worth = -math.log1p(-margin)
    best = max(ordered, key=lambda setting: effects.interval(setting)[0])
    slower, same = effects.quantile(_SLOWER), effects.quantile(_SAME)
    out: dict[Setting, str] = {}
    for setting in ordered:
        gap, error = effects.gap(best, setting)
        needed = next(trials for least, trials in _TRIALS if gap >= least)
        enough = min(tried[setting], tried[best]) >= needed
        if setting is not best and enough and gap - slower * error > worth:
            out[setting] = f"{-math.expm1(-gap):.0%} slower than {best}"
    smallest = choose(effects, ordered, margin)
    for setting in ordered:
        if setting.size <= smallest.size or setting in out or tried[setting] < 2:
            continue
        gap, error = effects.gap(setting, smallest)
        if tried[smallest] > 1 and gap + same * error < worth:
            out[setting] = f"not faster than {smallest}"
    return out
