"""Datasets of a mixture, each opened when it is needed, and their columns as one.

Samples, members and images of the datasets come one after the other. They are read from the columns
of each dataset without copying these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datapipe.array_types import Int64, Integers, UInt16, UInt32
from datapipe.errors import IndexMismatch
from datapipe.index.columns import DTYPES, Columns
from datapipe.index.files.random_read import Values, read_values, take_values
from datapipe.index.manifest import Arrays
from datapipe.remote.folder import RemoteFolder

if TYPE_CHECKING:
    from datapipe.index.dataset import Dataset

_NONE: Any = np.zeros(0, np.uint8)
_TEXTS = ("sample_key", "sample_source", "key_bytes", "source_bytes")


class MixtureColumn:
    """Column whose parts are columns of several datasets, one behind the other.

    Indexing it with an integer, a slice or an array of integers returns plain values. A part is
    asked for when values of it are needed.

    `edges` are int64 [parts + 1], index of the first value of each part, and the length. `shifts`,
    int64 [parts], are added to the values of each part: offsets become offsets into another column
    of the mixture. A part of offsets has one value more than `edges` say: the first of the next
    part is used. `codes` are, for parts whose values are numbers of names, the new number of
    each.

    Examples:
        >>> parts = [np.array([1, 2]), np.array([3])]
        >>> column = MixtureColumn([lambda part=part: part for part in parts], np.array([0, 2, 3]))
        >>> column[np.array([2, 0])].tolist()
        [3, 1]
    """

    def __init__(
        self,
        parts: Sequence[Callable[[], Any]],
        edges: Int64,
        dtype: npt.DTypeLike = np.int64,
        *,
        shifts: Int64 | None = None,
        codes: Sequence[Values] | None = None,
    ) -> None:
        self._parts, self._edges, self._shifts, self._codes = parts, edges, shifts, codes
        self.dtype = np.dtype(dtype)

    def __len__(self) -> int:
        """Return the number of values; offsets have one more."""
        return int(self._edges[-1]) + (self._shifts is not None)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)), dtype=np.int64)
        numbers = np.asarray(index)
        if numbers.dtype == bool:
            if numbers.shape != (len(self),):
                raise IndexError(
                    f"a mask of shape {numbers.shape} is not one of {len(self)} values"
                )
            numbers = np.flatnonzero(numbers)
        numbers = numbers.astype(np.int64, copy=False)
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        found = self._each(numbers.reshape(-1), 1, take_values).reshape(numbers.shape)
        return found if numbers.ndim else found[()]

    def read(self, numbers: Int64, width: int = 1) -> Values:
        """Return `width` values from each number on, as `gather` reads them: [n, width].

        IndexError if a number is out of range.
        """
        return self._each(numbers, width, read_values)

    def spans(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Return offsets, and by how much those that follow are larger: int64 [n] each."""
        starts, stops = self._each(numbers, 2, take_values).T
        return starts, stops - starts

    def _each(self, numbers: Int64, width: int, take: Callable[..., Values]) -> Values:
        found = np.empty((len(numbers), width), self.dtype)
        with_last = self._shifts is not None and width == 1
        for part, chosen, own in split_by_part(self._edges, numbers, offsets=with_last):
            values = take(self._parts[part](), own, width)
            if self._codes is not None:
                values = self._codes[part][values]
            found[chosen] = values if self._shifts is None else values + self._shifts[part]
        return found


