"""Layout of units in groups of near-equal cost, so that the ranks of a step finish together.

Units are points of two coordinates, cost of text and cost of images. They are halved again and
again, each half along the coordinate in which it spreads most: the construction of a k-d tree
(Bentley: "Multidimensional binary search trees used for associative searching", CACM 18, 1975).
Every part of `group` units is a group.
"""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Int64
from datapipe.plan.order import Permutation
from datapipe.plan.rng import derive, mix_array

TEXT_LINEAR = 6 * 4096
"""Cost of a token beside that of a pair of tokens, in a model of width 4,096.

A transformer layer of width d takes 24 d^2 operations for a token, and 4 d for each token that it
attends to (Narayanan et al.: "Efficient large-scale language model training on GPU clusters", SC
2021, appendix), which is 6 d to 1.
"""

_GROUPS, _HALVES, _HEAD = 1, 2, 3  # purposes of derived keys

# Images of packs differ more than text does, in long tails: with equal weights their imbalance
# stays a quarter above that of text (`python -m benchmarks.plan --only balance`).
_VISION_WEIGHT, _TEXT_WEIGHT = 4, 3

# Shares are compared as integers: costs have at most 40 bits, shares 20 more.
_COST_BITS, _SHARE_BITS = 40, 20


def text_cost(tokens: Int64) -> Int64:
    """Return the cost of samples by their tokens, in an arbitrary measure; see `TEXT_LINEAR`."""
    return TEXT_LINEAR * tokens + tokens * tokens


def lay_out(text_cost: Int64, vision_cost: Int64, *, group: int, phase: int, key: int) -> Int64:
    """Return an order of a block's units in which those of a group cost about the same.

    Groups follow each other in random order. Halves, quarters, ... of a group are more equal than
    the whole, so steps of fewer units are balanced too. If a block does not consist of whole
    groups, units of typical cost complete the last group of the block before, which has `phase`
    units already, and begin one for the next block. The result is int64 [units], the unit at each
    position.
    """
    assert 0 <= phase < group, (phase, group)
    units = len(text_cost)
    order = np.arange(units, dtype=np.int64)
    if group == 1 or units == 0:
        return Permutation(units, key)(order)
    costs = (_reduced(text_cost), _reduced(vision_cost))
    first = min((group - phase) % group, units)
    last = (units - first) % group
    typical = _typical(costs, first + last)
    typical = typical[Permutation(len(typical), derive(key, _HEAD))(np.arange(len(typical)))]
    rest = np.delete(order, typical)
    rows = _grouped(rest, (costs[0][rest], costs[1][rest]), group, key).reshape(-1, group)
    shuffled = rows[Permutation(len(rows), derive(key, _GROUPS))(np.arange(len(rows)))]
    return np.concatenate([typical[:first], shuffled.reshape(-1), typical[first:]])


def _reduced(cost: Int64) -> Int64:
    return cost >> max(int(cost.max()).bit_length() - _COST_BITS, 0)


def _typical(costs: tuple[Int64, Int64], number: int) -> Int64:
    """Return the units closest to the median, each in the coordinate in which it is farther."""
    away = np.zeros(len(costs[0]), np.int64)
    for cost in costs:
        middle = int(np.sort(cost)[len(cost) // 2])
        away = np.maximum(away, (np.abs(cost - middle) << _SHARE_BITS) // max(middle, 1))
    return np.argsort(away, kind="stable")[:number]


def _grouped(units: Int64, costs: tuple[Int64, Int64], group: int, key: int) -> Int64:
    """Return the units in groups of near-equal cost, one group after the other.

    Halving continues inside groups, so the units of each half, quarter, ... of a group are closer
    still. Which half comes first is random.
    """
    order = np.arange(len(units))
    # Ties in one coordinate are broken by the other, so that equal ones stay together.
    ranks = []
    for cost, other in (costs, costs[::-1]):
        rank = np.empty(len(units), np.int64)
        rank[np.lexsort((other, cost))] = order
        ranks.append(rank)
    sizes, level = np.array([len(units)]), 0  # units of each part
    while len(units) > sizes.size:
        starts = np.cumsum(sizes) - sizes
        spreads = [_spread(cost[order], starts) for cost in costs]
        along = _VISION_WEIGHT * spreads[1] > _TEXT_WEIGHT * spreads[0]
        part = np.repeat(np.arange(len(sizes)), sizes)
        rank = np.where(along[part], ranks[1][order], ranks[0][order])
        reverse = mix_array(starts.astype(np.uint64) + np.uint64(derive(key, _HALVES, level))) & 1
        rank = np.where(reverse[part], len(units) - 1 - rank, rank)
        order = order[np.argsort(part * len(units) + rank)]
        half = np.where(sizes > group, sizes // group // 2 * group, sizes // 2)
        halves = np.stack([half, sizes - half], axis=1).reshape(-1)
        sizes, level = halves[halves > 0], level + 1
    return units[order]


def _spread(cost: Int64, starts: Int64) -> Int64:
    """Return (most - least) / most of the costs of each part, as an integer share."""
    most = np.maximum.reduceat(cost, starts)
    least = np.minimum.reduceat(cost, starts)
    return ((most - least) << _SHARE_BITS) // np.maximum(most, 1)
