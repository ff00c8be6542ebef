"""Headers of plain USTAR members, which every tar and WebDataset reader opens.

Source: POSIX.1-2001 pax(1), "ustar Interchange Format". Owner, time and mode are constants, so that
equal members give equal bytes.
"""

from __future__ import annotations

import re

from datapipe.errors import SampleError

BLOCK = 512
END = bytes(2 * BLOCK)
"""Two zero blocks close an archive."""

MAX_NAME = 100
MAX_SIZE = 8**11 - 1
_PADDING = tuple(bytes(-size % BLOCK) for size in range(BLOCK))
_VALID = re.compile(r"[A-Za-z0-9_+=@%-][A-Za-z0-9_+=@%.-]*")

# mode, uid, gid | size | mtime | checksum as spaces, type, link, magic, version, owner, devices
_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2
_AFTER_SIZE = b"00000000000\0"
_TAIL = b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(167)
_CONSTANT_SUM = sum(_BEFORE_SIZE) + sum(_AFTER_SIZE) + 8 * 32 + sum(_TAIL)


def member_header(name: str, size: int) -> bytes:
    """Return the 512-byte header of a regular file with so many bytes.

    SampleError if the name is not ASCII of at most 100 bytes without spaces and slashes, or the
    data is 8 GiB or more.
    """
    if len(name) > MAX_NAME or not _VALID.fullmatch(name):
        raise SampleError(
            f"member name {name!r} is not plain ASCII of at most {MAX_NAME} bytes without spaces "
            "and slashes"
        )
    if size > MAX_SIZE:
        raise SampleError(f"{size:,} bytes is more than a tar member holds (8 GiB)", member=name)
    path = name.encode("ascii")
    digits = b"%011o\0" % size
    checksum = b"%06o\0 " % (_CONSTANT_SUM + sum(path) + sum(digits))
    return b"".join((path.ljust(100, b"\0"), _BEFORE_SIZE, digits, _AFTER_SIZE, checksum, _TAIL))


def padding(size: int) -> bytes:
    """Return the zeros behind `size` bytes of data, up to the next block."""
    return _PADDING[size % BLOCK]
