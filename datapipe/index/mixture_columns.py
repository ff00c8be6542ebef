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
from datapipe.index.files.memory import memory
from datapipe.index.files.mixture_column import (
    KERNEL,
    MixtureColumn,
    address_of,
    flags_of,
    split_by_part,
)

_NONE: Any = np.zeros(0, np.uint8)
_READ_BY_SAMPLE = ("sample_member", "sample_image", "member_offset", "member_size", "member_ext")


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


class MixtureColumns(Columns):
    """Columns of several datasets, each opened when it is first needed.

    Args:
        parts: return the columns of each dataset.
        counts: of each.

    Attributes:
        sample_edges, member_edges, image_edges: int64 [parts + 1], number of the first sample,
            member and image of each dataset, and of all.
        tables: `edges`, `tables` and `codes` of `joined_kernel.locate`.
    """

    sample_edges: Int64
    member_edges: Int64
    image_edges: Int64
    tables: tuple[Any, ...]
    _keys: JoinedTexts
    _sources: JoinedTexts
    _parts: Sequence[Callable[[], Columns]]
    _counts: Sequence[ColumnCounts]

    def __init__(
        self, parts: Sequence[Callable[[], Columns]], counts: Sequence[ColumnCounts]
    ) -> None:
        extensions = tuple(dict.fromkeys(ext for count in counts for ext in count.extensions))
        bounds = np.stack(
            [
                _edges([count.samples for count in counts]),
                _edges([count.members for count in counts]),
                _edges([count.images for count in counts]),
            ]
        )
        samples, members, images = bounds
        tables = np.zeros((len(_READ_BY_SAMPLE), 2, len(parts)), np.int64)
        codes = [
            np.array([extensions.index(ext) for ext in count.extensions], np.uint16)
            for count in counts
        ]

        def join(name: str, edges: Int64, **options: Any) -> Any:
            arrays = [partial(_column, part, name) for part in parts]
            if name in _READ_BY_SAMPLE:
                options["table"] = tables[_READ_BY_SAMPLE.index(name)]
            return MixtureColumn(arrays, edges, DTYPES[name], **options)

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
        object.__setattr__(self, "_keys", JoinedTexts(parts, samples, "key"))
        object.__setattr__(self, "_sources", JoinedTexts(parts, samples, "source"))
        object.__setattr__(self, "tables", (bounds, tables, fields["member_ext"].codes))
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "_counts", counts)
        object.__setattr__(self, "sample_edges", samples)
        object.__setattr__(self, "member_edges", members)
        object.__setattr__(self, "image_edges", images)

    def __reduce__(self) -> tuple[Any, ...]:
        return MixtureColumns, (self._parts, self._counts)

    def open_part(self, part: int) -> None:
        """Open the columns of a dataset that are read for every sample."""
        for name in _READ_BY_SAMPLE:
            getattr(self, name).open(part)

    def keys(self, samples: Int64) -> list[str]:
        return self._keys.at(samples)

    def sources(self, samples: Int64) -> list[str]:
        return self._sources.at(samples)

    def strings(self, name: str, start: int, stop: int) -> pa.Array:
        texts = self._keys if name == "key" else self._sources
        return pa.array(texts.at(np.arange(start, stop)), pa.large_string())


class JoinedTexts:
    """Keys or sources of the samples of several datasets.

    Args:
        parts: return the columns of each dataset.
        edges: int64 [parts + 1], number of the first sample of each.
        name: "key" or "source".
    """

    def __init__(self, parts: Sequence[Callable[[], Columns]], edges: Int64, name: str) -> None:
        self._parts, self._edges, self._name = parts, edges, name
        # Of offsets and bytes, as `joined_kernel` has them.
        self._tables = np.zeros((2, 2, len(parts)), np.int64)

    def at(self, samples: Int64) -> list[str]:
        """Return the texts of samples: `samples` is int64 [n]."""
        if KERNEL.module is None:
            KERNEL.count(len(samples))
        else:
            places = np.empty((2, len(samples)), np.int64)
            if KERNEL.module.find_texts(samples, self._edges, self._tables, memory(), places):
                return texts_at(memory()[3], *places)
        found = [""] * len(samples)
        everywhere = np.arange(len(samples))
        for part, chosen, own in split_by_part(self._edges, samples):
            columns = self._parts[part]()
            texts = getattr(columns, f"{self._name}s")(own)
            for place, text in zip(everywhere[chosen].tolist(), texts, strict=True):
                found[place] = text
            self._open(part, columns)
        return found

    def _open(self, part: int, columns: Columns) -> None:
        if self._tables[1, 0, part]:
            return
        names = f"sample_{self._name}", f"{self._name}_bytes"
        for name, table in zip(names, self._tables, strict=True):
            array = getattr(columns, name)
            # The columns keep the arrays. Who finds an address reads, so flags come first.
            table[1, part] = flags_of(array)
            table[0, part] = address_of(array)


def _column(part: Callable[[], Columns], name: str) -> Any:
    return getattr(part(), name)


def _edges(counts: Sequence[int] | Int64) -> Int64:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
