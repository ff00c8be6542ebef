"""Selection of samples: a bitmap of all, with rank and select in near-constant time.

A directory has the number of samples that are selected before each block of 512. Select finds the
block by bisection and counts the bits of that block; rank reads one block (Jacobson:
"Space-efficient static trees and graphs", FOCS 1989). The bitmap may be memory-mapped: of a billion
samples it takes 125 MB, the directory 16 MB.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64, UInt8, UInt64
from datapipe.plan.ragged import indices_below

BLOCK = 512
"""Samples between two entries of a directory."""

_BYTES, _WORDS = BLOCK // 8, BLOCK // 64  # of a block
_PIECE = 65_536  # results at a time; each needs up to 1.5 kB meanwhile
_WORD = np.dtype("<u8")

_SET_BITS = np.array([value.bit_count() for value in range(256)], np.uint8)


def build_directory(bits: UInt8) -> Int64:
    """Count the selected samples before each block of 512, and all: int64 [blocks + 1].

    `bits` is uint8 [ceil(N / 8)], sample `i` being bit `i % 8`, counted from the lowest, of byte
    `i // 8`. The directory of no samples is a single zero.
    """
    blocks = -(-len(bits) // _BYTES)
    directory = np.zeros(blocks + 1, np.int64)
    for start in range(0, blocks, _PIECE):
        words = _words(bits, np.arange(start, min(start + _PIECE, blocks)))
        directory[1 + start : 1 + start + len(words)] = _count(words).sum(axis=1, dtype=np.int64)
    return np.cumsum(directory, out=directory)


class Selection:
    """Subset of the samples `0 ... size - 1`, in their order; `count` are selected.

    `bits` are uint8 [ceil(size / 8)], as for `build_directory`; bits past the end are zero.
    """

    def __init__(self, bits: UInt8, size: int) -> None:
        assert bits.dtype == np.uint8, "it is of these samples"
        assert bits.shape == (-(-size // 8),), "it is of these samples"
        assert not size % 8 or not bits[-1] >> (size % 8), "it selects no sample past the end"
        # A plain array over a map: indexing numpy's memmap subclass costs several times more.
        self._bits = np.asarray(bits)
        self._ranks = build_directory(self._bits)
        self.size = size
        self.count = int(self._ranks[-1])

    def select(self, positions: npt.ArrayLike) -> Int64:
        """Return the samples at these positions among the selected: int64, of the same shape.

        IndexError if a position is not in `0 ... count - 1`.
        """
        return _in_pieces(self._select, indices_below(self.count, positions))

    def rank(self, samples: npt.ArrayLike) -> Int64:
        """Count the selected samples before each of these: int64, of the same shape.

        `size` is valid too; `count` samples are before it. IndexError outside `0 ... size`.
        """
        return _in_pieces(self._rank, indices_below(self.size + 1, samples))

    def _select(self, positions: Int64) -> Int64:
        # In ascending order, bisections read the same memory: a fifth of the time.
        rising = np.argsort(positions)
        positions = positions[rising]
        block = np.searchsorted(self._ranks, positions, side="right") - 1
        words = _words(self._bits, block)
        word, left = _find(_count(words), positions - self._ranks[block])
        every = np.arange(len(block))
        octets = words[every, word].reshape(-1, 1).view(np.uint8)
        octet, left = _find(_SET_BITS[octets], left)
        set_bits = np.unpackbits(octets[every, octet].reshape(-1, 1), axis=1, bitorder="little")
        bit, _ = _find(set_bits, left)
        samples = np.empty_like(positions)
        samples[rising] = block * BLOCK + word * 64 + octet * 8 + bit
        return samples

    def _rank(self, samples: Int64) -> Int64:
        block, within = np.divmod(samples, BLOCK)
        # All blocks may be before sample `size`: no bit of the last one counts then.
        words = _words(self._bits, np.minimum(block, max(len(self._ranks) - 2, 0)))
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        bits &= np.arange(BLOCK) < within[:, None]
        ranks: Int64 = self._ranks[block] + np.count_nonzero(bits, axis=1)
        return ranks


def _find(counts: UInt8, index: Int64) -> tuple[Int64, Int64]:
    """Return the column that holds the `index`-th item of each row, and the item's index there.

    `counts` is uint8 [n, 8], items of each column; `index` int64 [n], below the sum of its row.
    """
    column, before = np.zeros_like(index), np.zeros_like(index)
    after = np.zeros_like(index)
    # Column by column: over so short rows, NumPy's own cumulative sum takes three times as long.
    for items in counts.T[:-1]:
        after += items
        passed = after <= index
        column += passed
        np.copyto(before, after, where=passed)
    return column, index - before


def _words(bits: UInt8, blocks: Int64) -> UInt64:
    """Return the 64-bit words of some blocks, zeros past the end: uint64 [n, 8], little-endian."""
    whole = len(bits) // _BYTES
    full = bits[: whole * _BYTES].view(_WORD).reshape(whole, _WORDS)
    if whole * _BYTES == len(bits):
        return full[blocks] if whole else np.zeros((len(blocks), _WORDS), _WORD)
    last = np.zeros(_BYTES, np.uint8)
    last[: len(bits) - whole * _BYTES] = bits[whole * _BYTES :]
    words = full[np.minimum(blocks, whole - 1)] if whole else np.empty((len(blocks), _WORDS), _WORD)
    words[blocks == whole] = last.view(_WORD)
    return words


def _count_by_table(words: UInt64) -> UInt8:
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 8)
    counts: UInt8 = _SET_BITS[octets].sum(axis=-1, dtype=np.uint8)
    return counts


def _count(words: UInt64) -> UInt8:
    if hasattr(np, "bitwise_count"):  # since NumPy 2.0
        counts: UInt8 = np.bitwise_count(words)
        return counts
    return _count_by_table(words)


def _in_pieces(function: Callable[[Int64], Int64], values: Int64) -> Int64:
    flat = values.reshape(-1)
    found = [function(flat[start : start + _PIECE]) for start in range(0, len(flat), _PIECE)]
    return np.concatenate([*found, np.empty(0, np.int64)]).reshape(values.shape)
