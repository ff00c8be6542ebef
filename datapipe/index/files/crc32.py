"""The checksum of members: crc32 as in zlib, gzip and PNG, from zlib-ng, which takes a tenth."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zlib_ng.zlib_ng import crc32, crc32_combine

__all__ = ["NOT_AS_INDEXED", "crc32", "crc32_combine", "prefix_sums"]

_CHUNK = 1 << 20

NOT_AS_INDEXED = (
    "its bytes are not those that were packed or indexed: the shard is damaged, or was replaced; "
    "restore it, or pack the raw data again; for other writers' tars, run `datapipe index --force`"
)
"""Reason of a `DecodeError` for a member that differs from its checksum."""


def prefix_sums(path: Path, ends: Iterable[int], *, start: int = 0) -> list[int | None]:
    """Return checksums of the beginnings of a file; one that is missing is empty.

    `ends` are bytes of each, ascending, counted from `start`. A checksum is None where the file is
    shorter.
    """
    sums: list[int | None] = []
    total = at = 0
    if not path.exists():
        return [None if end else 0 for end in ends]
    with path.open("rb") as file:
        file.seek(start)
        for end in ends:
            while at < end and (data := file.read(min(end - at, _CHUNK))):
                total, at = crc32(data, total), at + len(data)
            sums.append(total if at == end else None)
    return sums
