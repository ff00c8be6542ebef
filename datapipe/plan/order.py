"""Seeded permutations of any size in constant memory, with a constant-time inverse.

A Feistel network permutes the smallest power of two that holds all samples; results past the end
are permuted again until they fall inside (cycle walking; Black and Rogaway: "Ciphers with arbitrary
finite domains", CT-RSA 2002). Fewer than half of the domain lies past the end, so a walk takes two
turns on average at worst.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from datapipe.plan.rng import UInt64, derive, mix_array

Int64 = npt.NDArray[np.int64]

# Four rounds make a pseudorandom permutation of large domains (Luby and Rackoff, 1988); small
# domains need more before every order is about equally likely.
_ROUNDS = 12


class Permutation:
    """A permutation of `0 ... size - 1`, fixed by `key`."""

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        bits = max(size - 1, 1).bit_length()
        # The halves may differ by a bit; rounds change them in turn.
        self._low_bits = np.uint64(bits // 2)
        self._masks = (
            np.uint64((1 << (bits // 2)) - 1),
            np.uint64((1 << (bits - bits // 2)) - 1),
        )
        self._keys = [np.uint64(derive(key, number)) for number in range(_ROUNDS)]

    def __call__(self, positions: npt.ArrayLike) -> Int64:
        """What stands at each position: int64, of the shape of `positions`."""
        return self._walk(positions, forward=True)

    def inverse(self, values: npt.ArrayLike) -> Int64:
        """The position of each value: int64, of the shape of `values`."""
        return self._walk(values, forward=False)

    def _walk(self, values: npt.ArrayLike, *, forward: bool) -> Int64:
        given = np.asarray(values, np.int64)
        if given.size and (given.min() < 0 or given.max() >= self.size):
            raise IndexError(f"positions must lie in 0 ... {self.size - 1}")
        flat = self._rounds(given.reshape(-1).astype(np.uint64), forward)
        outside = np.flatnonzero(flat >= self.size)
        while outside.size:
            walked = self._rounds(flat[outside], forward)
            flat[outside] = walked
            outside = outside[walked >= self.size]
        return flat.astype(np.int64).reshape(given.shape)

    def _rounds(self, values: UInt64, forward: bool) -> UInt64:
        halves = [values & self._masks[0], values >> self._low_bits]
        order = range(_ROUNDS) if forward else reversed(range(_ROUNDS))
        for number in order:
            changed = number % 2
            noise = mix_array(halves[1 - changed] + self._keys[number])
            halves[changed] = halves[changed] ^ (noise & self._masks[changed])
        return halves[0] | (halves[1] << self._low_bits)
