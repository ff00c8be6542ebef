"""Texts and records of all samples, read in bounded chunks of a shard."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from datapipe.errors import DecodeError, SampleError
from datapipe.index.dataset import Dataset
from datapipe.index.files.crc32 import NOT_AS_INDEXED
from datapipe.index.members import Kind, SampleParts, member_kind
from datapipe.index.mixture import edges_of
from datapipe.store.protocol import Store

_CHUNK = 256  # samples read at once: enough for the tokenizer's own threads
_CHUNK_BYTES = 4 << 20  # of texts, as documents can be long


class TextChunk(NamedTuple):
    """Samples `start` to `stop` of one shard; `last` if the shard ends with them."""

    shard: int
    start: int
    stop: int
    last: bool


class TextReader:
    """Reader of the members of a dataset that hold text, of some kinds; from any thread."""

    def __init__(
        self, dataset: Dataset, store: Store, kinds: Collection[Kind] = ("text", "json")
    ) -> None:
        self._columns = dataset.columns
        self._store = store
        extensions = dataset.columns.extensions
        self._is_text = np.array([member_kind(ext) in kinds for ext in extensions], bool)

    def chunks(self, shard: int) -> Iterator[TextChunk]:
        """Cut a shard into chunks, bounded in samples and in bytes of text. One at least."""
        columns = self._columns
        first, last = columns.shard_sample[shard : shard + 2].tolist()
        members = columns.sample_member[first : last + 1]
        span = slice(members[0], members[-1])
        is_text = self._is_text[columns.member_ext[span]]
        sizes = np.where(is_text, columns.member_size[span], 0)
        before = edges_of(sizes)[members - members[0]]
        start = first
        while True:
            end = np.searchsorted(before, before[start - first] + _CHUNK_BYTES, side="right") - 1
            stop = min(max(first + int(end), start + 1), start + _CHUNK, last)
            yield TextChunk(shard, start, stop, stop == last)
            if stop == last:
                return
            start = stop

    def read(self, chunk: TextChunk) -> list[SampleParts | SampleError]:
        """Return caption and record of each sample of a chunk, or its error."""
        columns = self._columns
        bounds = columns.sample_member[chunk.start : chunk.stop + 1]
        wanted = np.flatnonzero(self._is_text[columns.member_ext[bounds[0] : bounds[-1]]])
        slots = np.searchsorted(bounds - bounds[0], wanted, side="right") - 1
        members = columns.members_at(wanted + bounds[0])
        found: list[SampleParts | SampleError]
        found = [SampleParts() for _ in range(chunk.start, chunk.stop)]
        contents = self._store.read(chunk.shard, members)
        for slot, member, data in zip(slots.tolist(), members, contents, strict=True):
            parts = found[slot]
            if isinstance(parts, SampleError):
                continue
            try:
                if not self._store.verify(member, data):
                    raise DecodeError(NOT_AS_INDEXED)
                parts.add(member, data)
            except SampleError as error:
                key = columns.key(chunk.start + slot)
                found[slot] = type(error)(error.reason, member=f"{key}.{member.ext}")
        return found