def split_by_part(
    edges: Int64, numbers: Int64, *, offsets: bool = False
) -> list[tuple[int, Any, Int64]]:
    """Split numbers, int64 [n], by the part of `edges` that holds each; IndexError if none does.

    Return for each part with some of them, in order: its number, the places of its numbers (an
    index), and the numbers less the part's first. With `offsets`, numbers go up to `edges[-1]`.
    """
    if not len(numbers):
        return []
    least, most = int(numbers.min()), int(numbers.max())
    end = int(edges[-1])
    if least < 0 or most > end or (most == end and not offsets):
        raise IndexError(f"{least if least < 0 else most} is not in 0 ... {end - 1 + offsets}")
    last = int(np.searchsorted(edges, end))  # of empty parts at the end, none is asked
    first = min(int(np.searchsorted(edges, least, side="right")), last) - 1
    if most < edges[first + 1] or first + 1 == last:  # all in one, as in most small batches
        return [(first, slice(None), numbers - edges[first])]
    parts = np.minimum(np.searchsorted(edges, numbers, side="right"), last) - 1
    order = np.argsort(parts, kind="stable")
    held, starts = np.unique(parts[order], return_index=True)
    return [
        (part, chosen, numbers[chosen] - edges[part])
        for part, chosen in zip(held.tolist(), np.split(order, starts[1:]), strict=True)
    ]


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
    # `sample_edges`, `member_edges`: number of the first one of each, and of all: int64 [parts + 1]
    sample_edges: Int64
    member_edges: Int64
    codes: Sequence[UInt16]  # number in `extensions` of each extension of each dataset

    @staticmethod
    def of(
        parts: Sequence[Callable[[], Columns]], counts: Sequence[ColumnCounts]
    ) -> MixtureColumns:
        extensions = tuple(dict.fromkeys(ext for count in counts for ext in count.extensions))
        numbers = {name: number for number, name in enumerate(extensions)}
        codes = [np.array([numbers[ext] for ext in one.extensions], np.uint16) for one in counts]
        samples = edges_of([count.samples for count in counts])
        members = edges_of([count.members for count in counts])
        images = edges_of([count.images for count in counts])
        shifts = {"sample_member": members[:-1], "sample_image": images[:-1]}
        edges = {"sample": samples, "text": samples, "member": members, "image": images}
        columns: dict[str, Any] = {
            name: MixtureColumn(
                [partial(_column, part, name) for part in parts],
                edges[name.partition("_")[0]],
                dtype,
                shifts=shifts.get(name),
                codes=codes if name == "member_ext" else None,
            )
            for name, dtype in DTYPES.items()
            if name not in _TEXTS
        }
        return MixtureColumns(
            parts=parts,
            counts=counts,
            sample_edges=samples,
            member_edges=members,
            codes=codes,
            extensions=extensions,
            index_bytes=(),  # those of each dataset are compared when it is opened
            shard_sample=edges_of(np.concatenate([count.shard_samples for count in counts])),
            **columns,
            **dict.fromkeys(_TEXTS, _NONE),  # asked of each dataset
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return MixtureColumns.of, (self.parts, self.counts)

    def member_values(self, indices: Int64) -> tuple[UInt16, Int64, Int64, UInt32]:
        # Split once for all columns: batches of many datasets ask for little else.
        codes = np.empty(len(indices), np.uint16)
        offsets, sizes = np.empty((2, len(indices)), np.int64)
        sums = np.empty(len(indices), np.uint32)
        for part, chosen, own in split_by_part(self.member_edges, indices):
            values = self.parts[part]().member_values(own)
            codes[chosen] = self.codes[part][values[0]]
            offsets[chosen], sizes[chosen], sums[chosen] = values[1:]
        return codes, offsets, sizes, sums

    def strings(self, name: str, start: int, stop: int) -> pa.Array:
        return pa.array(self.texts(name, np.arange(start, stop)), pa.large_string())

    def texts(self, name: str, samples: Int64) -> list[str]:
        found = np.empty(len(samples), object)
        for part, chosen, own in split_by_part(self.sample_edges, samples):
            found[chosen] = self.parts[part]().texts(name, own)
        texts: list[str] = found.tolist()
        return texts


def edges_of(counts: Sequence[int] | Integers) -> Int64:
    """Return the number of the first item of each of some datasets, and of all: int64 [n + 1]."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _column(part: Callable[[], Columns], name: str) -> Any:
    return getattr(part(), name)


@dataclass(eq=False, kw_only=True)
class DatasetPart:
    """One dataset of a mixture. It is opened when it is first needed, in any thread or process.

    A dataset alone is the only part of a mixture of one, see `part_of`.
    """

    name: str  # in the mixture
    open_it: Callable[[int], Dataset]  # opens it, as one of so many
    # `counts`, `fingerprint`: that it had when the mixture was opened
    counts: ColumnCounts
    fingerprint: str
    of: int  # datasets of the mixture, which share the limits of memory of one
    is_remote: bool  # True if its shards are behind a URL
    arrays: Arrays | None = None  # None where there are shards
    max_frames: int | None = None  # of each video of its samples
    is_named: bool = True  # True if messages name it; false for a dataset alone

    def __post_init__(self) -> None:
        self._dataset: Dataset | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        options = {item.name: getattr(self, item.name) for item in fields(self)}
        return partial(DatasetPart, **options), ()

    @property
    def prefix(self) -> str:
        """Beginning of messages about the dataset."""
        return f"dataset {self.name!r} of the mixture: " if self.is_named else ""

    def dataset(self) -> Dataset:
        """Return the dataset; IndexMismatch if it has changed since the mixture was opened."""
        if self._dataset is None:
            with self._lock:
                if self._dataset is None:
                    self._dataset = self._checked(self.open_it(self.of))
        return self._dataset

    def unchanged(self) -> Dataset:
        """Return the dataset, before files are opened that nothing else compares with its index.

        IndexMismatch if it has changed since the mixture was opened.
        """
        dataset = self.dataset()
        dataset.check_unchanged()
        return dataset

    def alone(self) -> Dataset:
        """Open the dataset to look at all of it, as if it were the only one."""
        return self._checked(self.open_it(1))

    def columns(self) -> Columns:
        return self.dataset().columns

    def _checked(self, dataset: Dataset) -> Dataset:
        if dataset.fingerprint != self.fingerprint:
            raise IndexMismatch(
                f"{dataset.folder} was packed or indexed again after it was opened as dataset "
                f"{self.name!r} of a mixture; call make_loader again"
            )
        return dataset


def part_of(dataset: Dataset) -> DatasetPart:
    """Return a dataset alone as the part of a mixture of one."""
    return DatasetPart(
        name=dataset.name,
        open_it=partial(_itself, dataset),
        counts=ColumnCounts.of(dataset.columns),
        fingerprint=dataset.fingerprint,
        of=1,
        is_remote=isinstance(dataset.folder, RemoteFolder),
        arrays=dataset.manifest.arrays,
        max_frames=dataset.max_frames,
        is_named=False,
    )


def _itself(dataset: Dataset, of: int) -> Dataset:
    return dataset
