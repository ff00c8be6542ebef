"""Images that an annotation file names: their folders, and the spelling of their names there."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.index.images.header import is_image_extension
from datapipe.pack.input.archives import packed_images
from datapipe.pack.input.raw_sample import Blob, InlineBlob, ReadOptions, printable
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.fields.field_path import parse_source
from datapipe.pack.records.images.fields import image_blob
from datapipe.pack.records.images.roots import nearby, path_below, respelling

_FILES = 20_000
_SEEN = 100_000  # files and folders, of any kind
_IDS = 20
_COLUMNS = 12
_OF_IDS = re.compile(r"(id|key|name|file|index)$", re.IGNORECASE)


def template_of(raw: Path, column: str, ids: Sequence[Any]) -> str | None:
    """Return the template of the files near `raw` whose names hold these ids; None if none do.

    Args:
        raw: the file or folder of the records; a path below its folder is returned.
        column: the name of the ids.
        ids: the first of them.

    Examples:
        >>> template_of(Path("nowhere"), "image_id", [42]) is None
        True
    """
    return _template(_images_near(raw), column, ids)


def named_by(raw: Path, columns: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the template of image files near `raw` that a column names by ids; None if none does.

    Most of its values must be in the names of files; they have to differ, as those of a class do
    not, unless the column is called an id.

    Args:
        raw: the file or folder of the records.
        columns: the first values of each.
    """
    base = raw.absolute().parent if raw.is_file() else raw
    images = _images_near(raw)
    for column, values in islice(columns.items(), _COLUMNS):
        ids = values[:_IDS]
        if not ids or any(isinstance(v, bool) or not isinstance(v, str | int) for v in ids):
            continue
        repeats = len({*ids}) < len(ids) and not _OF_IDS.search(column)
        if repeats or not (template := _template(images, column, ids)):
            continue
        names = (parse_source(template).get({column: value}) for value in ids)
        if sum(os.path.isfile(base / str(name)) for name in names) * 2 > len(ids):
            return template
    return None


def _images_near(raw: Path) -> list[tuple[str, list[str]]]:
    """Return images below the folder of the records and, for a file, below the one above it.

    Each item is a prefix and the paths behind it. A file's images may be beside its folder.
    """
    if not raw.is_file():
        return [("", _images(raw))]
    here = raw.absolute().parent
    return [("", _images(here)), ("../", _images(here.parent))]


def _images(base: Path) -> list[str]:
    """Return paths of images below a folder, among the first files there."""
    found: list[str] = []
    seen = 0
    for listing in Survey(base).walk():
        below = os.path.relpath(listing.folder, base)
        found += (name if below == "." else f"{below}/{name}" for name in listing.images)
        seen += len(listing.files) + 1
        if seen >= _SEEN or len(found) >= _FILES:
            break
    return found[:_FILES]


def _template(images: list[tuple[str, list[str]]], column: str, ids: Sequence[Any]) -> str | None:
    """Return the template that most paths fit to."""
    wanted = {str(value) for value in ids[:_IDS]}
    for prefix, paths in images:
        found: Counter[str] = Counter()
        for path in paths:
            folder, slash, name = path.rpartition("/")
            stem, _, ext = name.rpartition(".")
            digits = re.search(r"\d+$", stem)
            if stem in wanted:
                found[f"{folder}{slash}{{{column}}}.{ext}"] += 1
            elif digits and digits[0].lstrip("0") in wanted:
                slot = f"{stem[: digits.start()]}{{{column}:0{len(digits[0])}d}}"
                found[f"{folder}{slash}{slot}.{ext}"] += 1
        if found:
            return prefix + found.most_common(1)[0][0]
    return None


Spelling = Callable[[Any], str]
"""Makes a relative path of what an annotation says of its image; "" where it cannot."""

PROBED = 50
"""Images whose files are looked for."""

_FOLDERS = 300
_EXTENSIONS = ("jpg", "png", "jpeg", "webp", "JPG", "PNG", "JPEG", "gif", "bmp", "tif", "tiff")


