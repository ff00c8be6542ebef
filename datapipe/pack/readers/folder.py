"""A folder tree of images, each with an optional sidecar of the same stem."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from datapipe.errors import PackError
from datapipe.index.imageformats import unsupported_image
from datapipe.index.imageinfo import is_image_extension
from datapipe.index.text import TEXT_EXTENSIONS
from datapipe.pack.names import SortedNames
from datapipe.pack.raw import (
    Blob,
    RawImage,
    RawSample,
    ReadOptions,
    Reject,
    look_at,
    printable,
)
from datapipe.pack.records.locate import is_folder

_LITTER = frozenset({"thumbs.db", "desktop.ini"})  # what Windows leaves in folders of images


class FolderReader:
    """`a/b.jpg` with `a/b.txt`, `a/b.caption` or `a/b.json` beside it, or with no text at all."""

    name = "folder"
    summary = "images in a folder tree, with sidecar .txt, .caption or .json of the same stem"
    fallback = True
    takes: frozenset[str] = frozenset()

    def recognises(self, raw: Path, options: ReadOptions) -> bool:
        return raw.is_dir() and any(map(is_image_extension, look_at(raw).counts))

    def estimate(self, raw: Path, options: ReadOptions) -> int | None:
        return sum(
            is_image_extension(name) for _, names, _ in _walk(raw) for name in names.unsorted()
        )

    def read(self, raw: Path, options: ReadOptions) -> Iterator[RawSample | Reject]:
        for place, names, circular in _walk(raw):
            below = os.path.relpath(place, raw)
            below = "" if below == os.curdir else f"{below}/"
            for name in circular:
                source = printable(below + name)
                yield Reject(source, "this link leads back to a folder above it", "DecodeError")
            # Sorted, names that are equal up to their first dot stand together.
            for _, group in itertools.groupby(names, lambda name: name.partition(".")[0]):
                yield from _read_group(place, below, list(group))


def _walk(raw: Path) -> Iterator[tuple[str, SortedNames, list[str]]]:
    """Every folder, its files, and the links in it that lead back; hidden ones are left out."""
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(os.fspath(raw), frozenset())]
    while waiting:
        place, above = waiting.pop()
        here = above | {_identity(place)}
        files, folders = _list(place)
        circular = [name for name in folders if _identity(f"{place}/{name}") in here]
        yield place, files, circular
        below = [name for name in folders if name not in circular]
        waiting += [(f"{place}/{name}", here) for name in reversed(below)]


def _list(place: str) -> tuple[SortedNames, list[str]]:
    """Files and folders in a folder, both sorted."""
    files, folders = SortedNames(), []
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name.lower() in _LITTER:
                    continue
                if is_folder(entry):
                    folders.append(entry.name)
                else:
                    files.add(entry.name)
    except OSError as error:
        raise PackError(f"{place}: folder cannot be read: {error.strerror}") from error
    return files, sorted(folders)


def _identity(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (-1, -1)  # walking into it will say what is wrong
    return status.st_dev, status.st_ino


# Paths are strings here: building a `Path` costs more than all else that is done for a file.
def _read_group(place: str, below: str, names: list[str]) -> Iterator[RawSample | Reject]:
    sidecars: dict[str, dict[str, str]] = {}
    stems: set[str] = set()
    for name in names:
        stem, ext = _split(name)
        if is_image_extension(ext):
            stems.add(stem)
        elif ext in TEXT_EXTENSIONS or ext == "json":
            sidecars.setdefault(stem, {}).setdefault(ext, name)
    for name in names:
        stem, ext = _split(name)
        source = printable(below + name)
        if is_image_extension(ext):
            yield _sample(place, below, name, sidecars.get(stem, {}))
        elif stem in stems and name in sidecars.get(stem, {}).values():
            continue
        elif ext in TEXT_EXTENSIONS or ext == "json":
            what = "another text of this kind" if stem in stems else "no image"
            yield Reject(source, f"{what} has the same stem as this text", "MissingMember")
        else:
            why = unsupported_image(ext) or "neither an image nor the sidecar of one"
            yield Reject(source, why, "DecodeError")


def _split(name: str) -> tuple[str, str]:
    stem, _, ext = name.rpartition(".")
    return stem, ext.lower()


def _sample(place: str, below: str, image: str, sidecars: dict[str, str]) -> RawSample:
    def blob(name: str) -> Blob:
        return Blob(f"{place}/{name}", 0, None, printable(below + name))

    captions = [ext for ext in sorted(sidecars, reverse=True) if ext != "json"]
    return RawSample(
        source=printable(below + image),
        images=(RawImage(blob(image)),),
        caption=blob(sidecars[captions[0]]) if captions else None,
        record=blob(sidecars["json"]) if "json" in sidecars else None,
        others=tuple((ext, blob(sidecars[ext])) for ext in captions[1:]),
    )


READER = FolderReader()
