"""Stores of the datasets of a mixture as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from datapipe.array_types import Int64
from datapipe.index.mixture_columns import split_by_part
from datapipe.index.rows import Member
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
        return MixtureFetch(fetches, size)

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


class MixtureFetch(Fetch):
    """Members of samples of several datasets on their way."""

    def __init__(self, fetches: dict[int, tuple[Fetch, int]], size: int) -> None:
        self.bytes = size
        self._fetches = fetches

    def contents(self, number: int) -> list[memoryview]:
        """Return the members of a sample; none if its dataset is read when it is asked for."""
        if number not in self._fetches:
            return []
        fetch, own = self._fetches[number]
        return fetch.contents(own)
