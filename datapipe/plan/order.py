"""Shuffles of an epoch in constant memory.

`Permutation` is the global shuffle. A Feistel network permutes the smallest power of two that holds
all samples; results past the end are permuted again until they fall inside (cycle walking; Black
and Rogaway: "Ciphers with arbitrary finite domains", CT-RSA 2002). Fewer than half of the domain
is past the end, so a walk takes two turns on average at worst. `ShardOrder` shuffles for remote
storage, where only a few shards should be read at a time.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64, UInt16, UInt32, UInt64
from datapipe.plan.ragged import edges, grouped, indices_below
from datapipe.plan.rng import STREAM, derive, mix_array

# Four rounds make a pseudorandom permutation of large domains (Luby and Rackoff, 1988); after
# twelve, the positions of two samples together are within 1e-9 of uniform at sizes above `_SMALL`.
_ROUNDS = 12

# Networks of few bits come close only slowly: after twelve rounds on 3 bits the positions of two
# samples are 1 % off uniform ones. Sizes up to this one are sorted instead.
_SMALL = 4096

_SHARDS, _WINDOW = 1, 2  # purposes of derived keys


class Permutation:
    """Permutation of `0 ... size - 1`, fixed by `key`. Every order is about equally likely.

    Examples:
        >>> order = Permutation(5, key=1)
        >>> samples = order(np.arange(5))
        >>> sorted(samples.tolist()), order.inverse(samples).tolist()
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    """

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        self._network = _Network(size, key) if size > _SMALL else _Table(size, key)

    def __call__(self, positions: npt.ArrayLike) -> Int64:
        """Return the sample at each position: int64, of the shape of `positions`."""
        return self._walk(positions, forward=True)

    def inverse(self, values: npt.ArrayLike) -> Int64:
        """Return the position of each sample: int64, of the shape of `values`."""
        return self._walk(values, forward=False)

    def _walk(self, values: npt.ArrayLike, *, forward: bool) -> Int64:
        indices = indices_below(self.size, values)
        return self._network.walk(indices.reshape(-1), forward=forward).reshape(indices.shape)


class ShardOrder:
    """Shuffle that reads from few shards at a time.

    The shards are permuted, then cut into windows of `shards_mixed`; the samples of a window are
    permuted among themselves. Memory is O(shards). Time is that of `Permutation`, for each window
    touched: fast for neighbouring positions, slow for single ones from all over a large dataset.
    `counts` is int64 [shards], samples of each shard in the order of the dataset; may be zero.
    """

    def __init__(self, counts: npt.ArrayLike, key: int, *, shards_mixed: int = 16) -> None:
        assert shards_mixed >= 1, shards_mixed
        samples = np.asarray(counts, np.int64).reshape(-1)
        assert (samples >= 0).all(), "counts of samples"
        self.shards_mixed = shards_mixed
        self._key = key
        # Turns are shards in the order in which they are read.
        self._shard = Permutation(len(samples), derive(key, _SHARDS))(np.arange(len(samples)))
        self._shard_start = edges(samples)
        self._turn_start = edges(samples[self._shard])
        self.size = int(self._turn_start[-1])
        self._window_start = np.append(self._turn_start[:-1:shards_mixed], self.size)

    def __call__(self, positions: npt.ArrayLike) -> Int64:
        """Return the sample at each position: int64, of the shape of `positions`."""
        mixed = self._mixed(indices_below(self.size, positions))
        turn = _holder(self._turn_start, mixed)
        return mixed - self._turn_start[turn] + self._shard_start[self._shard[turn]]

    def _mixed(self, positions: Int64) -> Int64:
        flat = positions.reshape(-1)
        moved = np.empty_like(flat)
        for window, members in grouped(_holder(self._window_start, flat)):
            start, stop = self._window_start[window : window + 2].tolist()
            order = Permutation(stop - start, derive(self._key, _WINDOW, window))
            moved[members] = start + order(flat[members] - start)
        return moved.reshape(positions.shape)


class _Table:
    """Permutation kept as a table: the ranks of different pseudorandom numbers."""

    def __init__(self, size: int, key: int) -> None:
        count = np.arange(size, dtype=np.uint64)
        drawn = mix_array(np.uint64(derive(key)) + count * STREAM)
        # A mixture keeps a table of each small dataset.
        self._forward: UInt16 = np.argsort(drawn).astype(np.uint16)

    @functools.cached_property
    def _backward(self) -> UInt16:
        return np.argsort(self._forward).astype(np.uint16)

    def walk(self, values: Int64, *, forward: bool) -> Int64:
        return (self._forward if forward else self._backward)[values].astype(np.int64)


class _Network:
    """Feistel network that is walked until it ends inside `0 ... size - 1`."""

    def __init__(self, size: int, key: int) -> None:
        self._size = np.uint64(size)
        bits = (size - 1).bit_length()
        # The halves may differ by a bit; rounds change them in turn.
        self._low_bits = np.uint64(bits // 2)
        self._masks = (np.uint32((1 << (bits // 2)) - 1), np.uint32((1 << (bits - bits // 2)) - 1))
        self._keys = [np.uint32(derive(key, number) >> 32) for number in range(_ROUNDS)]

    def walk(self, values: Int64, *, forward: bool) -> Int64:
        flat = self._rounds(values.astype(np.uint64), forward)
        outside = np.flatnonzero(flat >= self._size)
        while outside.size:
            walked = self._rounds(flat[outside], forward)
            flat[outside] = walked
            outside = outside[walked >= self._size]
        return flat.view(np.int64)

    def _rounds(self, values: UInt64, forward: bool) -> UInt64:
        # Halves of at most 32 bits, in place: a third of the time of 64-bit arithmetic.
        halves = (
            (values & np.uint64(self._masks[0])).astype(np.uint32),
            (values >> self._low_bits).astype(np.uint32),
        )
        noise, spare = np.empty_like(halves[0]), np.empty_like(halves[0])
        for number in range(_ROUNDS) if forward else reversed(range(_ROUNDS)):
            changed = number % 2
            np.add(halves[1 - changed], self._keys[number], out=noise)
            _mix32(noise, spare)
            np.bitwise_and(noise, self._masks[changed], out=noise)
            np.bitwise_xor(halves[changed], noise, out=halves[changed])
        joined = halves[1].astype(np.uint64) << self._low_bits
        joined |= halves[0]
        return joined


def _mix32(values: UInt32, spare: UInt32) -> None:
    """Scramble 32-bit integers in place: the finaliser of MurmurHash3 (Appleby, 2011)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        np.right_shift(values, np.uint32(shift), out=spare)
        np.bitwise_xor(values, spare, out=values)
        np.multiply(values, np.uint32(factor), out=values)
    np.right_shift(values, np.uint32(16), out=spare)
    np.bitwise_xor(values, spare, out=values)


def _holder(starts: Int64, values: Int64) -> Int64:
    """Return the index of the range that holds each value; empty ranges hold none."""
    return np.searchsorted(starts, values, side="right").astype(np.int64) - 1
