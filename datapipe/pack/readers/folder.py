"""A folder tree of images, each with an optional sidecar of the same stem."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from datapipe.errors import PackError
from datapipe.index.imageinfo import is_image_extension
from datapipe.index.text import TEXT_EXTENSIONS
from datapipe.pack.raw import (
    Blob,
    RawImage,
    RawSample,
    ReadOptions,
    Reject,
    look_at,
    printable,
)


class FolderReader:
    """`a/b.jpg` with `a/b.txt`, `a/b.caption` or `a/b.json` beside it, or with no text at all."""

    name = "folder"
    summary = "images in a folder tree, with sidecar .txt, .caption or .json of the same stem"
    fallback = True

    def recognises(self, raw: Path) -> bool:
        return raw.is_dir() and any(map(is_image_extension, look_at(raw).counts))

    def estimate(self, raw: Path) -> int | None:
        return sum(is_image_extension(name) for _, _, files in os.walk(raw) for name in files)

    def read(self, raw: Path, options: ReadOptions) -> Iterator[RawSample | Reject]:
        for place, folders, files in os.walk(raw, onerror=_unreadable, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for circular in [name for name in folders if _leads_back(place, name)]:
                folders.remove(circular)
                source = printable(os.path.relpath(f"{place}/{circular}", raw))
                yield Reject(source, "this link leads back to a folder above it", "DecodeError")
            names = sorted(name for name in files if not name.startswith("."))
            below = os.path.relpath(place, raw)
            yield from _read_folder(place, "" if below == os.curdir else f"{below}/", names)


def _leads_back(place: str, name: str) -> bool:
    path = f"{place}/{name}"
    if not os.path.islink(path):
        return False
    target = os.path.join(os.path.realpath(path), "")
    return os.path.join(os.path.realpath(place), "").startswith(target)


def _unreadable(error: OSError) -> None:
    raise PackError(f"{error.filename}: folder cannot be read: {error.strerror}") from error


# Paths are strings here: building a `Path` costs more than all else that is done for a file.
def _read_folder(place: str, below: str, names: list[str]) -> Iterator[RawSample | Reject]:
    sidecars: dict[str, dict[str, str]] = {}
    stems: set[str] = set()
    for name in names:
        stem, ext = _split(name)
        if is_image_extension(ext):
            stems.add(stem)
        elif ext in TEXT_EXTENSIONS or ext == "json":
            sidecars.setdefault(stem, {})[ext] = name
    for name in names:
        stem, ext = _split(name)
        source = printable(below + name)
        if is_image_extension(ext):
            yield _sample(place, below, name, sidecars.get(stem, {}))
        elif stem in stems and name in sidecars.get(stem, {}).values():
            continue
        elif ext in TEXT_EXTENSIONS or ext == "json":
            yield Reject(source, "no image has the same stem as this text", "MissingMember")
        else:
            yield Reject(source, "neither an image nor the sidecar of one", "DecodeError")


def _split(name: str) -> tuple[str, str]:
    stem, _, ext = name.rpartition(".")
    return stem, ext.lower()


def _sample(place: str, below: str, image: str, sidecars: dict[str, str]) -> RawSample:
    def blob(name: str) -> Blob:
        return Blob(f"{place}/{name}", name=printable(below + name))

    captions = [ext for ext in sorted(sidecars, reverse=True) if ext != "json"]
    return RawSample(
        source=printable(below + image),
        images=(RawImage(blob(image)),),
        caption=blob(sidecars[captions[0]]) if captions else None,
        record=blob(sidecars["json"]) if "json" in sidecars else None,
        others=tuple((ext, blob(sidecars[ext])) for ext in captions[1:]),
    )


READER = FolderReader()
