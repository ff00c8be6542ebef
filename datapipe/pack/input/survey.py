"""A bounded look at the loose images of a folder: how many there are, and which have a text."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from datapipe.index.images.header import is_image_extension
from datapipe.pack.input.file_start import start_of
from datapipe.pack.input.own_files import is_own
from datapipe.pack.input.real_paths import UNKNOWN, folders_above, identity_of
from datapipe.text.sample_text import TEXT_EXTENSIONS

MOST_FILES = 50_000
_LABELS_LOOKED_AT = 5
_LONGEST_LABEL = 1 << 16
# A line of boxes: four numbers or more, of a class and a box such as "0 0.5 0.5 0.1 0.2".
_BOX = re.compile(rb"\s*[-+]?[\d.]+(e[-+]?\d+)?([\s,]+[-+]?[\d.]+(e[-+]?\d+)?){3,}[\s,]*", re.I)


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Loose images below a folder, hidden files and folders left out.

    Attributes:
        images: each image's path as `RealPaths` spells it, with whether a text of the same stem is
            beside it.
        complete: False where there were more files than were looked at.
    """

    images: dict[str, bool] = field(default_factory=dict)
    complete: bool = True

    @property
    def pairs(self) -> int:
        """Number of images with a text beside them."""
        return sum(self.images.values())

    def describe(self) -> str:
        """Return the counts as text: `1,067 images, 12 of them with a text`."""
        more = "" if self.complete else " or more"
        count = f"{len(self.images):,} image{'' if len(self.images) == 1 else 's'}{more}"
        texts = f"{self.pairs:,} of them" if self.pairs else "none"
        return f"{count}, {texts} with a text of the same stem"


def survey(raw: Path, most: int = MOST_FILES) -> Survey:
    """Look at the files below `raw`, folder by folder in order, until `most` were seen."""
    images: dict[str, bool] = {}
    seen = 0
    for folder, _, files in walk(raw):
        real = os.path.realpath(folder)
        if seen >= most:
            return Survey(images=images, complete=False)
        stems: dict[str, str] = {}
        texts: dict[str, str] = {}
        for name in files:
            stem, _, ext = name.rpartition(".")
            ext = ext.lower()
            if is_image_extension(ext):
                stems[name] = stem
            elif ext == "json" or ext in TEXT_EXTENSIONS:
                texts[stem] = name
        if stems and texts and are_labels([f"{folder}/{texts[stem]}" for stem in sorted(texts)]):
            texts = {stem: name for stem, name in texts.items() if name.endswith(".json")}
        for name, stem in stems.items():
            images[f"{real}/{name}"] = stem in texts or name in texts
        seen += len(files)
    return Survey(images=images)


def walk(raw: Path, back: list[str] | None = None) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield every folder below `raw` with its folders, sorted, and files.

    Hidden files and what datapipe wrote are left out. Links to folders are followed, but neither
    back to a folder that was seen nor to one that contains `raw`.

    Args:
        raw: the folder.
        back: gets the paths of links to `raw` or to a folder that contains it.
    """
    above = folders_above(raw)
    seen = above | {UNKNOWN}
    above.add(identity_of(os.fspath(raw)))
    for folder, inner, files in os.walk(raw, followlinks=True):
        identity = identity_of(folder)
        if identity in seen:
            inner.clear()
            if identity in above and back is not None:
                back.append(folder)
            continue
        seen.add(identity)
        inner[:] = sorted(_visible(folder, inner))
        yield folder, inner, _visible(folder, files)


def _visible(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (name.startswith(".") or is_own(folder, name))]


def look_at(raw: Path, most: int = 20_000) -> Counter[str]:
    """Return how many files at `raw` have which extension, looking at about `most` of them."""
    if raw.is_file():
        return Counter({raw.suffix.lower(): 1})
    counts: Counter[str] = Counter()
    for _, _, names in walk(raw):
        counts.update(os.path.splitext(name)[1].lower() for name in names)
        if counts.total() >= most:
            break
    return counts


def describe_files(raw: Path) -> str:
    """Return the extensions of the files at `raw` with their counts, for messages."""
    kinds = sorted(look_at(raw).items(), key=lambda item: (-item[1], item[0]))[:6]
    listed = (f"{count:,} {extension or 'without extension'}" for extension, count in kinds)
    return ", ".join(listed) or "nothing"


def list_folder(
    folder: str | os.PathLike[str], most: int | None = None, *, strict: bool = False
) -> tuple[list[str], list[str]]:
    """Return the names of files in a folder, and those of folders sorted.

    Hidden ones and what datapipe wrote are left out.

    Args:
        folder: one that cannot be read is empty, unless `strict`.
        most: entries that are looked at, all if None.
        strict: raise the `OSError` of a folder that cannot be read.
    """
    files: list[str] = []
    folders: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in islice(entries, most):
                if not (entry.name.startswith(".") or is_own(os.fspath(folder), entry.name)):
                    (folders if is_folder(entry) else files).append(entry.name)
    except OSError:
        if strict:
            raise
    return files, sorted(folders)


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def are_labels(paths: list[str]) -> bool:
    """Return whether texts hold nothing but boxes, as YOLO's labels do: judged by the first few.

    A caption may be a number, even two; lines of four and more are boxes. Empty texts, as YOLO
    keeps for images without objects, say nothing.
    """
    looked_at = 0
    for path in paths[: 10 * _LABELS_LOOKED_AT]:
        if path.endswith((".json", ".JSON")):
            continue
        lines = start_of(path, _LONGEST_LABEL).strip().splitlines()
        if lines and not all(_BOX.fullmatch(line) for line in lines[:20]):
            return False
        looked_at += bool(lines)
        if looked_at >= _LABELS_LOOKED_AT:
            break
    return looked_at > 0
