"""Columns of a mixture: samples, members and images of its parts one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.array_types import Int64, UInt16
from datapipe.index.columns import DTYPES, Columns
from datapipe.index.files.mixture_column import MixtureColumn, split_by_part

_NONE: Any = np.zeros(0, np.uint8)
_TEXTS = ("sample_key", "sample_source", "key_bytes", "source_bytes")


@dataclass(frozen=True, kw_only=True)
class ColumnCounts:
    """Counts of one dataset's columns, known without opening them."""

    shard_samples: Int64  # int64 [shards], samples of each shard
    # `members`, `images`: numbers of them
    members: int
    images: int
    extensions: tuple[str, ...]  # of members

    @property
    def samples(self) -> int:
        return int(self.shard_samples.sum())

    @staticmethod
    def of(columns: Columns) -> ColumnCounts:
        return ColumnCounts(
            shard_samples=np.diff(columns.shard_sample),
            members=len(columns.member_size),
            images=len(columns.image_width),
            extensions=columns.extensions,
        )


@dataclass(frozen=True, kw_only=True)
class MixtureColumns(Columns):
    """Columns of a mixture, each part opened when it is first needed."""

    parts: Sequence[Callable[[], Columns]]  # return the columns of each dataset
    counts: Sequence[ColumnCounts]  # of each

    @staticmethod
    def of(
        parts: Sequence[Callable[[], Columns]], counts: Sequence[ColumnCounts]
    ) -> MixtureColumns:
        extensions = tuple(dict.fromkeys(ext for count in counts for ext in count.extensions))
        samples = edges_of([count.samples for count in counts])
        members = edges_of([count.members for count in counts])
        images = edges_of([count.images for count in counts])
        options: dict[str, dict[str, Any]] = {
            "sample_member": {"shifts": members[:-1]},
            "sample_image": {"shifts": images[:-1]},
            "member_ext": {"codes": extension_codes(extensions, counts)},
        }
        edges = {"sample": samples, "text": samples, "member": members, "image": images}
        columns: dict[str, Any] = {
            name: MixtureColumn(
                [partial(_column, part, name) for part in parts],
                edges[name.partition("_")[0]],
                dtype,
                **options.get(name, {}),
            )
            for name, dtype in DTYPES.items()
            if name not in _TEXTS
        }
        return MixtureColumns(
            parts=parts,
            counts=counts,
            extensions=extensions,
            index_bytes=(),  # those of each dataset are compared when it is opened
            shard_sample=edges_of(np.concatenate([count.shard_samples for count in counts])),
            **columns,
            **dict.fromkeys(_TEXTS, _NONE),  # asked of each dataset
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return MixtureColumns.of, (self.parts, self.counts)

    def keys(self, samples: Int64) -> list[str]:
        return self._texts("keys", samples)

    def sources(self, samples: Int64) -> list[str]:
        return self._texts("sources", samples)

    def strings(self, name: str, start: int, stop: int) -> pa.Array:
        return pa.array(self._texts(f"{name}s", np.arange(start, stop)), pa.large_string())

    def _texts(self, name: str, samples: Int64) -> list[str]:
        found = np.empty(len(samples), object)
        edges = edges_of([count.samples for count in self.counts])
        for part, chosen, own in split_by_part(edges, samples):
            found[chosen] = getattr(self.parts[part](), name)(own)
        texts: list[str] = found.tolist()
        return texts


def extension_codes(extensions: Sequence[str], counts: Sequence[ColumnCounts]) -> list[UInt16]:
    """Return the number in `extensions` of each extension of each dataset."""
    numbers = {name: number for number, name in enumerate(extensions)}
    return [np.array([numbers[ext] for ext in each.extensions], np.uint16) for each in counts]


def edges_of(counts: Sequence[int] | Int64) -> Int64:
    """Return the number of the first item of each of some datasets, and of all: int64 [n + 1]."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _column(part: Callable[[], Columns], name: str) -> Any:
    return getattr(part(), name)
