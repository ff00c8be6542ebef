"""Samples whose images lie decoded in one buffer: what batches take of them, many at a time.

To copy an image takes some 30 µs. Were each sample looked up, read and noted by itself, as those
are that have to be decoded, Python would take longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from datapipe.cache.memory import Buffer
from datapipe.index.columns import Columns
from datapipe.loader.members import Kind, member_kind
from datapipe.plan.ragged import Bools, Int64, edges, places


@dataclass(frozen=True, slots=True)
class TextMembers:
    """The members with texts of n samples, m together.

    Attributes:
        members: int64 [m], places in the columns of members.
        bounds: int64 [n + 1]; sample i has the members `bounds[i]` to `bounds[i + 1]`.
        edges: int64 [m + 1], of their bytes behind each other.
        kinds: of each.
    """

    members: Int64
    bounds: Int64
    edges: Int64
    kinds: list[Kind]

    @classmethod
    def of(cls, columns: Columns, samples: Int64) -> TextMembers:
        """Those of some samples."""
        found, bounds = places(columns.sample_member, samples)
        codes = columns.member_ext[found]
        texts, kinds = _kinds(columns.extensions)
        wanted = texts[codes]
        members = found[wanted]
        return cls(
            members,
            edges(wanted.view(np.uint8))[bounds],
            edges(columns.member_size[members]),
            [kinds[code] for code in codes[wanted].tolist()],
        )

    @property
    def sizes(self) -> Int64:
        """Bytes of all texts of each sample: int64 [n]."""
        ends: Int64 = self.edges[self.bounds]
        return ends[1:] - ends[:-1]


@dataclass(frozen=True, slots=True)
class AtHand:
    """Samples of a batch that a cache has in its memory.

    Attributes:
        slots: bool [B], which.
        starts: int64 [B], where the entry of each begins: its texts, and then its images.
        data: the buffer.
    """

    slots: Bools
    starts: Int64
    data: Buffer

    def texts(self, slots: Int64, texts: TextMembers) -> Iterator[memoryview]:
        """The content of each text of the samples in some slots."""
        ends: Int64 = texts.edges[texts.bounds]
        counts = texts.bounds[1:] - texts.bounds[:-1]
        shift = np.repeat(self.starts[slots] - ends[:-1], counts)
        begins: npt.NDArray[np.int64] = texts.edges[:-1] + shift
        stops: npt.NDArray[np.int64] = texts.edges[1:] + shift
        view = self.data.data
        return (view[a:b] for a, b in zip(begins.tolist(), stops.tolist(), strict=True))

    def images(self, slots: Int64, texts: TextMembers) -> Int64:
        """Where the images of the samples in some slots begin in `data`: int64 [n]."""
        return self.starts[slots] + (texts.sizes + 7) // 8 * 8


@cache
def _kinds(extensions: tuple[str, ...]) -> tuple[Bools, list[Kind]]:
    """Of each extension of a dataset, whether it is a text, and what it is."""
    kinds = [member_kind(ext) for ext in extensions]
    return np.array([kind in ("text", "json") for kind in kinds], bool), kinds
