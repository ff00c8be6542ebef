"""Counter-based random generator, since NumPy does not promise that its streams stay the same.

Source: the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
generators", OOPSLA 2014) with the constants of Stafford's variant 13.
"""

from __future__ import annotations

import numpy as np

from datapipe.array_types import UInt64

_GOLDEN = 0x9E3779B97F4A7C15
STREAM = np.uint64(_GOLDEN)
"""Increment of SplitMix64, between the values that `mix_array` is given."""

_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """Scramble one 64-bit integer; a bijection."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def mix_array(values: UInt64) -> UInt64:
    """Scramble each element as `mix` does: uint64 in and out, of any shape."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))


def derive(*parts: int) -> int:
    """Return a 64-bit key of all parts and their order: seed, epoch, purpose, ..."""
    key = 0
    for part in parts:
        key = mix(key + _GOLDEN + mix(part + _GOLDEN))
    return key
