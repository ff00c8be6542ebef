"""A reader of tars that may be damaged, which continues at the next valid header."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from datapipe.errors import StoreError
from datapipe.index.tar.headers import BLOCK, TarMember, TarScanner, stated_number
from datapipe.inspect.sources import OpenFile

_MAGIC = b"ustar"
_MAGIC_AT = 257
_STEP = 1 << 20  # bytes that are searched at once


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

    def _check(self, header: bytes, position: int) -> None:
        super()._check(header, position)
        if position > self._expected:
            self.gaps.append(Gap(self._expected, position, ""))

    def _size(self, header: bytes, override: dict[str, str], position: int) -> int:
        size = super()._size(header, override, position)
        self._expected = position + BLOCK + -(-size // BLOCK) * BLOCK
        return size

    def _damaged(self, position: int, what: str) -> StoreError:
        return _HeaderDamage(position, what)

    def _endless(self, position: int) -> StoreError:
        what = "the file ends inside its last members, without the zeros that end a tar"
        return _HeaderDamage(position, what if self.bytes else "the file is empty")


def header_size(header: bytes) -> int | None:
    """Return the size that a header block states; None if its checksum is wrong."""
    digits = header[148:156].split(b"\0")[0].strip()
    if not digits or digits.strip(b"01234567"):
        return None
    total = sum(header) - sum(header[148:156]) + 8 * 32
    return stated_number(header[124:136]) if int(digits, 8) == total else None
