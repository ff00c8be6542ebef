"""Headers of tars that may be damaged.

Members that datapipe writes, and most of those of others, have one plain header block with their
name, size and checksum: `are_plain` compares many at a time. A header that is not plain does not
count as damage. `ResyncScanner` reads any kind, and continues at the next valid header.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datapipe.array_types import Bools, Int64, UInt8, UInt32
from datapipe.errors import StoreError
from datapipe.index.tar.headers import BLOCK, TarMember, TarScanner, stated_number
from datapipe.inspect.sources import OpenFile
from datapipe.pack.writers.ustar import MAX_NAME, MAX_SIZE, member_header

_MAGIC = b"ustar"
_MAGIC_AT = 257
_STEP = 1 << 20  # bytes that are searched at once
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


class Gap(NamedTuple):
    """Bytes of a tar in which no member can be told."""

    start: int
    stop: int
    reason: str  # "" for blocks of zeros before another member, as joined archives have them


class _HeaderDamage(StoreError):
    def __init__(self, position: int, what: str) -> None:
        super().__init__(what)
        self.position, self.what = position, what


class ResyncScanner(TarScanner):
    """An iterator over the members of a tar whose headers are valid. `gaps` lists the rest.

    A member that the file ends inside of is in a gap. `place` names the file in messages.
    """

    def __init__(self, place: Path, file: OpenFile, *, window: int) -> None:
        self.path, self.bytes = place, file.size
        self.gaps: list[Gap] = []
        self.members: list[TarMember] = []  # that were found so far
        self.unread = []
        self._file = file
        self._at_once = window
        self._places = {}
        self._window, self._window_start = b"", 0
        self._expected = 0  # where the next header has to be

    def __exit__(self, *_: object) -> None:
        pass  # the file is its owner's

    def __iter__(self) -> Iterator[TarMember]:
        start = 0
        while True:
            self._expected = start
            try:
                for member in self.members_from(start):
                    self.members.append(member)
                    yield member
                return
            except _HeaderDamage as broken:
                start = self._next_header(broken)
                self.gaps.append(Gap(broken.position, start, broken.what))
                if start >= self.bytes:
                    return

    def _next_header(self, broken: _HeaderDamage) -> int:
        """Return the position of the next valid header, at any alignment, or the end."""
        if "the file ends" in broken.what:
            return self.bytes  # the header is valid, and what follows is its member
        at = broken.position + 1
        while at + BLOCK <= self.bytes:
            window = self.read(at, min(_STEP, self.bytes - at))
            found = window.find(_MAGIC, _MAGIC_AT)
            while 0 <= found <= len(window) - (BLOCK - _MAGIC_AT):
                begin = found - _MAGIC_AT
                if header_size(window[begin : begin + BLOCK]) is not None:
                    return at + begin
                found = window.find(_MAGIC, found + 1)
            at += max(len(window) - BLOCK + 1, 1)
        return self.bytes

    def _load(self, offset: int, size: int = 0) -> None:
        buffer = bytearray(max(size, self._at_once))
        count = self._file.fill(memoryview(buffer), offset)
        self._window, self._window_start = bytes(buffer[:count]), offset

    def _check(self, header: bytes, position: int, *, after_end: bool) -> None:
        super()._check(header, position, after_end=after_end)
        if position > self._expected:
            self.gaps.append(Gap(self._expected, position, ""))

    def _size(self, header: bytes, override: dict[str, str], position: int) -> int:
        size = super()._size(header, override, position)
        self._expected = position + BLOCK + -(-size // BLOCK) * BLOCK
        return size

    def _damaged(self, position: int, what: str, remedy: str = "") -> StoreError:
        return _HeaderDamage(position, what)

    def _endless(self, position: int) -> StoreError:
        what = "the file ends inside its last members, without the zeros that end a tar"
        return _HeaderDamage(position, what if self.bytes else "the file is empty")


def header_size(header: bytes) -> int | None:
    """Return the size that a header block states; None if its checksum is wrong."""
    total = sum(header) - sum(header[148:156]) + 8 * 32
    return stated_number(header[124:136]) if stated_number(header[148:156]) == total else None
