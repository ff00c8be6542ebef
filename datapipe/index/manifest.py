"""The manifest `dataset.json`. It is written last, so a folder without one is unfinished.

It has no time, host, path or worker count: the same input and options give the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from datapipe.declared import shorten
from datapipe.errors import IndexMismatch
from datapipe.index.files.sealed_json import parse_json, seal, unsealed

T = TypeVar("T", "Shard", "Contribution", "Arrays")

MANIFEST = "dataset.json"
_FORMAT = "datapipe"
FORMAT_VERSION = 2
ARRAYS_VERSION = 3
"""Of datasets of arrays, which would seem to have lost their images to those who know shards."""

_INDEX = re.compile(r"(shard|part)-\d{6,}\.parquet")  # of one shard of ours, of arrays

UNFINISHED = ".pack"
"""Folder inside an output that a pack works in; it is gone when the pack is finished."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One tar file of a dataset."""

    name: str  # file name, relative to the dataset's folder, with forward slashes
    index: str  # name of its Parquet index, likewise
    # `samples`, `images`: counts
    samples: int
    images: int
    bytes: int  # size of the tar file
    index_sha256: str  # of the index file, which carries every member's checksum


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The share of one run of `datapipe pack`: the first, or one that appended."""

    shards: int  # number of shards it wrote
    # `inputs`, `inputs_sha256`: of the raw data: how many, and a digest of what they are
    inputs: int
    inputs_sha256: str
    rejected: int  # inputs that could not be packed
    rejects_bytes: int = 0  # what they take in the file of rejects
    saved_bytes: int = 0  # by which shrinking made the images smaller
    options: dict[str, Any] = field(default_factory=dict)  # those that the content depends on


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """The files of a dataset of arrays; its index is that of the shards it came from."""

    files: dict[str, int]  # bytes of every file
    checksums_crc32: int  # checksum of the checksums of the files that have none of their own
    # The options of `ImageSpec` that its pixels depend on; empty where it has no images
    image: dict[str, Any] = field(default_factory=dict)
    encoder: str = ""  # digest of the tokenizer and template that made its tokens; empty for none
    frames: bool = False  # whether some of its images are frames of videos; written if they are


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `dataset.json`."""

    shards: tuple[Shard, ...]  # in order of their samples
    # The packs that made it, each with its share of the shards; none where someone else wrote the
    # shards
    parts: tuple[Contribution, ...] = ()
    arrays: Arrays | None = None  # None where there are shards

    @property
    def foreign(self) -> bool:
        """True if someone else wrote the shards, and we have only indexed them."""
        return not self.parts

    @property
    def is_view(self) -> bool:
        """True if the shards are those of other datasets, and have samples that are not in it."""
        return self.arrays is None and any(part.options.get("view") for part in self.parts)

    @property
    def rejected(self) -> int:
        return sum(part.rejected for part in self.parts)

    @property
    def inputs(self) -> int:
        return sum(part.inputs for part in self.parts)

    @property
    def saved_bytes(self) -> int:
        return sum(part.saved_bytes for part in self.parts)

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def images(self) -> int:
        return sum(shard.images for shard in self.shards)

    @property
    def bytes(self) -> int:
        if self.arrays is not None:
            return sum(self.arrays.files.values())
        return sum(shard.bytes for shard in self.shards)

    @functools.cached_property
    def fingerprint(self) -> str:
        """sha256, in hex, of the content: equal wherever the dataset is."""
        return hashlib.sha256(self.to_json().encode(errors="surrogatepass")).hexdigest()

    def extends(self, fingerprint: str) -> bool:
        """Return whether packs have appended to a dataset whose fingerprint begins so."""
        for count in range(1, len(self.parts)):
            parts = self.parts[:count]
            shards = self.shards[: sum(part.shards for part in parts)]
            if replace(self, shards=shards, parts=parts).fingerprint.startswith(fingerprint):
                return True
        return False

    def to_json(self) -> str:
        document = {
            "format": _FORMAT,
            "version": FORMAT_VERSION if self.arrays is None else ARRAYS_VERSION,
            "samples": self.samples,
            "images": self.images,
            "bytes": self.bytes,
            "rejected": self.rejected,
            "parts": [asdict(part) for part in self.parts],
        }
        if self.arrays is not None:
            arrays = asdict(self.arrays)
            if not self.arrays.frames:
                del arrays["frames"]
            document["arrays"] = arrays
        lines = {name: _indented(value) for name, value in document.items()}
        lines["shards"] = _shard_lines(self.shards)
        items = ",".join(f'\n "{name}": {text}' for name, text in sorted(lines.items()))
        return f"{{{items}\n}}\n"


