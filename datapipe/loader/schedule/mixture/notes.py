"""Notes of what was found in the datasets of a mixture, so that they need not be opened for it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.errors import DatapipeError
from datapipe.index.files.derived import cache_folder
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.manifest import replace_file
from datapipe.index.mixture_columns import ColumnCounts

logger = logging.getLogger(__name__)

_VERSION = 3


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


def dump_counts(counts: ColumnCounts) -> dict[str, Any]:
    """Return counts as JSON has them."""
    return {**vars(counts), "shard_samples": counts.shard_samples.tolist()}


def parse_counts(note: dict[str, Any]) -> ColumnCounts:
    """Return the counts of `dump_counts`."""
    return ColumnCounts(
        **{
            **note,
            "shard_samples": np.array(note["shard_samples"], np.int64),
            "extensions": tuple(note["extensions"]),
        }
    )


def _name(key: tuple[object, ...]) -> str:
    return hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()[:32]
