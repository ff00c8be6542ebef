"""Format of cache entries.

The size and order of the bytes follow from the index: the texts of a sample, then its images, as
encoded bytes or as facts and uint8 values of each. So nothing about entries has to be kept beside
them, and tiers know before what they will hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from datapipe.array_types import Int64, UInt8
from datapipe.decode.transform import ImageTransform
from datapipe.index.columns import Columns
from datapipe.index.files.crc32 import crc32
from datapipe.index.members import member_kind
from datapipe.index.rows import Member
from datapipe.plan.ragged import places, totals

FACTS = 48
"""Bytes of the facts about an image: six float64, see `ImageSlots`."""


class EntrySizes:
    """Bytes of the entries of samples; without `kept`, images are kept encoded.

    `identity` is all that the bytes of an entry depend on beside the dataset.
    """

    def __init__(self, columns: Columns, kept: ImageTransform | None, *, images: bool) -> None:
        self._columns = columns
        self._kept = kept
        self.form = "encoded" if kept is None else "decoded"
        self.identity = f"images={images}" if kept is None else repr(kept.spec)
        kinds = [member_kind(ext) for ext in columns.extensions]
        encoded = images and kept is None
        self._counts = np.array([bool(k) and (k != "image" or encoded) for k in kinds], bool)

    def __call__(self, samples: Int64) -> Int64:
        """Return the bytes of the entry of each sample: int64 [n]."""
        columns = self._columns
        found, ends = places(columns.sample_member, samples)
        sizes = columns.member_size[found] * self._counts[columns.member_ext[found]]
        total = totals(sizes, ends)
        if self._kept is None:
            return total
        widths, heights, ends = columns.image_sides(samples)
        values = FACTS + self._kept.values(widths, heights)
        return -(-total // 8) * 8 + totals(values, ends)


def image_rows(columns: Columns, transform: ImageTransform, samples: Int64) -> Int64:
    """Return the rows of `pixel_values` that the images of each sample take: int64 [n]."""
    widths, heights, ends = columns.image_sides(samples)
    return totals(transform.rows(widths, heights), ends)


def cut_entry(entry: UInt8, members: Sequence[Member]) -> tuple[list[memoryview], UInt8]:
    """Return the members at the start of an entry, and the rest of it."""
    ends = list(itertools.accumulate((member.size for member in members), initial=0))
    view = memoryview(entry)  # type: ignore[arg-type]
    parts = [view[start:stop] for start, stop in itertools.pairwise(ends)]
    return parts, entry[-(-ends[-1] // 8) * 8 :]


def fill_members(entry: UInt8, contents: Sequence[memoryview]) -> UInt8:
    """Write members to the start of an entry, and return the rest of it."""
    at = 0
    for data in contents:
        entry[at : at + len(data)] = np.frombuffer(data, np.uint8)
        at += len(data)
    aligned = -(-at // 8) * 8
    entry[at:aligned] = 0  # ranks that write the same entry of a shared cache write equal bytes
    return entry[aligned:]


def checksum_mark(entry: UInt8) -> int:
    """Return the mark of an entry that is there: its checksum, and a bit that is always set."""
    return crc32(entry) | 1 << 32
