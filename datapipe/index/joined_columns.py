"""Columns of several datasets as those of one: samples, members and images one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.array_types import Int64
from datapipe.index.columns import DTYPES, Columns, texts_at
from datapipe.index.files.joined_array import JoinedArray, split_by_part
from datapipe.index.files.memory import START, memory_of

_NONE: Any = np.zeros(0, np.uint8)


@dataclass(frozen=True, kw_only=True)
class ColumnCounts:
    """Counts of one dataset's columns, known without opening them.

    Attributes:
        shard_samples: int64 [shards], samples of each shard.
        members, images: numbers of them.
        extensions: of members.
        checksums: whether each member has one.
    """

    shard_samples: Int64
    members: int
    images: int
    extensions: tuple[str, ...]
    checksums: bool

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.shard_samples.sum())

    @staticmethod
    def of(columns: Columns) -> ColumnCounts:
        """Return those of opened columns."""
        return ColumnCounts(
            shard_samples=np.diff(columns.shard_sample),
            members=len(columns.member_size),
            images=len(columns.image_width),
            extensions=columns.extensions,
            checksums=columns.checksums,
        )


class JoinedColumns(Columns):
    """Columns of several datasets, each opened when it is first needed.

    Args:
        parts: return the columns of each dataset.
        counts: of each.

    Attributes:
        sample_edges, member_edges, image_edges: int64 [parts + 1], number of the first sample,
            member and image of each dataset, and of all.
    """

    sample_edges: Int64
    member_edges: Int64
    image_edges: Int64
    _stored_texts: dict[str, JoinedArray]
    _parts: Sequence[Callable[[], Columns]]
    _counts: Sequence[ColumnCounts]

    def __init__(
        self, parts: Sequence[Callable[[], Columns]], counts: Sequence[ColumnCounts]
    ) -> None:
        extensions = tuple(dict.fromkeys(ext for count in counts for ext in count.extensions))
        samples = _edges([count.samples for count in counts])
        members = _edges([count.members for count in counts])
        images = _edges([count.images for count in counts])

        codes = [
            np.array([extensions.index(ext) for ext in count.extensions], np.uint16)
            for count in counts
        ]

        def join(name: str, bounds: Int64, **options: Any) -> Any:
            arrays = [partial(_column, part, name) for part in parts]
            return JoinedArray(arrays, bounds, DTYPES[name], **options)

        fields: dict[str, Any] = {
            "extensions": extensions,
            "checksums": True,  # of all, or the mixture is refused
            "shard_sample": _edges(np.concatenate([count.shard_samples for count in counts])),
            "sample_member": join("sample_member", samples, shifts=members[:-1]),
            "sample_image": join("sample_image", samples, shifts=images[:-1]),
            "text_bytes": join("text_bytes", samples),
            "member_ext": join("member_ext", members, codes=codes),
            # Keys and sources are asked of each dataset.
            **dict.fromkeys(("sample_key", "sample_source", "key_bytes", "source_bytes"), _NONE),
        }
        for name in DTYPES:
            if name not in fields:
                fields[name] = join(name, members if name.startswith("member") else images)
        super().__init__(**fields)
        texts = {
            name: join(name, samples if name.startswith("sample") else members)
            for name in ("sample_key", "sample_source", "key_bytes", "source_bytes")
        }
        object.__setattr__(self, "_stored_texts", texts)
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "_counts", counts)
        object.__setattr__(self, "sample_edges", samples)
        object.__setattr__(self, "member_edges", members)
        object.__setattr__(self, "image_edges", images)

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedColumns, (self._parts, self._counts)

    def keys(self, samples: Int64) -> list[str]:
        return self._texts("key", samples)

    def sources(self, samples: Int64) -> list[str]:
        return self._texts("source", samples)

    def strings(self, name: str, start: int, stop: int) -> pa.Array:
        return pa.array(self._texts(name, np.arange(start, stop)), pa.large_string())

    def _texts(self, name: str, samples: Int64) -> list[str]:
        if not len(samples):
            return []
        parts = np.searchsorted(self.sample_edges[:-1], samples, side="right") - 1
        offsets = self._stored_texts[f"sample_{name}"].addresses(parts)
        data = self._stored_texts[f"{name}_bytes"].addresses(parts)
        if offsets.all() and data.all():
            numbers = memory_of(np.dtype(np.int64))
            places = (offsets - START) // 8 + samples - self.sample_edges[parts]
            starts, stops = numbers[places] + data - START, numbers[places + 1] + data - START
            return texts_at(memory_of(np.dtype(np.uint8)), starts, stops)
        found = [""] * len(samples)
        everywhere = np.arange(len(samples))
        for part, chosen, own in split_by_part(self.sample_edges, samples):
            texts = getattr(self._parts[part](), f"{name}s")(own)
            for place, text in zip(everywhere[chosen].tolist(), texts, strict=True):
                found[place] = text
        return found


def _column(part: Callable[[], Columns], name: str) -> Any:
    return getattr(part(), name)


def _edges(counts: Sequence[int] | Int64) -> Int64:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
