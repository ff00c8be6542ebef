"""Rows of the index for the samples of a batch, read from each dataset at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from datapipe.array_types import Int64, UInt16, UInt32
from datapipe.index.dataset import Dataset
from datapipe.index.mixture_columns import edges_of, extension_codes, split_by_part
from datapipe.index.rows import Member
from datapipe.plan.ragged import edges, places, spans

_OF_SAMPLES = ("parts", "shards", "images", "counts")
_OF_MEMBERS = {"members": "<i8", "codes": "<u2", "offsets": "<i8", "sizes": "<i8", "crc32": "<u4"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRows:
    """Rows of the index: n samples with m members."""

    extensions: tuple[str, ...]  # of members
    parts: Int64  # int64 [n], number of the dataset of each sample
    shards: Int64  # int64 [n], number of the shard of each
    images: Int64  # int64 [n], number of the first image of each
    counts: Int64  # int64 [n], of its images
    keys: list[str]
    bounds: Int64  # int64 [n + 1]; sample i has the members `bounds[i]` to `bounds[i + 1]`
    members: Int64  # int64 [m], their numbers
    codes: UInt16  # uint16 [m], into `extensions`
    offsets: Int64  # int64 [m], bytes; so are `sizes`
    sizes: Int64
    crc32: UInt32  # uint32 [m]

    def member(self, index: int) -> Member:
        """Return a member, by its index in `members`."""
        name, crc32 = self.extensions[self.codes[index]], int(self.crc32[index])
        return Member(name, int(self.offsets[index]), int(self.sizes[index]), crc32)

    def of_sample(self, index: int) -> list[Member]:
        """Return the members of a sample, by its index, in the order of the shard."""
        return [self.member(at) for at in range(self.bounds[index], self.bounds[index + 1])]

    def at(self, indices: Int64) -> SampleRows:
        """Return the rows of some of the samples, by their indices: int64 [k]."""
        found, bounds = places(self.bounds, indices)
        return self._chosen(
            indices, found, [self.keys[index] for index in indices.tolist()], bounds
        )

    def cut(self, start: int, stop: int) -> SampleRows:
        """Return the rows of the samples `start` to `stop`, without a copy."""
        bounds = self.bounds[start : stop + 1]
        members = slice(int(bounds[0]), int(bounds[-1]))
        keys = self.keys[start:stop]
        return self._chosen(slice(start, stop), members, keys, bounds - bounds[0])

    def _chosen(
        self, samples: Int64 | slice, members: Int64 | slice, keys: list[str], bounds: Int64
    ) -> SampleRows:
        own = {name: getattr(self, name)[samples] for name in _OF_SAMPLES}
        own |= {name: getattr(self, name)[members] for name in _OF_MEMBERS}
        return replace(self, keys=keys, bounds=bounds, **own)


class RowReader:
    """Reader of the rows of any samples of a dataset, alone or a mixture."""

    def __init__(self, dataset: Dataset) -> None:
        counts = [part.counts for part in dataset.parts]
        self._dataset = dataset
        self._extensions = dataset.columns.extensions
        self._codes = extension_codes(self._extensions, counts)
        self._shards = edges_of([len(count.shard_samples) for count in counts])
        self._members = edges_of([count.members for count in counts])
        self._images = edges_of([count.images for count in counts])

    def __reduce__(self) -> tuple[object, ...]:
        return RowReader, (self._dataset,)

    def read(self, samples: Int64) -> SampleRows:
        """Return the rows of samples, int64 [n]; each column of each dataset is read once."""
        split = split_by_part(self._dataset.sample_edges, samples)
        read = [self._read_part(part, own) for part, _, own in split]
        if len(read) == 1:
            return read[0]
        rows = self._concatenated(read)
        order = np.concatenate([chosen for _, chosen, _ in split] or [samples])
        return rows.at(np.argsort(order))

    def _read_part(self, part: int, samples: Int64) -> SampleRows:
        columns = self._dataset.parts[part].columns()
        images, counts = spans(columns.sample_image, samples)
        found, bounds = places(columns.sample_member, samples)
        return SampleRows(
            extensions=self._extensions,
            parts=np.full(len(samples), part),
            shards=columns.shards(samples) + self._shards[part],
            images=images + self._images[part],
            counts=counts,
            keys=columns.keys(samples),
            bounds=bounds,
            members=found + self._members[part],
            codes=self._codes[part][columns.member_ext[found]],
            offsets=columns.member_offset[found],
            sizes=columns.member_size[found],
            crc32=columns.member_crc32[found],
        )

    def _concatenated(self, rows: list[SampleRows]) -> SampleRows:
        lengths = [np.diff(each.bounds) for each in rows] or [np.empty(0, np.int64)]
        return SampleRows(
            extensions=self._extensions,
            keys=[key for each in rows for key in each.keys],
            bounds=edges(np.concatenate(lengths)),
            **{
                name: np.concatenate([np.empty(0, dtype), *(getattr(each, name) for each in rows)])
                for name, dtype in (dict.fromkeys(_OF_SAMPLES, "<i8") | _OF_MEMBERS).items()
            },
        )
