"""Folders of texts that are parallel to folders of images: `images/train` and `labels/train`.

Two folders are parallel if their paths below the raw folder differ in one name: `img/1.jpg` and
`box/1.txt`, `training_data/images/1.png` and `training_data/annotations/1.json`.
"""

from __future__ import annotations

import glob
import heapq
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, repeat
from typing import NamedTuple

from datapipe.errors import PackError
from datapipe.index.images.field_names import IMAGE_FOLDERS
from datapipe.index.images.header import is_image_extension
from datapipe.pack.input.file_kinds import is_paper
from datapipe.pack.input.file_starts import are_labels
from datapipe.pack.input.raw_sample import printable
from datapipe.pack.input.sorted_names import SortedNames
from datapipe.pack.input.survey import Survey
from datapipe.report.table import counted
from datapipe.text.sample_text import TEXT_EXTENSIONS

# Parallel folders are few; class folders are thousands, and none of them is looked at.
_MOST_SIBLINGS = 16
_STEMS = 1000  # of a folder of images that are compared with those of another
_JUDGED = 50  # texts of a folder that say whether its texts are labels

LABELS = "boxes in numbers, as YOLO's labels are, which are no captions"


def is_text(name: str) -> bool:
    """Return whether a file may be the text of an image by its name."""
    ext = name.rpartition(".")[2].lower()
    return (ext == "json" or ext in TEXT_EXTENSIONS) and not is_paper(name)


@dataclass(frozen=True, kw_only=True)
class TextFolder:
    """Folder of texts, parallel to one of images."""

    folder: str  # its path
    names: SortedNames  # its files
    pattern: str  # what `--include` would take for it
    # "taken", "labels" (numbers), "second" (the images have texts beside them), or "other" (they
    # belong to images of the same names in another folder)
    kind: str
    # Whether texts without an image are to be rejected along with these images
    reports: bool = True


@dataclass(kw_only=True)
class ParallelFolders:
    """Folders of texts and the folders of images they belong to, in a tree that is being walked."""

    survey: Survey  # of the folder that was given
    files: Callable[[str], SortedNames]  # gives the names of the files in a folder
    # Whether a text is to be taken, by its path below `raw`
    include: Callable[[str], bool] = lambda name: True
    _folders: dict[str, list[str]] = field(default_factory=dict)
    _kinds: dict[str, str] = field(default_factory=dict)
    _texts: dict[str, list[TextFolder]] = field(default_factory=dict)

    def enter(self, folder: str, inner: list[str]) -> None:
        """Note the folders in a folder, before these are walked into."""
        if 1 < len(inner) <= _MOST_SIBLINGS:
            self._folders[folder] = inner

    def texts_of(self, images: str) -> list[TextFolder]:
        """Return the folders of texts for a folder of images; PackError if several may be meant."""
        return [
            replace(texts, reports=self.owner_of(texts.folder) == images)
            for texts in self._texts_of(images)
        ]

    def owner_of(self, texts: str) -> str | None:
        """Return the first folder of images that a folder of texts belongs to."""
        parallel = self._parallel(texts)
        if not parallel or self._kind(texts) != "texts":
            return None
        for images, _ in parallel:
            if any(t.folder == texts and t.kind != "other" for t in self._texts_of(images)):
                return images
        return None

    def others_that_take(self, texts: TextFolder, images: str) -> list[SortedNames]:
        """Return the files of each further folder of images that takes its texts from this one."""
        found = []
        for other, _ in self._parallel(texts.folder):
            is_known = other in self._texts
            taken = (text.folder for text in self._texts_of(other) if text.kind == "taken")
            if other != images and texts.folder in taken:
                found.append(self.files(other))
            if not is_known:  # judged too early: the walk has yet to note the folders beside it
                del self._texts[other]
        return found

    def _texts_of(self, images: str) -> list[TextFolder]:
        if images not in self._texts:
            parallel = self._parallel(images)
            self._texts[images] = []
            if parallel and self._kind(images) == "images":
                texts = [(t, pattern) for t, pattern in parallel if self._kind(t) == "texts"]
                self._texts[images] = self._chosen(images, texts) if texts else []
        return self._texts[images]

    def _chosen(self, images: str, parallel: list[tuple[str, str]]) -> list[TextFolder]:
        image_names = self.files(images)
        have_texts = any(map(is_text, image_names))
        chosen, lines = [], []
        width = max(len(pattern) for _, pattern in parallel)
        for texts, pattern in parallel:
            files, below = self.files(texts), self.survey.below(texts)

            def wanted(files: SortedNames = files, below: str = below) -> Iterator[str]:
                return (n for n in filter(is_text, files) if self.include(f"{below}/{n}"))

            if not _share_stems(image_names, wanted()):
                continue
            first = islice((n for n in wanted() if not n.lower().endswith("json")), _JUDGED)
            kind = "second" if have_texts else "taken"
            if are_labels(f"{texts}/{name}" for name in first):
                kind = "labels"
            elif kind == "taken" and self._is_beside_images(images, texts):
                kind = "other"
            chosen.append(TextFolder(folder=texts, names=files, pattern=pattern, kind=kind))
            if kind == "taken":
                count = counted(sum(1 for _ in wanted()), "file")
                lines.append(
                    f"\n  --include {printable(pattern)!r:<{width + 2}}  {count}, such as "
                    f"{printable(next(wanted()))}"
                )
        if len(lines) > 1:
            raise PackError(
                f"{printable(self.survey.below(images) or os.curdir)} holds images, and several "
                f"folders hold files of the same stems, which may be their texts:{''.join(lines)}\n"
                "add the one that is meant to the command, or move the others elsewhere"
            )
        return chosen

    def _is_beside_images(self, folder: str, texts: str) -> bool:
        """Return whether texts belong to a folder called `images` or the like, and not to this one.

        Both hold images of the same names, as `images/0.jpg` and `masks/0.png` are.
        """
        if _says_images(folder, texts):
            return False
        stems = {name.rpartition(".")[0] for name in islice(self.files(folder), _STEMS)}
        return any(
            _says_images(other, texts)
            and self._kind(other) == "images"
            and any(name.rpartition(".")[0] in stems for name in self.files(other))
            for other, _ in self._parallel(texts)
            if other != folder
        )

    def _parallel(self, folder: str) -> list[tuple[str, str]]:
        """Return folders whose path differs in one name, with the pattern of all that differ so."""
        below = self.survey.below(folder)
        parts = below.split("/") if below else []
        found = []
        for number, own in enumerate(parts):
            above = "/".join([str(self.survey.raw), *parts[:number]])
            for name in self._folders.get(above, ()):
                other = "/".join([above, name, *parts[number + 1 :]])
                if name != own and (number == len(parts) - 1 or os.path.isdir(other)):
                    pattern = "/".join([*map(glob.escape, [*parts[:number], name]), "*"])
                    found.append((other, pattern))
        return sorted(found)

    def _kind(self, folder: str) -> str:
        """Return "images" if a folder holds any image, "texts" if it holds texts and no image."""
        if folder not in self._kinds:
            kind = ""
            with suppress(OSError):
                listing = self.survey.listing(folder)
                texts = "texts" if any(map(is_text, listing.files)) else ""
                kind = "images" if listing.images else texts
            self._kinds[folder] = kind
        return self._kinds[folder]


