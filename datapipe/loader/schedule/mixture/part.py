"""Samples of one part of a mixture, those that take part and their sizes; notes about them."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import DatapipeError
from datapipe.index.files.block_checksums import as_one_of
from datapipe.index.files.derived import cache_folder
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.manifest import replace_file
from datapipe.index.mixture import DatasetPart
from datapipe.loader.schedule.sample_source import SampleSelection, TextRule, TextSizes
from datapipe.mixture.spec import MixtureDataset
from datapipe.plan.order import Permutation
from datapipe.plan.rng import derive

if TYPE_CHECKING:  # imports torch, which planning does not need
    from datapipe.decode.transform import ImageTransform

logger = logging.getLogger(__name__)

_VERSION = 3  # of notes
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


class MixtureNotes:
    """Notes in one file of the user's cache folder, named after the datasets' paths.

    A note is under a key that names all it depends on, so one that is out of date is not found.
    Without a file that can be read, everything is looked up again, and without paths there is none.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._path: Path | None = None
        self._notes: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        if not paths:
            return
        digest = hashlib.sha256(json.dumps(paths).encode()).hexdigest()[:32]
        try:
            self._path = cache_folder() / "mixtures" / f"{digest}.json"
            document = unseal(self._path.read_bytes())
            if document.get("version") == _VERSION:
                self._notes = document["notes"]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, DatapipeError) as error:
            logger.info("notes of a mixture are looked up again: %s", error)

    def get(self, *key: object) -> Any:
        """Return a note; None if there is none."""
        name = _name(key)
        found = self._notes.get(name)
        if found is not None:
            self._kept[name] = found
        return found

    def put(self, note: object, *key: object) -> None:
        """Add a note, JSON-compatible."""
        self._kept[_name(key)] = note

    def save(self) -> None:
        """Write the notes that were asked for or added, if any is new."""
        if self._path is None or self._kept.keys() <= self._notes.keys():
            return
        # Other options of the same datasets have notes of their own.
        self._notes |= self._kept
        content = seal({"version": _VERSION, "notes": self._notes}).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, content, durable=False)
        except OSError as error:
            logger.info("notes of a mixture cannot be kept: %s", error)


def _name(key: tuple[object, ...]) -> str:
    return hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()[:32]
