"""Samples of one part of a mixture: those that take part, and their sizes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from datapipe.array_types import Int64
from datapipe.index.dataset_part import DatasetPart
from datapipe.index.files.block_checksums import as_one_of
from datapipe.loader.schedule.mixture.notes import MixtureNotes
from datapipe.loader.schedule.sample_source import SampleSelection, TextRule, TextSizes
from datapipe.mixture.spec import MixtureDataset
from datapipe.plan.order import Permutation
from datapipe.plan.rng import derive
from datapipe.text.frames import Frames

if TYPE_CHECKING:  # imports torch, which planning does not need
    from datapipe.decode.transform import ImageTransform

_LIMIT = 3  # purpose of a derived key
_CHUNK = 1 << 16  # samples that are added up at a time


class MixturePart:
    """Samples of one dataset of a mixture that take part; opened when they are first needed.

    `select` is `select_samples` of the dataset, and `described` all that it depends on beside the
    dataset. `groups` are names, outermost first.
    """

    def __init__(
        self,
        entry: MixtureDataset,
        data: DatasetPart,
        rule: TextRule | None,
        select: Callable[..., SampleSelection],
        *,
        groups: tuple[str, ...],
        image: ImageTransform | None,
        described: object,
        notes: MixtureNotes,
    ) -> None:
        self.name = entry.name  # empty for a dataset that is given alone
        self.groups = groups
        self.data = data
        self.key = key_of(entry.name)
        self.rule = rule  # of its texts; None without a tokenizer
        self.image = image
        self._select = select
        self._notes = notes
        self._selection: SampleSelection | None = None
        self._lock = threading.Lock()
        self._asked = (data.fingerprint, described)
        note = notes.get("samples", *self._asked)
        if note is None:
            found = select(data.alone())
            if data.of == 1:
                self._selection = found
            note = {"samples": found.count, "identity": found.identity}
            note["warnings"] = found.warnings
            notes.put(note, "samples", *self._asked)
        self.warnings = [f"{entry.prefix}{warning}" for warning in note["warnings"]]
        self._known = note["identity"]
        self.whole = int(note["samples"])  # that take part but for `limit`
        self.samples = entry.limited(self.whole)
        self.identity: dict[str, Any] = {**note["identity"], "limit": entry.limit}
        self._limit: Permutation | None = None
        if self.samples < self.whole:
            self._limit = Permutation(self.whole, derive(self.key, _LIMIT))

    def __getstate__(self) -> dict[str, Any]:
        # A worker process asks for tokens of images alone, and opens the dataset itself.
        return {**vars(self), "_selection": None, "_lock": None, "_notes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def selection(self) -> SampleSelection:
        """Return the samples that take part, without `limit`."""
        if self._selection is None:
            with self._lock:
                if self._selection is None:
                    with as_one_of(self.data.of):
                        self._selection = self._select(self.data.dataset(), known=self._known)
        return self._selection

    def text(self) -> TextSizes:
        """Return the sizes of its samples; there is a tokenizer."""
        text = self.selection().text
        assert text is not None
        return text

    def image_runs(self, sample: int) -> list[Int64]:
        """Return the tokens of each image of a sample of the dataset, int64 [its length] each."""
        assert self.rule is not None
        return self.rule.image_runs(self.data.columns(), sample)

    def image_grids(self, sample: int) -> Int64:
        """Return rows and columns in tokens of each image of a sample: int64 [its images, 2]."""
        assert self.rule is not None
        return self.rule.image_grids(self.data.columns(), sample)

    def frames(self, sample: int) -> Frames | None:
        """Return the frames of videos among the images of a sample; None if each is an image."""
        assert self.rule is not None
        return self.rule.frames(self.data.columns(), sample)

    def select(self, indices: Int64) -> Int64:
        """Return the numbers in the dataset of some samples that take part: int64 [n]."""
        if self._limit is not None:
            indices = self._limit(indices)
        select = self.selection().select
        return indices if select is None else select(indices)

    def mean_tokens(self) -> float:
        """Return the mean tokens of the samples that take part; looks at all of them once."""
        asked = ("tokens", *self._asked, self.samples)
        note = self._notes.get(*asked)
        if note is None:
            total = 0
            for start in range(0, self.samples, _CHUNK):
                stop = min(start + _CHUNK, self.samples)
                numbers = self.select(np.arange(start, stop, dtype=np.int64))
                total += int(self.text().measure(numbers).tokens.sum())
            note = total / self.samples
            self._notes.put(note, *asked)
        return float(note)

    def shards(self) -> Int64 | None:
        """Return the samples of each shard that take part; None with a limit."""
        return None if self._limit is not None else self.selection().shards


def key_of(name: str) -> int:
    """Return the 64-bit key of a dataset's name; 0 for a dataset that is given alone.

    Thus the order of one dataset depends on its content and the seed, and not on its path.
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) if name else 0
