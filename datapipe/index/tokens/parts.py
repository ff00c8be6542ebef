"""Token counts of the samples of one shard, and the files that keep them until all are there.

A file is named after the shard's index, so an interrupted count continues with the shards that are
missing, and one of a dataset that has grown counts the new ones.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datapipe.array_types import Int32, Int64
from datapipe.index.files.derived import read_summed, write_summed
from datapipe.index.manifest import Shard

VERSION = 1
"""Of parts and of the columns they become; raise it where what stands in them changes."""

DTYPES: dict[str, str] = {
    "text_tokens": "<i4",
    "label_tokens": "<i4",
    "sample_image_at": "<i8",
    "image_at": "<i4",
    "sample_label": "<i8",
    "label_start": "<i4",
    "label_stop": "<i4",
}
"""Every column and its dtype, in NumPy's notation. `TokenColumns` says what they hold."""

OFFSETS = {"sample_image_at": "places", "sample_label": "spans"}
"""Columns of offsets, and what a part calls the counts that they are made of."""

_ARRAYS = {OFFSETS.get(name, name): dtype for name, dtype in DTYPES.items()}
_ABOUT = "about"
_SUFFIX = ".npz"


class TextFailure(NamedTuple):
    """A sample whose text cannot be used."""

    key: str  # of the sample
    reason: str  # why, for a person
    member: str = ""  # the file at fault, where it is one


@dataclass(frozen=True, kw_only=True)
class TokenPart:
    """Token counts of n successive samples."""

    # int32 [n], tokens without those of images; -1 where the text cannot be used
    text_tokens: Int32
    label_tokens: Int32  # int32 [n], tokens that are predicted
    places: Int64  # int64 [n], how many items of `image_at` each sample has
    image_at: Int32  # int32, number of text tokens before each image
    spans: Int64  # int64 [n], how many items of `label_start` and `label_stop` each sample has
    # `label_start`, `label_stop`: int32, runs of trained text tokens
    label_start: Int32
    label_stop: Int32
    failures: tuple[TextFailure, ...] = ()  # in the order of the samples

    def __len__(self) -> int:
        return len(self.text_tokens)


def join_parts(parts: Sequence[TokenPart]) -> TokenPart:
    """Return parts that follow each other as one."""
    arrays: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)])
        for name, dtype in _ARRAYS.items()
    }
    failures = tuple(failure for part in parts for failure in part.failures)
    return TokenPart(**arrays, failures=failures)


class PartFiles:
    """Parts of a count, one file per shard; `digest` names the tokenizer and the template."""

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder = folder
        self.digest = digest

    def __len__(self) -> int:
        """Return the number of files, usable or not."""
        return sum(1 for _ in self._folder.glob(f"*{_SUFFIX}"))

    def missing(self, shards: Iterable[Shard]) -> list[int]:
        """Return the numbers of the shards that have no part that can be used."""
        return [number for number, shard in enumerate(shards) if self.read(shard) is None]

    def read(self, shard: Shard) -> TokenPart | None:
        """Return the part of a shard; None if it is missing, torn or of another count.

        Every byte is compared with a checksum before any is parsed.
        """
        if (body := read_summed(self._path(shard))) is None:
            return None
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            about = json.loads(file[_ABOUT].tobytes())
            if (about["version"], about["digest"]) != (VERSION, self.digest):
                return None
            arrays = {name: file[name] for name in _ARRAYS}
        failures = tuple(TextFailure(*failure) for failure in about["failures"])
        part = TokenPart(**arrays, failures=failures)
        return part if len(part) == shard.samples else None

    def write(self, shard: Shard, part: TokenPart) -> None:
        """Keep the part of a shard. Nothing waits for the disk: a torn file is not read."""
        assert len(part) == shard.samples
        about = {"version": VERSION, "digest": self.digest, "failures": part.failures}
        arrays: dict[str, Any] = {name: getattr(part, name) for name in _ARRAYS}
        arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        file = io.BytesIO()
        np.savez(file, **arrays)
        write_summed(self._path(shard), file.getvalue())

    def _path(self, shard: Shard) -> Path:
        return self._folder / f"{shard.index_sha256[:32]}{_SUFFIX}"
