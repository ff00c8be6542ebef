"""Headers of plain ustar members, compared many at a time.

Members that datapipe writes, and most of those of others, have one header block with their name,
size and checksum. A header that is not plain does not count as damage: `resync.py` reads any kind.
"""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Bools, Int64, UInt8, UInt32
from datapipe.pack.writers.ustar import BLOCK, MAX_NAME, MAX_SIZE, member_header

_TEMPLATE: UInt8 = np.frombuffer(member_header("x", 0), np.uint8)
_SIZE, _CHECKSUM, _KIND, _PREFIX = slice(124, 135), slice(148, 156), 156, 345


def are_plain(between: bytearray, starts: Int64, names: UInt8, sizes: Int64, *, own: bool) -> Bools:
    """Return whether padding and a plain header are all that stands before each member: bool [n].

    Every byte of a header is compared if `own`, since datapipe writes one form alone; else the
    checksum covers those that may vary.

    Args:
        between: the bytes before each member back to the one before, concatenated.
        starts: int64 [n], where the last 512 of them begin, the header.
        names: uint8 [n, 100], padded with zeros.
        sizes: int64 [n], bytes.
        own: True for a tar that datapipe wrote.
    """
    found = np.frombuffer(between, np.uint8)
    headers = _TEMPLATE[None].copy() if own else _blocks(found)[starts]
    right: Bools = (headers[:, _PREFIX] == 0) & (sizes == sizes & MAX_SIZE)
    right &= (headers[:, _KIND] == ord("0")) | (headers[:, _KIND] == 0)
    digits = _octal(sizes, 11)
    headers[:, :MAX_NAME] = headers[:, _SIZE] = 0
    headers[:, _CHECKSUM] = ord(" ")  # as it counts in the checksum
    sums = headers.sum(1, dtype=np.uint32) + names.sum(1, dtype=np.uint32) + digits.sum(1)
    headers = np.broadcast_to(headers, (len(starts), BLOCK)).copy()
    headers[:, :MAX_NAME], headers[:, _SIZE] = names, digits
    headers[:, 148:154] = _octal(sums, 6)
    headers[:, 154] = 0
    expected = np.zeros_like(found)
    _blocks(expected)[starts] = headers
    if between != expected.data:
        ends = starts + BLOCK
        right[np.searchsorted(ends, np.flatnonzero(found != expected), side="right")] = False
    return right


def _blocks(data: UInt8) -> UInt8:
    """Return a view of the blocks that begin at each byte: uint8 [n - 511, 512]."""
    return np.ndarray((len(data) - BLOCK + 1, BLOCK), np.uint8, data.data, strides=(1, 1))


def _octal(values: Int64 | UInt32, digits: int) -> Int64:
    """Return the octal digits of each value in ASCII: [n, digits]."""
    return (values[:, None] >> np.arange(3 * digits - 3, -1, -3) & 7) + ord("0")
