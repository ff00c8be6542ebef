"""The global order looks uniformly random, also compared with that of the epoch before.

Each statistic is a z-score: about standard normal for a uniformly random order. Keys are fixed, so
a test passes or fails for ever.
"""

import numpy as np
import pytest

from datapipe.plan.order import Permutation
from datapipe.plan.rng import derive

SIZE = 100_000
SHARD = 1000
KEYS = range(8)
LIMIT = 4.5  # exceeded once in 150,000 looks at a normal score; some 100 are looked at


def position_correlation(order):
    """Whether what stands early in the dataset comes early (Spearman's rank correlation)."""
    return float(np.corrcoef(np.arange(len(order)), order)[0, 1] * np.sqrt(len(order) - 1))


def serial_correlation(order):
    """Whether samples near each other in the order are alike; the largest over some lags."""
    lags = (1, 2, 3, 4, 5, 6, 7, 8, 16, 64, 256, 1024)
    scores = [np.corrcoef(order[:-lag], order[lag:])[0, 1] * np.sqrt(len(order)) for lag in lags]
    return float(max(scores, key=abs))


def shard_mixing(order):
    """Whether every stretch of the order draws evenly from every shard (chi-square)."""
    shards = len(order) // SHARD
    cell = (np.arange(len(order)) // SHARD) * shards + order // SHARD
    counts = np.bincount(cell, minlength=shards**2)
    expected = SHARD / shards
    chi = ((counts - expected) ** 2 / expected).sum()
    freedom = (shards - 1) ** 2
    return float((chi - freedom) / np.sqrt(2 * freedom))


def runs(order):
    """Whether ups and downs alternate as they should (Wald and Wolfowitz: (16 n - 29) / 90)."""
    size = len(order)
    rising = np.diff(order) > 0
    count = 1 + np.count_nonzero(rising[1:] != rising[:-1])
    return float((count - (2 * size - 1) / 3) / np.sqrt((16 * size - 29) / 90))


def gaps(order):
    """Whether distances between neighbours are spread as those of random pairs (chi-square)."""
    distance = np.abs(order[1::2] - order[::2][: len(order) // 2]) / len(order)
    # P(distance < d) = 1 - (1 - d)^2, so this is uniform.
    share = 1 - (1 - distance) ** 2
    return _evenness(share, bins=200)


def low_bits(order):
    """Whether the low bits of neighbours are independent (chi-square over 8 by 8 cells)."""
    pairs = order[: len(order) // 2 * 2].reshape(-1, 2) % 8
    return _evenness((pairs[:, 0] * 8 + pairs[:, 1] + 0.5) / 64, bins=64)


def _evenness(shares, bins):
    counts = np.bincount(np.minimum((shares * bins).astype(np.int64), bins - 1), minlength=bins)
    expected = len(shares) / bins
    chi = ((counts - expected) ** 2 / expected).sum()
    return float((chi - (bins - 1)) / np.sqrt(2 * (bins - 1)))


def ours(key):
    return Permutation(SIZE, key)(np.arange(SIZE))


def moves(key):
    """Positions in an epoch of the samples of the epoch before: uniform if independent."""
    earlier, later = (Permutation(SIZE, derive(7, epoch)) for epoch in (key, key + 1))
    return later.inverse(earlier(np.arange(SIZE)))


STATISTICS = [position_correlation, serial_correlation, shard_mixing, runs, gaps, low_bits]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_the_order_and_moves_between_epochs_look_uniformly_random(statistic):
    for make in (ours, moves):
        assert max(abs(statistic(make(key))) for key in KEYS) < LIMIT
    # The statistic notices an order of which a twentieth is not shuffled.
    shuffled, still = ours(0), SIZE // 20
    weak = np.concatenate([np.arange(still), shuffled[shuffled >= still]])
    assert abs(statistic(weak)) > LIMIT


@pytest.mark.campaign
@pytest.mark.parametrize("size", [100, 5000])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_any_sample_may_stand_first_in_the_middle_or_last(size, place):
    position = int(place * (size - 1))
    samples = [int(Permutation(size, derive(3, epoch))(position)) for epoch in range(4000)]
    shares = (np.array(samples) + 0.5) / size
    assert abs(_evenness(shares, bins=50)) < LIMIT


@pytest.mark.parametrize("size", [50, 5000])
def test_a_sample_stays_in_its_place_once_an_epoch_on_average(size):
    # The number of fixed points of a uniform order is about Poisson of mean and variance 1.
    every = np.arange(size)
    fixed = [np.count_nonzero(Permutation(size, key)(every) == every) for key in range(400)]
    assert abs(np.mean(fixed) - 1) * np.sqrt(len(fixed)) < LIMIT
    # The variance of the sample variance of a Poisson number of mean 1 is about 3 / n.
    assert abs(np.var(fixed) - 1) * np.sqrt(len(fixed) / 3) < LIMIT
