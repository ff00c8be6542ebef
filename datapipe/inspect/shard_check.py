"""Check of one shard: every byte of it, against its index where there is one."""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.decode.image import check_image, check_indexed
from datapipe.errors import DecodeError, StoreError
from datapipe.index.files.crc32 import crc32, crc32_combine
from datapipe.index.images.header import probe
from datapipe.index.members import member_kind
from datapipe.index.tar.grouping import split_name
from datapipe.index.tar.headers import BLOCK
from datapipe.inspect.findings import FileFindings
from datapipe.inspect.located import DatasetFiles
from datapipe.inspect.member_table import MemberTable
from datapipe.inspect.sources import OpenFile, read_failure
from datapipe.inspect.tar_headers import ResyncScanner, are_plain, header_size
from datapipe.pack.writers.ustar import END, member_header
from datapipe.text.sample_text import parse_json, parse_text

_AT_ONCE = 2 << 20  # bytes, which stay in the cache of the processor until their checksum is taken
_LARGE, _LARGEST = 64 << 20, 1 << 30  # bytes of a member that is read part by part, or not decoded
_MOST_KEPT = 4 << 20  # bytes between members, beyond which they are compared
HEADERS_AT_ONCE = 512  # that are compared together; larger arrays would get new pages every time
# Reads begin at a page, in the file and in memory. Where an address is 16 bytes further into its
# page than the offset, as in a large `bytearray`, some processors copy at a quarter of the rate.
_PAGE = 4096  # bytes
_WINDOW = 16 << 10
_LONGEST_TAIL = 1 << 20  # bytes of zeros behind the last member; GNU tar writes up to 10 KB

OTHER_BYTES = "its bytes are not those that were packed or indexed"
AS_PACKED = "its checksum is right, but "
"""Beginning of the problem of a member that is as it was packed and cannot be decoded."""
CUT_OFF = "the file ends before its last byte"

Tell = Callable[[int, int], None]
"""Told of members and bytes that were compared; raises to stop the work."""

_buffers = threading.local()


