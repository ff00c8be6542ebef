"""A reader of the headers of tar files, which finds their members.

Understands ustar with prefixes, GNU long names and base-256 sizes, and PAX headers.
Source: POSIX.1-2001 pax(1), "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from datapipe.errors import StoreError
from datapipe.index.files.crc32 import crc32

BLOCK = 512
WHOLE = 1 << 20
"""`window` of a `TarScanner` for tars that are read whole."""
# One read brings a member's header and, for texts and most image headers, what stands behind it.
_WINDOW = 16 * 1024
_MOST_DIGITS = 20  # of a size; Python refuses to read numbers of thousands of them
# Names that are not UTF-8 stay different from each other, and can be written to an index.
_STRANGE = "backslashreplace"
_AGAIN = "copy or pack the file again"
COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gz"),
    b"BZh": ("bzip2", "bz2"),
    b"\xfd7zXZ": ("xz", "xz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zst"),
}
"""First bytes of compressed files: the name of each method, and its extension."""
DECOMPRESS = {"gz": "gunzip", "tgz": "gunzip", "bz2": "bunzip2", "xz": "unxz", "zst": "unzstd --rm"}
"""Commands that put a file in the place of its compressed one, by extension."""


@dataclass(frozen=True, slots=True)
class TarMember:
    """A regular file inside a tar."""

    name: str  # its path in the tar
    # `offset`, `size`: position and number of its bytes
    offset: int
    size: int
    start: bytes = b""  # its first bytes, where `contents.kept_members` read them


class TarScanner:
    """An iterator over the regular files of one tar, which can be read on the way.

    Use as a context manager. Hard links are members like the files they link to. `unread` lists
    other members, apart from folders, as (name, reason). `window` bytes are read at once. Raises
    `StoreError` if the file is compressed, damaged, empty or cut off.
    """

    def __init__(self, path: Path, *, window: int = _WINDOW) -> None:
        self.path = path
        self._at_once = window
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise StoreError(f"{path}: cannot be opened: {error.strerror}") from error
        self.bytes = os.fstat(self._descriptor).st_size
        self.unread: list[tuple[str, str]] = []
        self._places: dict[str, tuple[int, int]] = {}
        self._window = b""
        self._window_start = 0

    def __enter__(self) -> TarScanner:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`, fewer at the end of the file."""
        start = offset - self._window_start
        if start >= 0 and start + size <= len(self._window):
            return self._window[start : start + size]
        self._load(offset, size)
        return self._window[:size]

    def checksum(self, member: TarMember) -> int:
        """Return the crc32 of a member's data, all of it; StoreError if the file was cut off."""
        at, end, value = member.offset, member.offset + member.size, 0
        while at < end:
            if not self._window_start <= at < self._window_start + len(self._window):
                self._load(at)
                if not self._window:
                    raise self._damaged(at, "the file ends inside this member")
            start = at - self._window_start
            part = memoryview(self._window)[start : start + end - at]
            value = crc32(part, value)
            at += len(part)
        return value

    def _load(self, offset: int, size: int = 0) -> None:
        self._window = os.pread(self._descriptor, max(size, self._at_once), offset)
        self._window_start = offset

    def __iter__(self) -> Iterator[TarMember]:
        return self.members_from(0)

    def members_from(self, position: int) -> Iterator[TarMember]:
        """Yield the members from a header at `position` on."""
        override: dict[str, str] = {}
        defaults: dict[str, str] = {}
        ended = False
        while True:
            header = self.read(position, BLOCK)
            if not header:
                if not ended:
                    raise self._endless(min(position, self.bytes))
                return
            if not header.strip(b"\0"):
                # The end of the archive, unless another one was appended behind it. POSIX has two
                # such blocks; some writers (SharpZipLib) leave one.
                ended = True
                position += BLOCK
                continue
            self._check(header, position, after_end=ended)
            ended = False
            kind = header[156:157]
            size = self._size(header, override, position)
            data = position + BLOCK
            if kind == b"S" or any(name.startswith("GNU.sparse") for name in override):
                raise StoreError(
                    f"{self.path}, byte {position}: sparse members are not supported; write the "
                    "tar again without `--sparse`, or with bsdtar's `--no-read-sparse`"
                )
            if size < 0:
                raise self._damaged(position, "the size of a member is below zero")
            if data + size > self.bytes:
                raise self._damaged(position, "the file ends inside this member")
            if kind in (b"x", b"g"):
                target = override if kind == b"x" else defaults
                target.update(_pax_records(self.read(data, size)))
            elif kind in (b"L", b"K"):
                field = "path" if kind == b"L" else "linkpath"
                override[field] = self.read(data, size).rstrip(b"\0").decode("utf-8", _STRANGE)
            elif kind in (b"0", b"\0", b"7"):
                name = override.get("path") or defaults.get("path") or _name(header)
                if not name.endswith("/"):
                    self._places[name] = data, size
                    yield TarMember(name, data, size)
                override = {}
            else:
                yield from self._other(kind, header, override)
                override = {}
            position = data + -(-size // BLOCK) * BLOCK

    def _other(self, kind: bytes, header: bytes, override: dict[str, str]) -> Iterator[TarMember]:
        name = override.get("path") or _name(header)
        target = override.get("linkpath") or _text(header[157:257])
        if kind == b"1" and target == name and name in self._places:
            return  # GNU tar was given the file twice, and links it to itself
        if kind == b"1" and target in self._places:
            self._places[name] = self._places[target]
            yield TarMember(name, *self._places[target])
        elif kind == b"2":
            why = f"links to {target}, and symbolic links are not followed; `tar -h` writes files"
            self.unread.append((name, why))
        elif kind == b"1":
            self.unread.append((name, f"links to {target}, which this tar does not hold before it"))
        elif kind != b"5":
            self.unread.append((name, "is neither a file nor a folder nor a link"))

    def _size(self, header: bytes, override: dict[str, str], position: int) -> int:
        if header[156:157] in b"123456":
            return 0  # links, devices, folders and pipes hold no data, whatever size is stated
        stated = override.get("size", "0")
        if not stated.isdecimal() or len(stated) > _MOST_DIGITS:
            raise self._damaged(position, f"the extended header states a size of {stated[:40]!r}")
        return int(stated) or stated_number(header[124:136])

    def _check(self, header: bytes, position: int, *, after_end: bool) -> None:
        if position == 0:
            for magic, (kind, ext) in COMPRESSED.items():
                if header.startswith(magic):
                    # The tools refuse a file of another name.
                    path, named = quote(str(self.path)), quote(f"{self.path}.{ext}")
                    command = f"mv {path} {named} && {DECOMPRESS[ext]} {named}"
                    raise StoreError(
                        f"{self.path} is compressed with {kind}, and samples cannot be read from "
                        f"the middle of it; images gain nothing from it: run `{command}` and try "
                        "again"
                    )
        is_short = len(header) < BLOCK
        if is_short and not after_end:
            raise self._damaged(position, "the file ends inside a header")
        total = sum(header) - sum(header[148:156]) + 8 * 32
        if is_short or stated_number(header[148:156]) != total:
            what = "this is not a tar file" if position == 0 else "a header is damaged"
            if not after_end:
                raise self._damaged(position, what)
            what = "what follows the blocks of zeros that end a tar is not another tar"
            cut = f"truncate -s {position} {quote(str(self.path))}"
            raise self._damaged(position, what, f"{_AGAIN}, or, if it is complete, run `{cut}`")

    def _damaged(self, position: int, what: str, remedy: str = _AGAIN) -> StoreError:
        return StoreError(f"{self.path}, byte {position}: {what}; {remedy}")

    def _endless(self, position: int) -> StoreError:
        if not self.bytes:
            return StoreError(
                f"{self.path} is empty (0 bytes), as after an interrupted download or "
                "writer; copy or write it again, or move it elsewhere"
            )
        return StoreError(
            f"{self.path}, byte {position:,}: the file ends without the blocks of zeros that end a "
            "tar, so it was cut off here, or its writer was never closed; copy or write it again. "
            f"If you know that it is complete, `truncate -s +{2 * BLOCK} {quote(str(self.path))}` "
            "adds the end"
        )


def check_ends(paths: Sequence[Path]) -> None:
    """Refuse tars that are empty or cut off (StoreError), before hours of work on the others.

    Only tars that do not end in zeros are read.
    """
    suspects = [path for path in paths if not _ends_in_zeros(path)]
    for more, path in zip(range(len(suspects) - 1, -1, -1), suspects, strict=True):
        try:
            with TarScanner(path) as tar:
                deque(tar, maxlen=0)
        except StoreError as error:
            if not more:
                raise
            verb = "does" if more == 1 else "do"
            raise StoreError(
                f"{error} ({more:,} more of the {len(paths):,} tars {verb} not end as tars do)"
            ) from None


def _ends_in_zeros(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - BLOCK, 0))
            return size > 0 and not file.read(BLOCK).strip(b"\0")
    except OSError:
        return False  # opening it again says why


def stated_number(field: bytes) -> int:
    """Return the number in a field of a header; -1 if it is not a number."""
    if field[0] & 0x80:  # base-256, for members over 8 GiB
        return int.from_bytes(field, "big") & ~(0x80 << (8 * (len(field) - 1)))
    digits = field.split(b"\0")[0].strip()
    try:
        return int(digits or b"0", 8)
    except ValueError:
        return -1  # no checksum equals it


def _name(header: bytes) -> str:
    if header[257:263] == b"ustar\0" and header[345]:
        return _text(header[345:500]) + "/" + _text(header[:100])
    return _text(header[:100])


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("utf-8", _STRANGE)


def _pax_records(data: bytes) -> dict[str, str]:
    records: dict[str, str] = {}
    position = 0
    while position < len(data):
        length = data[position : position + _MOST_DIGITS].partition(b" ")[0]
        if not length.isdigit() or int(length) == 0:
            break
        body = data[position : position + int(length)][len(length) + 1 : -1]
        name, _, value = body.partition(b"=")
        records[name.decode("utf-8", _STRANGE)] = value.decode("utf-8", _STRANGE)
        position += int(length)
    return records
