"""Members of samples as webdataset gives them: a dict of bytes by extension."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import Any

from datapipe.array_types import Int64
from datapipe.errors import DecodeError, PlanError, SampleError
from datapipe.index.dataset import Dataset
from datapipe.index.files.crc32 import NOT_AS_INDEXED
from datapipe.index.rows import Member
from datapipe.index.tar.member_names import BEFORE, name_in_tar
from datapipe.remote.folder import RemoteFolder
from datapipe.store.mixture_store import MixtureStore
from datapipe.store.open import open_store


class RawSamples:
    """Reader of whole samples, for one thread in any process; `PlanError` for samples in arrays."""

    def __init__(self, dataset: Dataset, *, verify: bool) -> None:
        for part in dataset.parts:
            if part.arrays is not None:
                raise PlanError(
                    f"{part.prefix}{part.dataset().folder} holds arrays, whose samples have no "
                    "members; give the shards that they were converted from"
                )
        self._dataset, self._verify = dataset, verify
        self._store: MixtureStore | None = None
        self._process = os.getpid()

    def read(self, samples: Int64) -> Iterator[dict[str, Any]]:
        """Yield samples by number, int64 [n]; `DecodeError` or `StoreError` if one is damaged."""
        store, columns = self._open(), self._dataset.columns
        shards = columns.shards(samples).tolist()
        members = [columns.members(sample) for sample in samples.tolist()]
        wanted = [
            (shard, [*own, *self._headers(sample, own)])
            for sample, shard, own in zip(samples.tolist(), shards, members, strict=True)
        ]
        fetch = store.begin(wanted)
        for number, key in enumerate(columns.keys(samples)):
            contents = [] if fetch is None else fetch.contents(number)
            if len(contents) != len(wanted[number][1]):  # it is not in a remote dataset
                contents = store.read(*wanted[number])
            place = {"key": key, "shard": store.name(shards[number])}
            if self._verify:
                for member, data in zip(members[number], contents, strict=False):
                    if not store.verify(member, data):
                        name = f"{key}.{member.ext}"
                        raise DecodeError(NOT_AS_INDEXED, **place, member=name)
            url = self._url(int(samples[number]), place["shard"])
            yield _sample(key, url, members[number], contents, place)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _open(self) -> MixtureStore:
        if os.getpid() != self._process:
            # The thread and the connections of remote folders stay behind in a fork.
            self._process, self._store = os.getpid(), None
            if any(part.is_remote for part in self._dataset.parts):
                self._dataset = pickle.loads(pickle.dumps(self._dataset))
        if self._store is None:
            self._store = open_store(self._dataset)
        return self._store

    def _headers(self, sample: int, members: list[Member]) -> list[Member]:
        """Return the bytes before each member of a foreign shard, where its name is."""
        if not self._part(sample).manifest.foreign:
            return []
        sizes = [min(member.offset, BEFORE) for member in members]
        pairs = zip(members, sizes, strict=True)
        return [Member("", member.offset - size, size, 0) for member, size in pairs]

    def _url(self, sample: int, shard: str) -> str:
        folder = self._part(sample).folder
        return folder.url_of(shard) if isinstance(folder, RemoteFolder) else str(folder / shard)

    def _part(self, sample: int) -> Dataset:
        parts, edges = self._dataset.parts, self._dataset.sample_edges
        return parts[int(edges.searchsorted(sample, side="right")) - 1].dataset()


def _sample(
    key: str, url: str, members: list[Member], contents: list[memoryview], place: dict[str, str]
) -> dict[str, Any]:
    """Return a sample; the bytes before its members follow those of the members, if they tell."""
    names = [(key, member.ext) for member in members]
    if headers := contents[len(members) :]:
        names = [name_in_tar(before, *name) for before, name in zip(headers, names, strict=True)]
    sample: dict[str, Any] = {"__key__": names[0][0] if names else key, "__url__": url}
    for (_, ext), data in zip(names, contents, strict=False):
        if ext in sample:
            raise SampleError(
                f"two of its members are called {ext!r}, since webdataset writes extensions in "
                "lower case; rename one of them",
                **place,
            )
        sample[ext] = bytes(data)
    return sample