@dataclass
class MemberCheck:
    """Check of the members of one file by the checksums of an index.

    `lead` are the bytes of header before each member: 512 in a tar, 0 in an array. Offsets are
    counted from `origin`.
    """

    file: OpenFile
    located: DatasetFiles
    members: MemberTable
    found: FileFindings
    deep: bool
    tell: Tell
    lead: int = BLOCK
    origin: int = 0
    # Of each member: True if its data is right, if padding and a plain header are all before it
    is_right: Bools = field(init=False)
    is_plain: Bools = field(init=False)
    # Bytes between members, the members behind them, and the padding before the first of these
    _between: bytearray = field(default_factory=bytearray)
    _kept: list[Int64] = field(default_factory=list)
    _padding: int = 0

    def __post_init__(self) -> None:
        self.is_right = np.ones(len(self.members.offset), np.bool_)
        self.is_plain = np.zeros(len(self.members.offset), np.bool_)

    def run(self, part: int = 0, parts: int = 1) -> None:
        """Compare all members, or those of one of several parts, by their order in the file."""
        table, order = self.members, self.members.by_offset
        edges = np.linspace(0, len(order), parts + 1).astype(np.int64)
        # The first of a shard has its header before it, the others what is behind the last.
        last = order[max(edges[part] - 1, 0)] if len(order) else 0
        order = order[edges[part] : edges[part + 1]]
        if not len(order):
            return
        starts = table.offset[order].tolist()
        ends = (table.offset[order] + table.size[order]).tolist()
        before = starts[0] - self.lead
        if part:
            before = int(table.offset[last] + table.size[last])
            self._padding = -int(table.size[last]) % BLOCK
        first = 0
        while first < len(order):
            stop = bisect_right(ends, starts[first] + _AT_ONCE, first + 1)
            self._compare(order[first:stop], before)
            before, first = ends[stop - 1], stop
        if self.lead:
            self._look_at_headers()

    def _compare(self, numbers: Int64, before: int) -> None:
        """Compare successive members, and keep what stands between them from `before` on."""
        table, count, end = self.members, len(numbers), self.file.size - self.origin
        offsets, sizes = table.offset[numbers], table.size[numbers]
        begin, last = int(offsets[0]), int((offsets + sizes).max())
        is_large = count == 1 and last - begin > (_LARGEST if self.deep else _LARGE)
        # Large gaps, which other members fill, are left to the walk; so is a damaged index.
        start = before if 0 <= begin - before <= _AT_ONCE else max(begin, 0)
        length = max(min(begin if is_large else last, end) - start, 0)
        skip = (start + self.origin) % _PAGE
        view = _buffer(skip + length)[: skip + length]
        try:
            if is_large:
                self._compare_large(int(numbers[0]))
            view = view[skip : self.file.fill(view, start + self.origin - skip)]
        except (OSError, StoreError) as error:
            if count == 1:
                self.add(int(numbers[0]), read_failure(error))
            else:
                for at in range(count):
                    self._compare(numbers[at : at + 1], int(offsets[at]) - self.lead)
            return
        starts, ends = (offsets - start).tolist(), (offsets + sizes - start).tolist()
        sums = table.crc32[numbers].tolist()
        between = list(map(view.__getitem__, map(slice, [0, *ends], starts)))
        if not is_large and (self.deep or not _is_right(view, between, sizes.tolist(), sums)):
            for number, first, stop, stated in zip(
                numbers.tolist(), starts, ends, sums, strict=True
            ):
                data = view[first:stop]
                if stop > len(view):
                    self.add(number, CUT_OFF)
                elif crc32(data) != stated:
                    self.add(number, OTHER_BYTES)
                elif self.deep:
                    self._decode(number, data)
        if self.lead:
            self._between += b"".join(between)
            self._kept.append(numbers)
            if len(self._between) > _MOST_KEPT:
                self._look_at_headers()
        self.found.members += count
        self.found.bytes += int(sizes.sum())
        self.tell(count, last - start)

    def _look_at_headers(self) -> None:
        """Compare what was kept of the bytes between members."""
        if not self._kept:
            return
        table, numbers, between = self.members, np.concatenate(self._kept), self._between
        sizes = table.size[numbers]
        padding = -sizes % BLOCK
        # Where only padding and one header are between members, all lengths are known.
        lengths = np.concatenate(([self._padding], padding[:-1])) + BLOCK
        self._kept, self._between, self._padding = [], bytearray(), int(padding[-1])
        joined = table.offset[numbers[1:]] == table.offset[numbers[:-1]] + sizes[:-1] + lengths[1:]
        if len(between) != lengths.sum() or not joined.all():
            return
        ends, names = np.cumsum(lengths), table.header_names
        for first in range(0, len(numbers), HEADERS_AT_ONCE):
            some = slice(first, first + HEADERS_AT_ONCE)
            stops, which = ends[some], numbers[some]
            begin = int(stops[0] - lengths[first])
            self.is_plain[which] = are_plain(
                between[begin : int(stops[-1])],
                stops - BLOCK - begin,
                names[which],
                sizes[some],
                own=self.located.own,
            )

    def _compare_large(self, number: int) -> None:
        table, total = self.members, 0
        at, stop = int(table.offset[number]), int(table.offset[number] + table.size[number])
        while at < stop and at < self.file.size:
            part = _buffer(_AT_ONCE)[: stop - at]
            part = part[: self.file.fill(part, at + self.origin)]
            total, at = crc32(part, total), at + len(part)
            if not part:
                break
        if at < stop or total != table.crc32[number]:
            self.add(number, CUT_OFF if at < stop else OTHER_BYTES)

    def _decode(self, number: int, data: memoryview) -> None:
        kind, size = member_kind(self.members.exts[number]), self.members.image_sizes.get(number)
        if problem := content_problem(kind, data, size):
            self.add(number, AS_PACKED + problem)

    def add(self, number: int, problem: str, **span: int) -> None:
        table, sample = self.members, int(self.members.sample[number])
        self.is_right[number] = False
        self.found.damaged.add(sample)
        start = int(table.offset[number]) + self.origin
        span = span or {"start": start, "stop": start + int(table.size[number])}
        key, source = table.keys[sample], table.source(sample)
        self.found.add(problem, key=key, member=table.name(number), source=source, **span)


def _is_right(
    data: memoryview, between: list[memoryview], sizes: list[int], sums: list[int]
) -> bool:
    """Return whether the members in `data`, with `between` before each, have their checksums.

    One checksum is taken of them all: a thread waits for the interpreter's lock after each, and two
    were hardly faster than one. False too where members overlap or are cut.
    """
    if min(sizes) < 0 or sum(sizes) + sum(map(len, between)) != len(data):
        return False
    total = 0
    for piece, stated, size in zip(between, sums, sizes, strict=True):
        total = crc32_combine(crc32(piece, total), stated, size)
    return total == crc32(data)


def check_tar(check: MemberCheck) -> None:
    """Compare the structure of a tar with its index, after its members were compared."""
    table = check.members
    starts_well = table.offset.min(initial=BLOCK) == BLOCK
    if not (starts_well and check.is_plain.all() and _ends_well(check)):
        _walk(check)


