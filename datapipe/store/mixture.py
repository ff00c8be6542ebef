"""Stores of the datasets of a mixture as one, and those of its datasets that are arrays."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.errors import IndexMismatch
from datapipe.index.files.block_checksums import as_one_of
from datapipe.index.mixture import DatasetPart, edges_of, split_by_part
from datapipe.index.rows import Member
from datapipe.store.arrays import IMAGES, ArrayDataset, ArrayStore, open_images
from datapipe.store.protocol import Fetch, Store


class MixtureStore(Store):
    """Reader of the samples of several datasets, whose shards are numbered one after the other.

    `shard_edges` is the number of the first shard of each, int64 [datasets + 1]; `is_remote` says
    if reads of it gain from beginning early. Stores are opened when they are first needed.
    """

    def __init__(
        self, open_part: Callable[[int], Store], shard_edges: Int64, is_remote: Sequence[bool]
    ) -> None:
        self._open_part = open_part
        self._is_remote = is_remote
        self._edges = shard_edges
        self._starts: list[int] = shard_edges[:-1].tolist()
        self._stores: dict[int, Store] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return MixtureStore, (self._open_part, self._edges, self._is_remote)

    def name(self, shard: int) -> str:
        store, own = self._at(shard)
        return store.name(own)

    def read(self, shard: int, members: Sequence[Member]) -> list[memoryview]:
        store, own = self._at(shard)
        return store.read(own, members)

    def begin(self, samples: Sequence[tuple[int, Sequence[Member]]]) -> Fetch | None:
        if not any(self._is_remote):
            return None
        shards = np.array([shard for shard, _ in samples], np.int64)
        fetches: dict[int, tuple[Fetch, int]] = {}  # by sample, with its number in the fetch
        size = 0
        for part, chosen, own in split_by_part(self._edges, shards):
            if not self._is_remote[part]:
                continue
            numbers = np.arange(len(shards))[chosen].tolist()
            members = [samples[number][1] for number in numbers]
            fetch = self.part(part).begin(list(zip(own.tolist(), members, strict=True)))
            if fetch is not None:
                size += fetch.bytes
                fetches |= {number: (fetch, at) for at, number in enumerate(numbers)}

        def contents(number: int) -> list[memoryview]:
            if number not in fetches:  # its dataset is read when it is asked for
                return []
            fetch, own = fetches[number]
            return fetch.contents(own)

        return Fetch(size, contents)

    def part(self, number: int) -> Store:
        store = self._stores.get(number)
        if store is None:
            # Two threads may open it; one of the two is kept, and neither has an open file yet.
            store = self._stores.setdefault(number, self._open_part(number))
        return store

    def close(self) -> None:
        for store in list(self._stores.values()):
            store.close()

    def _at(self, shard: int) -> tuple[Store, int]:
        part = bisect_right(self._starts, shard) - 1
        return self.part(part), shard - self._starts[part]


class MixtureArrays:
    """Datasets of arrays in a mixture, each mapped when it is first needed.

    `image_edges` is the number of the first image of each part, and of all, int64 [parts + 1].
    `size` is the number of values of an image, of all datasets; 0 if images are not wanted.
    """

    def __init__(self, parts: Sequence[DatasetPart], store: MixtureStore, *, images: bool) -> None:
        self._parts, self._store, self._images = parts, store, images
        self._is_array = np.array([part.arrays is not None for part in parts], bool)
        sides = [part.arrays.image["size"] for part in parts if part.arrays and part.arrays.image]
        self.size = 3 * math.prod(map(int, sides[0])) if images and sides else 0
        self._opened: dict[int, ArrayDataset] = {}
        self.image_edges = edges_of([part.counts.images for part in parts])
        # Compared ones, of all parts. Memory is only taken where a value is written.
        self._good_images = np.zeros(self.image_edges[-1], bool)
        self._good_texts = np.zeros(sum(part.counts.members for part in parts), bool)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(MixtureArrays, images=self._images), (self._parts, self._store)

    def hold(self, parts: Int64) -> Bools:
        """Return which parts are arrays: bool [n], of their numbers int64 [n]."""
        found: Bools = self._is_array[parts]
        return found

    def part(self, number: int) -> ArrayDataset:
        """Return a dataset of arrays, by its number; raise `IndexMismatch` if it has changed."""
        opened = self._opened.get(number)
        if opened is None:
            # Two threads may map it; one of the two is kept.
            opened = self._opened.setdefault(number, self._open(number))
        return opened

    def damaged_images(self, images: Int64) -> list[int]:
        """Return the indices in `images`, int64 [n], of damaged ones; each is compared once."""
        parts = (self.image_edges.searchsorted(images, side="right") - 1).tolist()

        def is_whole(index: int) -> bool:
            held = self.part(parts[index]).images
            assert held is not None
            return held.is_whole(int(images[index] - self.image_edges[parts[index]]))

        return _damaged(images, self._good_images, is_whole)

    def damaged_texts(self, members: Int64, is_whole: Callable[[int], bool]) -> list[int]:
        """Return the indices in `members`, int64 [n], of damaged texts; `is_whole` takes each."""
        return _damaged(members, self._good_texts, is_whole)

    def _open(self, number: int) -> ArrayDataset:
        part = self._parts[number]
        with as_one_of(part.of):
            dataset, store = part.unchanged(), self._store.part(number)
            assert isinstance(store, ArrayStore)
            images = open_images(dataset) if self._images else None
        if images is not None and len(images.placements) != part.counts.images:
            raise IndexMismatch(
                f"{dataset.folder}: {IMAGES} holds {len(images.placements):,} images, and the "
                f"index {part.counts.images:,}; restore all from one copy of the dataset"
            )
        return ArrayDataset(texts=store, images=images)


def _damaged(numbers: Int64, good: Bools, is_whole: Callable[[int], bool]) -> list[int]:
    bad = []
    for index in np.flatnonzero(~good[numbers]).tolist():
        if is_whole(index):
            good[numbers[index]] = True
        else:
            bad.append(index)
    return bad
