"""Salvage of one shard: the samples that it still holds, and those that are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from datapipe.array_types import Bools, Int64
from datapipe.errors import DatapipeError, DecodeError, StoreError
from datapipe.index.images.header import probe
from datapipe.index.members import SampleParts, member_kind
from datapipe.index.parquet import SCHEMA, to_table, with_offsets
from datapipe.index.rows import ImageSize, Member, Row, Rows
from datapipe.index.tar.headers import WHOLE
from datapipe.index.tar.indexer import scan_tar
from datapipe.inspect.findings import FileFindings, Finding
from datapipe.inspect.located import DatasetFiles
from datapipe.inspect.member_table import read_members
from datapipe.inspect.shard_check import MemberCheck, Tell, content_problem, has_name
from datapipe.inspect.sources import OpenFile
from datapipe.inspect.tar_headers import ResyncScanner
from datapipe.text.sample_text import sample_text

_LACKING = "it may lack a member: damage is next to it, or it has fewer kinds than most"
_FEW = 2  # samples of a shard that lack a kind of member, or 2 %


class ShardSalvage(NamedTuple):
    """Samples of a shard."""

    table: pa.Table  # rows of those that are whole, with their offsets in the shard
    lost: list[Finding]  # members of samples that are gone, and parts of the tar
    has_checksums: bool  # False if nothing says which bytes the samples should have
    is_index_whole: bool  # True if the index has these rows already
    notes: list[str]


def salvage_shard(located: DatasetFiles, tell: Tell, number: int) -> ShardSalvage:
    """Return what a shard still holds.

    With an index, samples whose members have their checksums, wherever in the tar they are now.
    Without one, samples that are not next to damage, and whose images and texts can be read: no
    checksum vouches for these.
    """
    entry = located.entries[number]
    members, problems = read_members(located, number)
    found = FileFindings(file=entry.name)
    with located.shards.open(entry.name) as file:
        if file is None:
            missing = Finding(file=entry.name, problem="is missing")
            keys = [] if members is None else members.keys
            sources = [] if members is None else members.table["source"].to_pylist()
            lost = [replace(missing, key=k, source=s) for k, s in zip(keys, sources, strict=True)]
            return ShardSalvage(SCHEMA.empty_table(), lost or [missing], True, False, [])
        if members is None:
            return _scanned(entry.name, file)
        check = MemberCheck(file, located, members, found, deep=False, tell=tell)
        check.run()
        is_trusted = bool(entry.index_sha256)
        offsets = members.offset.copy()
        if not check.is_right.all() or not is_trusted:
            _look_for(check, offsets, check_names=not is_trusted)
        is_lost: Bools = np.zeros(len(members.table), np.bool_)
        is_lost[members.sample[~check.is_right]] = True
        table = members.table
        if problems or not is_trusted:
            table = to_table(Rows(_rebuilt(check, offsets, is_lost)))
        else:
            table = with_offsets(table, offsets).filter(pa.array(~is_lost))
    wrong = set(members.offset[~check.is_right].tolist())  # of members that were found nowhere
    lost = [finding for finding in found.findings if finding.start in wrong]
    is_whole = not problems and is_trusted and not is_lost.any()
    return ShardSalvage(table, lost, True, is_whole, [])


def _look_for(check: MemberCheck, offsets: Int64, *, check_names: bool) -> None:
    """Look for members by their headers, in all of the tar, where they are not at their offsets.

    With `check_names`, a member whose header has another name is lost: its index may be damaged.
    """
    members = check.members
    scanner = ResyncScanner(Path(check.found.file), check.file, window=WHOLE)
    by_size: dict[int, list[Any]] = {}
    names = {}
    with suppress(OSError, StoreError):  # what was found before counts
        for member in scanner:
            by_size.setdefault(member.size, []).append(member)
            names[member.offset, member.size] = member.name
    for number in np.flatnonzero(~check.is_right).tolist():
        size = int(members.size[number])
        for member in by_size.get(size, ()):
            if has_name(member.name, check, number) and (
                scanner.checksum(member) == members.crc32[number]
            ):
                offsets[number] = member.offset
                check.is_right[number] = True
                break
    for number in np.flatnonzero(check.is_right).tolist() if check_names else ():
        name = names.get((int(offsets[number]), int(members.size[number])), "")
        if not has_name(name, check, number):
            check.add(number, f"its header calls it {name!r}")


def _rebuilt(check: MemberCheck, offsets: Int64, is_lost: Bools) -> Iterator[Row]:
    """Yield rows made from the members themselves, if the index cannot be trusted.

    They are as packing and indexing make them.
    """
    table = check.members
    edges = np.searchsorted(table.sample, np.arange(len(is_lost) + 1)).tolist()
    values = (table.exts, offsets.tolist(), table.size.tolist(), table.crc32.tolist())
    members = list(map(Member, *values))
    for sample in np.flatnonzero(~is_lost).tolist():
        held, parts, images = members[edges[sample] : edges[sample + 1]], SampleParts(), []
        for member in held:
            content, is_image = _read(check.file, member), member_kind(member.ext) == "image"
            try:
                if is_image:
                    info = probe(content)
                    images.append(ImageSize(*info.upright, info.orientation))
                else:
                    parts.add(member, memoryview(content))
            except DecodeError:  # of a tar of someone else, as its index has it
                images += [ImageSize(0, 0)] if is_image else []
        length = len(sample_text(parts.caption, parts.record).encode("utf-8", "surrogatepass"))
        yield Row(table.keys[sample], held, images, length, table.source(sample))


def _scanned(name: str, file: OpenFile) -> ShardSalvage:
    scanner = ResyncScanner(Path(name), file, window=WHOLE)
    try:
        rows, found = scan_tar(scanner, name)
    except (DatapipeError, OSError) as error:  # no tar, nothing that a loader reads, a bad disk
        lost = [Finding(file=name, problem=str(error))]
        return ShardSalvage(SCHEMA.empty_table(), lost, False, False, [])
    lost = [
        Finding(file=name, start=gap.start, stop=gap.stop, problem=gap.reason or "only zeros")
        for gap in scanner.gaps
    ]
    suspects = _incomplete(rows, scanner)
    whole = []
    for row, is_suspect in zip(rows, suspects, strict=True):
        problem = _LACKING if is_suspect else ""
        for member in () if is_suspect else row.members:
            kind, data = member_kind(member.ext), _read(file, member)
            problem = problem or content_problem(kind, data)
            if kind in ("text", "json") and b"\0" in data:
                problem = problem or "its text holds zeros"
        if problem:
            start = min(member.offset for member in row.members)
            stop = max(member.offset + member.size for member in row.members)
            of_row = Finding(file=name, key=row.key, problem=problem, source=row.source)
            lost.append(replace(of_row, start=start, stop=stop))
        else:
            whole.append(row)
    return ShardSalvage(to_table(Rows(whole)), lost, False, False, found.lines())


def _incomplete(rows: Sequence[Row], scanner: ResyncScanner) -> list[bool]:
    """Return of each sample of a damaged tar if it may have lost a member.

    Samples next to a gap may have. So may those that lack a kind of member that most samples have,
    if few lack it, or if they are the last or so is a neighbour: zeros may be a lost member, and a
    damaged extended header gives a member another name, which parts a sample.
    """
    offsets = np.array([member.offset for member in scanner.members], np.int64)
    near: set[int] = set()
    for gap in scanner.gaps:
        before, after = offsets[offsets < gap.start], offsets[offsets >= gap.stop]
        near |= {int(offset) for offset in (*before[-1:], *after[:1])}
    found = [any(member.offset in near for member in row.members) for row in rows]
    kinds = [frozenset(member_kind(member.ext) for member in row.members) for row in rows]
    counts = Counter(kinds)
    usual = max(counts, key=lambda kind: (counts[kind], len(kind)), default=frozenset())
    lacking = [kind < usual for kind in kinds]
    few = max(_FEW, len(rows) // 50)
    odd = [False, *(a or b for a, b in zip(found, lacking, strict=True)), True]
    for number in range(len(rows)):
        is_odd = odd[number] or odd[number + 2] or counts[kinds[number]] <= few
        found[number] |= lacking[number] and is_odd
    return found


def _read(file: OpenFile, member: Member) -> bytes:
    buffer = bytearray(member.size)
    return bytes(buffer[: file.fill(memoryview(buffer), member.offset)])
