"""Headers of plain ustar members, compared many at a time.

Members that datapipe writes, and most of those of others, have one header block with their name,
size and checksum. A header that is not plain does not count as damage: `resync.py` reads any kind.
"""

from __future__ import annotations

import numpy as np

from datapipe.array_types import Bools, Int64, UInt8
from datapipe.pack.writers.ustar import BLOCK, MAX_NAME, member_header

_TEMPLATE: UInt8 = np.frombuffer(member_header("x", 0), np.uint8)
_SIZE, _CHECKSUM = slice(124, 136), slice(148, 156)
_OCTAL: Int64 = 8 ** np.arange(10, -1, -1, dtype=np.int64)
_SUM_OCTAL = _OCTAL[-6:]
# Of a header without its name, size and checksum, which counts as eight spaces.
_REST_SUM = int(_TEMPLATE.sum(dtype=np.int64)) - int(_TEMPLATE[_CHECKSUM].sum(dtype=np.int64))
_REST_SUM += 8 * 32 - ord("x") - int(_TEMPLATE[_SIZE].sum(dtype=np.int64))


def plain_headers(headers: UInt8, names: UInt8, sizes: Int64, *, own: bool) -> Bools:
    """Return whether each header is that of a plain file with this name and size: bool [n].

    Every byte is compared if `own`, since datapipe writes one form alone; else the checksum covers
    those that may vary.

    Args:
        headers: uint8 [n, 512].
        names: uint8 [n, 100], padded with zeros.
        sizes: int64 [n], bytes.
        own: True for a tar that datapipe wrote.
    """
    found = headers[:, :MAX_NAME] == names
    digits = headers[:, _SIZE].astype(np.int64) - ord("0")
    stated = headers[:, _CHECKSUM].astype(np.int64) - ord("0")
    right = found.all(1) & (digits[:, :11] @ _OCTAL == sizes)
    if own:
        other = headers != _TEMPLATE
        other[:, :MAX_NAME] = other[:, _SIZE] = other[:, _CHECKSUM] = False
        right &= ~other.any(1) & (headers[:, _SIZE.stop - 1] == 0)
        right &= (headers[:, 154] == 0) & (headers[:, 155] == ord(" "))
        total = _REST_SUM + headers[:, :MAX_NAME].sum(1, dtype=np.int64)
        total += headers[:, _SIZE].sum(1, dtype=np.int64)
    else:
        kind = headers[:, 156]
        right &= (kind == ord("0")) | (kind == 0)
        right &= headers[:, 345] == 0  # no prefix before the name
        total = headers.sum(1, dtype=np.int64) + 8 * 32
        total -= headers[:, _CHECKSUM].sum(1, dtype=np.int64)
    return right & (stated[:, :6] @ _SUM_OCTAL == total)  # type: ignore[no-any-return]


def are_plain(between: UInt8, starts: Int64, names: UInt8, sizes: Int64, *, own: bool) -> Bools:
    """Return whether padding and a plain header are all that stands before each member: bool [n].

    Args:
        between: uint8, the bytes before each member back to the one before, concatenated; altered.
        starts: int64 [n], where the last 512 of them begin, the header.
        names, sizes, own: as of `plain_headers`.
    """
    windows = np.lib.stride_tricks.sliding_window_view(between, BLOCK, writeable=True)
    right = plain_headers(windows[starts], names, sizes, own=own)
    windows[starts] = 0
    right[np.searchsorted(starts, np.flatnonzero(between))] = False
    return right
