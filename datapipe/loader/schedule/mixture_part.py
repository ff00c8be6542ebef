"""Samples of one dataset of a mixture: those that take part, and their sizes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from datapipe.array_types import Int64
from datapipe.index.dataset import Dataset
from datapipe.index.mixed_dataset import DatasetPart
from datapipe.loader.schedule.mixture_notes import MixtureNotes
from datapipe.loader.schedule.sample_source import Origin, TextSizes
from datapipe.mixture.spec import MixtureDataset
from datapipe.plan.order import Permutation
from datapipe.plan.rng import derive
from datapipe.plan.units import Sizes

_LIMIT = 3  # purpose of a derived key
_CHUNK = 1 << 16  # samples that are added up at a time


class PartSource:
    """Samples of one dataset of a mixture that take part; opened when they are first needed.

    Args:
        entry: of the mixture.
        part: the dataset.
        open_origin: selects and measures its samples.
        described: all that `open_origin` depends on beside the dataset.

    Attributes:
        samples: number that takes part, after `limit`.
        identity: of the selection and sizes; JSON-compatible.
    """

    def __init__(
        self,
        entry: MixtureDataset,
        part: DatasetPart,
        open_origin: Callable[[Dataset], Origin],
        *,
        described: object,
        notes: MixtureNotes,
    ) -> None:
        self.name = entry.name
        self.part = part
        self.key = int.from_bytes(hashlib.sha256(entry.name.encode()).digest()[:8])
        self._open_origin = open_origin
        self._notes = notes
        self._origin: Origin | None = None
        self._lock = threading.Lock()
        self._asked = (part.fingerprint, described)
        note = notes.get("samples", *self._asked)
        if note is None:
            origin = self.origin()
            note = {"samples": origin.source.count, "identity": origin.identity}
            notes.put(note, "samples", *self._asked)
        self._whole = int(note["samples"])
        self.samples = entry.limited(self._whole)
        self.identity: dict[str, Any] = {**note["identity"], "limit": entry.limit}
        self._limit: Permutation | None = None
        if self.samples < self._whole:
            self._limit = Permutation(self._whole, derive(self.key, _LIMIT))

    def origin(self) -> Origin:
        """Return the source of the dataset alone, without `limit`."""
        if self._origin is None:
            with self._lock:
                if self._origin is None:
                    self._origin = self._open_origin(self.part.dataset())
        return self._origin

    @property
    def text(self) -> TextSizes:
        """Sizes of its samples; there is a tokenizer."""
        text = self.origin().text
        assert text is not None
        return text

    def select(self, indices: Int64) -> Int64:
        """Return the numbers in the dataset of some samples that take part: int64 [n]."""
        if self._limit is not None:
            indices = self._limit(indices)
        source = self.origin().source
        return indices if source.select is None else source.select(indices)

    def measure(self, numbers: Int64) -> Sizes:
        """Return the sizes of samples, by their numbers in the dataset."""
        return self.text.measure(numbers)

    def mean_tokens(self) -> float:
        """Return the mean tokens of the samples that take part; looks at all of them once."""
        asked = ("tokens", *self._asked, self.samples)
        note = self._notes.get(*asked)
        if note is None:
            total = 0
            for start in range(0, self.samples, _CHUNK):
                stop = min(start + _CHUNK, self.samples)
                numbers = self.select(np.arange(start, stop, dtype=np.int64))
                total += int(self.measure(numbers).tokens.sum())
            note = total / self.samples
            self._notes.put(note, *asked)
        return float(note)

    def shards(self) -> Int64 | None:
        """Return the samples of each shard that take part; None with a limit."""
        return None if self._limit is not None else self.origin().source.shards
