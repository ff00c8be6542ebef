"""Rows of an index, and columns of them.

Plain Python, since the processes that read raw data start with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Member(NamedTuple):
    """One file inside a shard."""

    ext: str  # everything behind the first dot of its name: `jpg`, `1.jpg`, `txt`, `json`
    offset: int  # byte position of its data in the shard
    size: int  # bytes
    crc32: int  # checksum of its data


class ImageSize(NamedTuple):
    """Pixels of one upright image, and the orientation (1 to 8) by which it was set upright."""

    width: int
    height: int
    orientation: int = 1


class Row(NamedTuple):
    """The row of one sample."""

    key: str  # name of the sample; its members are called `key.ext`
    members: Sequence[Member]  # in the order of the shard, images by their numbers
    images: Sequence[ImageSize]  # in the order of the image members
    text_bytes: int  # UTF-8 length of the sample's text
    source: str  # where the sample came from


class Rows:
    """Rows of an index as columns: quick to gather, to send to another process, to write."""

    _ROW = ("key", "source", "text_bytes", "members", "images")
    _MEMBER = ("ext", "size", "crc32")
    _IMAGE = ("width", "height", "orientation")
    __slots__ = (*_ROW, *_MEMBER, "offset", *_IMAGE)

    # `key`, `source`, `text_bytes`: an item a row
    key: list[str]
    source: list[str]
    text_bytes: list[int]
    # `members`, `images`: how many of each a row has
    members: list[int]
    images: list[int]
    # `ext`, `offset`, `size`, `crc32`: an item a member
    ext: list[str]
    offset: list[int]
    size: list[int]
    crc32: list[int]
    # `width`, `height`, `orientation`: an item an image
    width: list[int]
    height: list[int]
    orientation: list[int]

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        for name in self.__slots__:
            setattr(self, name, [])
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return len(self.key)

    def append(self, row: Row, shift: int = 0) -> None:
        """Add one row, with `shift` bytes added to its offsets."""
        self.key.append(row.key)
        self.source.append(row.source)
        self.text_bytes.append(row.text_bytes)
        self.members.append(len(row.members))
        self.images.append(len(row.images))
        for ext, offset, size, crc32 in row.members:
            self.ext.append(ext)
            self.offset.append(offset + shift)
            self.size.append(size)
            self.crc32.append(crc32)
        for width, height, orientation in row.images:
            self.width.append(width)
            self.height.append(height)
            self.orientation.append(orientation)

    def extend(self, rows: Rows, start: int, stop: int, shift: int) -> None:
        """Add rows `start` to `stop` of `rows`, with `shift` bytes added to their offsets."""
        member = sum(rows.members[:start])
        members = slice(member, member + sum(rows.members[start:stop]))
        image = sum(rows.images[:start])
        images = slice(image, image + sum(rows.images[start:stop]))
        for names, span in (
            (self._ROW, slice(start, stop)),
            (self._MEMBER, members),
            (self._IMAGE, images),
        ):
            for name in names:
                getattr(self, name).extend(getattr(rows, name)[span])
        self.offset.extend([offset + shift for offset in rows.offset[members]])