def _indented(value: Any) -> str:
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    return text.replace("\n", "\n ")  # texts in JSON have no line feeds of their own


def _shard_lines(shards: tuple[Shard, ...]) -> str:
    """Return `_indented` of the shards in a quarter of the time, as 100,000 of them need."""
    if not shards:
        return "[]"
    encoder = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",\n   ", ": "))
    rows = encoder.encode([vars(shard) for shard in shards])[2:-2]
    rows = rows.replace("},\n   {", "\n  },\n  {\n   ")
    return f"[\n  {{\n   {rows}\n  }}\n ]"


def read_manifest(folder: Path) -> Manifest:
    """Read `folder/dataset.json`.

    Raises `IndexMismatch` if there is none, or it is damaged, or a newer version wrote it.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise IndexMismatch(f"{folder}: no {MANIFEST} here") from None
    return parse_manifest(content, str(path))


def parse_manifest(content: bytes, path: str) -> Manifest:
    """Parse the content of a manifest file, called `path` in messages, as `read_manifest` does."""
    try:
        document = parse_json(content)
        sealed = isinstance(document, dict) and "crc32" in document
        if sealed:
            document = unsealed(document)
    except ValueError as error:
        raise IndexMismatch(
            f"{path} is damaged: {error}; restore it from a copy, pack again, or remove it where "
            "someone else wrote the tars, which are indexed again then"
        ) from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise IndexMismatch(
            f"{path} was not written by datapipe, which keeps its manifest under this name; move "
            "it elsewhere"
        )
    version = document.get("version")
    if version not in (FORMAT_VERSION, ARRAYS_VERSION):
        raise IndexMismatch(
            f"{path} has format version {version}, this datapipe reads {FORMAT_VERSION} and "
            f"{ARRAYS_VERSION}; upgrade datapipe or pack again"
        )
    try:
        if not sealed:
            raise KeyError("crc32")
        return Manifest(
            shards=tuple(_typed(Shard, shard) for shard in document["shards"]),
            parts=tuple(_typed(Contribution, part) for part in document["parts"]),
            arrays=_typed(Arrays, document["arrays"]) if version == ARRAYS_VERSION else None,
        )
    except (KeyError, TypeError) as error:
        raise IndexMismatch(
            f"{path} is damaged ({type(error).__name__}: {error}); restore it, or pack again"
        ) from error


_TYPES = {
    kind: [
        {"str": str, "int": int, "bool": bool}.get(str(each.type), dict) for each in fields(kind)
    ]
    for kind in (Shard, Contribution, Arrays)
}


def _typed(kind: type[T], document: dict[str, Any]) -> T:
    """Return a part of a manifest; raise TypeError for values that datapipe does not write."""
    made = kind(**document)
    values = list(vars(made).values())
    is_typed = list(map(type, values)) == _TYPES[kind]
    if isinstance(made, Arrays) and is_typed:
        values = list(made.files.values())
        is_typed = set(map(type, values)) <= {int}
    if not is_typed or any(value < 0 for value in values if type(value) is int):
        raise TypeError(f"{kind.__name__} of {shorten(document)}")
    return made


def refuse_unfinished(folder: Path) -> None:
    """Raise `IndexMismatch` for an unfinished pack, or a copy without its manifest."""
    if (folder / MANIFEST).exists() or not folder.is_dir():
        return
    parts = sorted(name for name in os.listdir(folder) if _INDEX.fullmatch(name))
    if parts and not (folder / UNFINISHED).exists():
        raise IndexMismatch(
            f"{folder} holds parts of a dataset ({parts[0]}) without its {MANIFEST}: a copy is "
            "under way or was cut off; finish it, or move the tars to another folder to read them "
            "as someone else's"
        )
    if (folder / UNFINISHED).exists():
        raise IndexMismatch(
            f"{folder}: its pack was not finished; run the same `datapipe pack` command again, or "
            "whichever command began it, to finish it"
        )


def manifest_file(manifest: Manifest) -> bytes:
    """Return the bytes of `dataset.json`: the content, and a checksum of it."""
    return (seal(json.loads(manifest.to_json()), indent=1) + "\n").encode()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put `dataset.json` in place by rename."""
    replace_file(folder / MANIFEST, manifest_file(manifest))


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write `content` at `path`: other processes see the old file or the new one, whole.

    So does a crash, if `durable`; else it may tear the file.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