@dataclass(frozen=True, kw_only=True)
class Images:
    """Folders that hold images, and the spellings of their names, both most used first."""

    folders: tuple[Path, ...]
    spellings: tuple[Spelling, ...]

    def has(self, image: Any) -> bool:
        """Return whether an image's file is there."""
        return next(self._files(image), None) is not None

    def blob(self, image: Any, source: str) -> Blob | InlineBlob:
        """Return where an image's bytes are: the first file that is there, else the likeliest.

        Args:
            image: what the annotation says of it.
            source: what a message calls it where it has no path.
        """
        if len(self.folders) > 1 or len(self.spellings) > 1:
            for name, folder in self._files(image):
                return image_blob(name, folder, source)
        names = (spelling(image) for spelling in self.spellings)
        return image_blob(next(filter(None, names), ""), self.folders[0], source)

    def _files(self, image: Any) -> Iterator[tuple[str, Path]]:
        for spelling in self.spellings:
            if name := spelling(image):
                for folder in self.folders:
                    if _is_file(folder, name):
                        yield name, folder


def find_images(
    path: Path,
    raw: Path,
    options: ReadOptions,
    probes: Sequence[Any],
    spellings: Sequence[Spelling],
    *,
    hints: Sequence[str] = (),
) -> Images:
    """Find the images that a file names: beside it, in the folders that are usual, or near it.

    Several folders are used together where each holds other images.

    Args:
        path: the file.
        raw: the file or folder that the user named.
        options: `image_root` and `notes` are used.
        probes: what the file says of its first images, `PROBED` of them or fewer.
        spellings: how their names may be spelled, likeliest first.
        hints: relative folders in which such images usually are.

    Raises:
        PackError: `image_root` is not there; the images are nowhere near; or one name is found in
            several folders.
    """
    root = options.image_root
    if root is not None and not root.is_dir():
        raise PackError(f"--image-root {root}: no such folder")
    probed = [[spelling(probe) for spelling in spellings] for probe in probes]
    # Paths that do not start from a folder that is looked for do not count.
    names = [[n for n in spelled if n and n[0] != "/" and "://" not in n] for spelled in probed]
    names = [spelled for spelled in names if spelled]
    here = path.absolute().parent
    if not names:
        return Images(folders=(root or here,), spellings=tuple(spellings))
    bases = [root] if root else [here, here.parent]
    candidates = [base / hint for base in bases for hint in (".", *hints, "images")]
    likely = list({folder.resolve(): folder for folder in candidates}.values())
    found = _holding(likely, names)
    if not found:
        start = root or (raw.absolute() if raw.is_dir() else here.parent)
        further = list(islice(nearby(start, None, hints), _FOLDERS))
        respelled = map(respelling, (*likely, *further))
        found = _holding(further, names) or _holding(list(respelled), names)
        for folder in found:
            options.notes.decide(f"images are read from {folder}")
    if not found and root is not None:
        found = [root]  # each image that is not there is a reject
    if not found:
        tried = ", ".join(map(str, likely))
        raise PackError(
            f"{path}: its images (the first is {printable(names[0][0])}) are in none of {tried}, "
            "nor in a folder near them; name their folder with --image-root"
            + (f", or: {said}" if (said := packed_images((here, here.parent))) else "")
        )
    used: Counter[int] = Counter()
    for spelled in probed if len(spellings) > 1 else ():
        there = (n for n, name in enumerate(spelled) if name and _in_any(found, name))
        used.update(islice(there, 1))
    order = sorted(range(len(spellings)), key=lambda number: -used[number])
    return Images(folders=tuple(found), spellings=tuple(spellings[number] for number in order))


def spellings_of_names(names: Iterable[str]) -> tuple[Spelling, ...]:
    """Return how file names may be spelled: as they stand, without folders, with an extension."""
    plain: tuple[Spelling, ...] = (str, os.path.basename)
    if all(is_image_extension(name.rpartition(".")[2]) for name in names):
        return plain

    def with_extension(extension: str) -> Spelling:
        return lambda name: f"{name}.{extension}"

    return (*plain, *map(with_extension, _EXTENSIONS))


def _holding(folders: list[Path], names: list[list[str]]) -> list[Path]:
    """Return the folders that hold some of the images, that with most of them first."""
    held: Counter[Path] = Counter()
    for spelled in names:
        paths = {
            os.path.realpath(folder / name): folder
            for folder in folders
            for name in islice((n for n in spelled if _is_file(folder, n)), 1)
        }
        if len(paths) > 1:
            raise PackError(
                f"{printable(spelled[0])} and maybe other images are in several folders "
                f"({', '.join(map(str, paths.values()))}); name one with --image-root"
            )
        held.update(paths.values())
    return [folder for folder, _ in held.most_common()]


def _is_file(folder: Path, name: str) -> bool:
    # Unlike those of `Path`, this raises for no name, however long.
    return os.path.isfile(path_below(folder, name))


def _in_any(folders: Iterable[Path], name: str) -> bool:
    return any(_is_file(folder, name) for folder in folders)
