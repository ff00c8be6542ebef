"""Which samples take part: a bitmap of all, with rank and select in near-constant time.

Beside the bitmap stands a directory: how many samples are selected before each block of 512. Select
finds the block in it by bisection and counts the bits of that block; rank reads one block. This is
the plain form of what Jacobson describes ("Space-efficient static trees and graphs", FOCS 1989).
Bitmap and directory may be memory-mapped: of a billion samples they take 125 and 16 MB, of which
only what is asked for is read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from datapipe.errors import PlanError

Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]

BLOCK = 512
"""Samples between two entries of a directory."""

_BYTES, _WORDS = BLOCK // 8, BLOCK // 64  # of a block
_PIECE = 65_536  # answers at a time; each needs a few hundred bytes meanwhile
_WORD = np.dtype("<u8")

_SET_BITS = np.array([value.bit_count() for value in range(256)], np.uint8)


def build_directory(bits: UInt8) -> Int64:
    """Number of selected samples before each block of 512, and of all: int64 [blocks + 1].

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
    """Some of the samples `0 ... size - 1`, in their order.

    Args:
        bits: uint8 [ceil(size / 8)], as for `build_directory`; bits past the end are zero.
        size: number of all samples.
        ranks: int64, the directory of these bits; counted here where None.

    Attributes:
        size: number of all samples.
        count: number of selected ones.

    Raises:
        PlanError: `bits` or `ranks` are not those of `size` samples.
    """

    def __init__(self, bits: UInt8, size: int, ranks: Int64 | None = None) -> None:
        if bits.dtype != np.uint8 or bits.shape != (-(-size // 8),):
            raise PlanError(
                f"a bitmap of {size:,} samples is uint8 [{-(-size // 8):,}], and this one is "
                f"{bits.dtype} {list(bits.shape)}; select the samples anew"
            )
        if size % 8 and bits[-1] >> (size % 8):
            raise PlanError(f"the bitmap selects samples past its {size:,}; select them anew")
        blocks = -(-size // BLOCK)
        # Plain arrays over a map: indexing numpy's memmap subclass costs several times more.
        self._bits = np.asarray(bits)
        self._ranks = build_directory(self._bits) if ranks is None else np.asarray(ranks)
        if self._ranks.shape != (blocks + 1,) or self._ranks[0] != 0:
            raise PlanError(
                f"the directory of {size:,} samples has {blocks + 1:,} entries from zero on, and "
                f"this one {len(self._ranks):,}; build it anew from the bitmap"
            )
        self.size = size
        self.count = int(self._ranks[-1])

    def __contains__(self, sample: int) -> bool:
        return 0 <= sample < self.size and bool(self.contains(np.array([sample]))[0])

    def contains(self, samples: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each sample is selected: bool, of the shape of `samples`.

        Raises:
            IndexError: a sample is not in `0 ... size - 1`.
        """
        given = _checked(samples, self.size)
        octets = self._bits[given >> 3] >> (given & 7).astype(np.uint8)
        selected: npt.NDArray[np.bool_] = (octets & 1).astype(np.bool_)
        return selected

    def select(self, positions: npt.ArrayLike) -> Int64:
        """The samples at these positions among the selected: int64, of the same shape.

        Raises:
            IndexError: a position is not in `0 ... count - 1`.
        """
        return _in_pieces(self._select, _checked(positions, self.count))

    def rank(self, samples: npt.ArrayLike) -> Int64:
        """How many selected samples lie before each of these: int64, of the same shape.

        The number of all samples may be asked for too; `count` lie before it.

        Raises:
            IndexError: a sample is not in `0 ... size`.
        """
        return _in_pieces(self._rank, _checked(samples, self.size + 1))

    def _select(self, positions: Int64) -> Int64:
        # In rising order, bisections share their way: a fifth of the time for random positions.
        rising = np.argsort(positions)
        samples = np.empty_like(positions)
        samples[rising] = self._select_rising(positions[rising])
        return samples

    def _select_rising(self, positions: Int64) -> Int64:
        block = np.searchsorted(self._ranks, positions, side="right") - 1
        words = _words(self._bits, block)
        word, left = _find(_count(words), positions - self._ranks[block])
        every = np.arange(len(block))
        octets = words[every, word].reshape(-1, 1).view(np.uint8)
        octet, left = _find(_SET_BITS[octets], left)
        set_bits = np.unpackbits(octets[every, octet].reshape(-1, 1), axis=1, bitorder="little")
        bit, _ = _find(set_bits, left)
        samples: Int64 = block * BLOCK + word * 64 + octet * 8 + bit
        return samples

    def _rank(self, samples: Int64) -> Int64:
        block = samples // BLOCK
        # What lies before sample `size` may be whole blocks: there is none to count in then.
        words = _words(self._bits, np.minimum(block, max(len(self._ranks) - 2, 0)))
        start = np.arange(_WORDS) * 64
        wanted = np.clip(samples[:, None] - block[:, None] * BLOCK - start, 0, 64)
        # A shift by 64 is undefined, hence whole words apart.
        keep = (np.uint64(1) << np.minimum(wanted, 63).astype(np.uint64)) - np.uint64(1)
        keep[wanted == 64] = ~np.uint64(0)
        within: Int64 = _count(words & keep).sum(axis=1, dtype=np.int64)
        return self._ranks[block] + within


def _find(counts: UInt8, place: Int64) -> tuple[Int64, Int64]:
    """The column of each row in which its `place`-th item lies, and its place there.

    `counts` is uint8 [n, 8], items of each column; `place` int64 [n], below the sum of its row.
    """
    column, before = np.zeros_like(place), np.zeros_like(place)
    after = np.zeros_like(place)
    # Column by column: over so short rows, NumPy's own cumulative sum takes three times as long.
    for items in counts.T[:-1]:
        after += items
        passed = after <= place
        column += passed
        np.copyto(before, after, where=passed)
    return column, place - before


def _words(bits: UInt8, blocks: Int64) -> UInt64:
    """The 64-bit words of some blocks, zeros past the end: uint64 [n, 8], little-endian."""
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
    """Bits that are set in each word: uint8, of the same shape."""
    if hasattr(np, "bitwise_count"):  # since NumPy 2.0
        counts: UInt8 = np.bitwise_count(words)
        return counts
    return _count_by_table(words)


def _in_pieces(function: Callable[[Int64], Int64], values: Int64) -> Int64:
    flat = values.reshape(-1)
    found = [function(flat[start : start + _PIECE]) for start in range(0, len(flat), _PIECE)]
    return np.concatenate([*found, np.empty(0, np.int64)]).reshape(values.shape)


def _checked(values: npt.ArrayLike, size: int) -> Int64:
    given = np.asarray(values, np.int64)
    if given.size and (given.min() < 0 or given.max() >= size):
        wrong = given.min() if given.min() < 0 else given.max()
        raise IndexError(f"{wrong} does not lie in 0 ... {size - 1}")
    return given