def _ends_well(check: MemberCheck) -> bool:
    """Return whether nothing but zeros, and enough of them, is behind the last member."""
    table, size = check.members, check.file.size
    ends = table.offset + table.size
    last = int(ends.max(initial=0))
    padded = -(-last // BLOCK) * BLOCK
    rest = size - padded
    if rest != len(END) if check.located.own else not BLOCK <= rest <= _LONGEST_TAIL:
        return False
    tail = _buffer(size - last)[: size - last]
    return check.file.fill(tail, last) == len(tail) and not bytes(tail).strip(b"\0")


def _walk(check: MemberCheck) -> None:
    """Read all headers, and name what differs from the index."""
    table, found = check.members, check.found
    places = zip(table.offset.tolist(), table.size.tolist(), strict=True)
    numbers = {place: number for number, place in enumerate(places)}
    scanner = ResyncScanner(Path(found.file), check.file, window=_WINDOW)
    walked = set()
    try:
        for member in scanner:
            number = numbers.get((member.offset, member.size))
            if number is None:
                found.unindexed += 1
                if check.located.own:
                    where = {"start": member.offset, "stop": member.offset + member.size}
                    found.add("is not in the index", member=member.name, **where)
                continue
            walked.add(number)
            if check.is_right[number] and not has_name(member.name, check, number):
                problem = f"its header calls it {member.name!r}"
                check.add(number, problem, **_header_of(table, number))
    except (OSError, StoreError) as error:
        found.add(read_failure(error))
    _look_at_padding(check)
    for number in np.flatnonzero(check.is_right & ~check.is_plain).tolist():
        # A header in the wrong place may have led the walk past whole ones.
        if (check.located.own or number not in walked) and not _has_header(check, number):
            check.add(number, "its header is damaged", **_header_of(table, number))
    for start, stop, reason in scanner.gaps:
        # Bytes that a finding about a member covers are named already.
        named = any(
            start < (f.stop or 0) and f.start is not None and f.start < stop for f in found.findings
        )
        if not named and (reason or check.located.own):
            found.add(reason or "blocks of zeros between members", start=start, stop=stop)
    if check.located.own and not found.findings and not _ends_well(check):
        end = int((table.offset + -(-table.size // BLOCK) * BLOCK).max(initial=0))
        found.add(f"does not end in {len(END):,} zeros", start=end, stop=check.file.size)


def _look_at_padding(check: MemberCheck) -> None:
    table = check.members
    for number in np.flatnonzero(check.is_right).tolist():
        end = int(table.offset[number] + table.size[number])
        rest = memoryview(bytearray(-end % BLOCK))
        rest = rest[: check.file.fill(rest, end)]
        if bytes(rest).strip(b"\0"):
            check.add(number, "the padding after it is not zero", start=end, stop=end + len(rest))


def _header_of(table: MemberTable, number: int) -> dict[str, int]:
    """Return the bytes between the previous member and this one, where its headers are."""
    stop = int(table.offset[number])
    ends = table.offset + -(-table.size // BLOCK) * BLOCK
    before = ends[ends <= stop - BLOCK]
    return {"start": int(before.max(initial=0)), "stop": stop}


def _has_header(check: MemberCheck, number: int) -> bool:
    """Return whether a valid header of the right size is before a member."""
    block = memoryview(bytearray(BLOCK))
    check.file.fill(block, int(check.members.offset[number]) - BLOCK)
    size = int(check.members.size[number])
    if check.located.own:
        return bytes(block) == member_header(check.members.name(number), size)
    return header_size(bytes(block)) == size


def has_name(name: str, check: MemberCheck, number: int) -> bool:
    """Return whether the name of a member in the tar is the one in the index."""
    table = check.members
    if name == table.name(number):
        return True
    stated, ext = split_name(name), table.exts[number]
    if check.located.own or stated is None:
        return False
    # Keys of a view may be others than those in the tar
    key = stated[0] if check.located.is_view else table.keys[int(table.sample[number])]
    return stated in ((key, ext), (key, ext.rpartition(".")[0]))


def check_unindexed(file: OpenFile, found: FileFindings, *, deep: bool, tell: Tell) -> None:
    """Check a tar without an index: its structure, and its images if `deep`."""
    scanner = ResyncScanner(Path(found.file), file, window=_AT_ONCE if deep else _WINDOW)
    reached = 0
    try:
        for member in scanner:
            found.unindexed += 1
            key, ext = split_name(member.name) or ("", "")
            end = member.offset + member.size
            if deep and (kind := member_kind(ext)):
                problem = content_problem(kind, scanner.read(member.offset, member.size))
                if problem:
                    where = {"start": member.offset, "stop": end}
                    found.add(problem, key=key, member=member.name, **where)
            tell(1, end - reached)
            reached = end
    except (OSError, StoreError) as error:
        found.add(read_failure(error))
    for gap in scanner.gaps:
        if gap.reason:
            found.add(gap.reason, start=gap.start, stop=gap.stop)


def content_problem(
    kind: str, data: bytes | memoryview, size: tuple[int, int] | None = None
) -> str:
    """Return why a member of this kind cannot be used in training; "" if it can.

    `size` is the width and height that its index says.
    """
    try:
        if kind == "image":
            info = probe(data)
            check_image(data, info)
            if size is not None:
                check_indexed(info.upright, size)
        elif kind:
            (parse_text if kind == "text" else parse_json)(bytes(data))
    except DecodeError as error:
        return error.reason
    return ""


def _buffer(size: int) -> memoryview:
    """Return a buffer of this thread, at least so large, that begins at a page."""
    if len(getattr(_buffers, "held", b"")) < max(size, 1):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        _buffers.held = mmap.mmap(-1, max(size, _AT_ONCE + 2 * _PAGE), flags=flags)
    return memoryview(_buffers.held)
