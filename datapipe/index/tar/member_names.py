"""Names that members of foreign tars have in the tar, read from the headers before their data."""

from __future__ import annotations

import io
import tarfile

from datapipe.index.tar.grouping import split_name
from datapipe.index.tar.headers import BLOCK

BEFORE = 5 * BLOCK
"""Bytes before a member's data that hold its headers: its own, and an extended one of 1,536."""

# Blocks of the headers: the plain one, or an extended one with so many blocks of content before it.
_BLOCKS = (1, 3, 4, 5)


def name_in_tar(before: bytes | memoryview, key: str, ext: str) -> tuple[str, str]:
    """Return key and extension of a member as webdataset takes them from its name.

    The index has `img.jpg` for a JPEG called `img`, and leaves out `./` before a name. Where no
    header names the member, as with hard links, the names are those of the index, `key` and `ext`.
    `before` are the last bytes before the data of the member, up to `BEFORE`.
    """
    for blocks in _BLOCKS:
        name = _first_name(bytes(before[-blocks * BLOCK :]), blocks)
        parts = None if name is None else split_name(name)
        if name is not None and parts is not None:
            found, of_tar = parts
            if found == key and (of_tar == ext or of_tar == ext.rpartition(".")[0]):
                return ("./" + key if name.startswith("./") else key), of_tar.lower()
    return key, ext.lower()


def _first_name(headers: bytes, blocks: int) -> str | None:
    """Return the name of the member whose data follows these headers; None if there is none."""
    try:
        with tarfile.open(fileobj=io.BytesIO(headers), mode="r:") as tar:
            member = tar.next()
    except tarfile.TarError:
        return None
    if member is None or member.offset_data != blocks * BLOCK:
        return None
    return member.name
