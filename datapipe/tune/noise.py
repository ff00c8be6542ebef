"""Standard errors from few observations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

_CHUNKS = 8  # of a trial, to find out what is known from inside it


def student(share: float, freedom: float) -> float:
    """Quantile of Student's distribution, to 1 % from 3 degrees of freedom on.

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
    """Standard error of the logarithm of a rate, from its groups of batches alone.

    Groups that follow each other are not independent: what one has late, the next has at once. So
    they are taken together to a few long ones first.
    """
    chunks = min(len(cycles), _CHUNKS)
    if chunks < 2:
        return 0.1  # nothing is known; half of what a busy machine does
    edges = [len(cycles) * at // chunks for at in range(chunks + 1)]
    means = [statistics.fmean(cycles[start:stop]) for start, stop in pairwise(edges)]
    return statistics.stdev(means) / max(statistics.fmean(means), 1e-12) / math.sqrt(chunks)
