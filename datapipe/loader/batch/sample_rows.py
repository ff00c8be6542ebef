"""Rows of the index for the samples of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from datapipe.array_types import Int64, UInt16, UInt32
from datapipe.index.dataset import Dataset
from datapipe.index.rows import Member
from datapipe.plan.ragged import places, spans

_OF_SAMPLES = ("parts", "shards", "images", "counts", "keys")
_OF_MEMBERS = ("members", "codes", "offsets", "sizes", "crc32")


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
        """Return the members of a sample, by its index, in the order of the index."""
        return [self.member(at) for at in range(self.bounds[index], self.bounds[index + 1])]

    def cut(self, start: int, stop: int) -> SampleRows:
        """Return the rows of the samples `start` to `stop`, without a copy."""
        bounds = self.bounds[start : stop + 1]
        samples, members = slice(start, stop), slice(int(bounds[0]), int(bounds[-1]))
        own = {name: getattr(self, name)[samples] for name in _OF_SAMPLES}
        own |= {name: getattr(self, name)[members] for name in _OF_MEMBERS}
        return replace(self, bounds=bounds - bounds[0], **own)


def read_rows(dataset: Dataset, samples: Int64) -> SampleRows:
    """Return the rows of samples of a dataset, alone or a mixture: int64 [n]."""
    columns = dataset.columns
    images, counts = spans(columns.sample_image, samples)
    members, bounds = places(columns.sample_member, samples)
    codes, offsets, sizes, crc32 = columns.member_values(members)
    return SampleRows(
        extensions=columns.extensions,
        parts=dataset.kinds(samples),
        shards=columns.shards(samples),
        images=images,
        counts=counts,
        keys=columns.keys(samples),
        bounds=bounds,
        members=members,
        codes=codes,
        offsets=offsets,
        sizes=sizes,
        crc32=crc32,
    )