class FileGroup(NamedTuple):
    """Files that are equal up to their first dot."""

    own: list[str]  # of a folder of images
    texts: list[tuple[str, TextFolder]]  # of the folders of its texts
    elsewhere: list[str]  # of other folders of images that take these texts too


def merged_groups(
    names: SortedNames, texts: list[TextFolder], elsewhere: list[SortedNames]
) -> Iterator[FileGroup]:
    """Yield the files of a folder, of its texts, and of folders elsewhere, in groups."""
    if not texts:  # sorted, such names stand together
        for _, own in groupby(names, lambda name: name.partition(".")[0]):
            yield FileGroup(list(own), [], [])
        return
    sources = [None, *texts, *[False] * len(elsewhere)]
    files = [names, *(text.names for text in texts), *elsewhere]
    streams = [zip(each, repeat(source)) for each, source in zip(files, sources, strict=True)]
    merged = heapq.merge(*streams, key=lambda item: os.fsencode(item[0]))
    for _, group in groupby(merged, lambda item: item[0].partition(".")[0]):
        found = FileGroup([], [], [])
        for name, source in group:
            if source is None:
                found.own.append(name)
            elif isinstance(source, TextFolder):
                found.texts.append((name, source))
            else:
                found.elsewhere.append(name)
        yield found


def _says_images(folder: str, texts: str) -> bool:
    """Return whether a folder is called `images` or the like, where texts lie in another one."""
    parts = zip(folder.split("/"), texts.split("/"), strict=True)
    return any(own != other and own.lower() in IMAGE_FOLDERS for own, other in parts)


def _share_stems(images: SortedNames, texts: Iterator[str]) -> bool:
    """Return whether a text is called as an image is, judged by the first thousand texts."""
    stems = {name.rpartition(".")[0] for name in islice(texts, 1000)}
    return any(
        (stem in stems or f"{stem}.{ext}" in stems) and is_image_extension(ext.lower())
        for stem, _, ext in (name.rpartition(".") for name in images)
    )
