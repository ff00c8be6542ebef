"""Folders of the images that a file of records names, and the spelling of their names there.

Tried in this order, until half of the first images are found: the folder of the records; with it
the one that the user gave, the two above, and the folders in all of these that are called as those
of images are; any folder up to two levels below the records. For images further below, the error
gives the `--image-root` that works.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

from datapipe.errors import PackError
from datapipe.index.images.field_names import IMAGE_FOLDERS
from datapipe.index.images.header import is_image_name
from datapipe.pack.input.archives import holds, is_archive, packed_images
from datapipe.pack.input.listing import list_folder
from datapipe.pack.input.raw_sample import ReadOptions, as_it_lies, printable
from datapipe.pack.input.survey import Survey
from datapipe.report.table import counted

Spelled = str | Sequence[str]
"""A path as a record has it, or the names that an image's file may have, likeliest first.

A name is "" where a rule for names makes none, so that each rule keeps its index.
"""

PROBED = 100
"""Images whose files are looked for."""

_Names = Sequence[Sequence[str]]  # of the first images, each in all spellings
_ABOVE = 2
_BELOW = 2
_ENTRIES = 100_000  # files and folders that are looked at
_LISTED = 8  # in a message
_FEW = 8  # names that say whether a folder is worth a look at all of them
# Above the records, only folders that are called as folders of images are: a neighbour there may be
# another dataset, whose files have the same names.
_USUAL = frozenset(
    {*IMAGE_FOLDERS, "data", "train", "val", "valid", "validation", "test"}
    | {f"{split}{year}" for split in ("train", "val", "test") for year in (2014, 2015, 2017)}
    | {"train_images", "val_images", "test_images"}
)
_EXTENSIONS = ("jpg", "png", "jpeg", "webp", "JPG", "PNG", "JPEG", "gif", "bmp", "tif", "tiff")


def spelled(name: str) -> tuple[str, ...]:
    """Return the names that a file may have: as it stands, without folders, with an extension."""
    plain = (name, os.path.basename(name))
    if is_image_name(name):
        return plain
    return (*plain, *(f"{name}.{extension}" for extension in _EXTENSIONS))


@dataclass(frozen=True, kw_only=True)
class Images:
    """Folders that hold images, most used first, and what is known of the names there."""

    folders: tuple[Path, ...]  # one or more
    order: tuple[int, ...] = (0,)  # indices of spellings, most used first
    prefix: str = ""  # left out of names that begin with it
    respelled: bool = False  # whether the disk has some names in another case or Unicode form

    def has(self, image: Spelled) -> bool:
        """Return whether an image's file is there."""
        return os.path.isfile(self.path(image))

    def path(self, image: Spelled, exists: Callable[[str], bool] = os.path.isfile) -> str:
        """Return the path of an image's file, or of what else `exists` looks for, see `locate`."""
        return self.locate(image, exists)[1]

    def locate(
        self, image: Spelled, exists: Callable[[str], bool] = os.path.isfile
    ) -> tuple[str, str]:
        """Return the name and the path of an image's file: the first that is there, or likeliest.

        Both are empty if it has no name.
        """
        spellings = _spellings(image)
        names = [spellings[n].removeprefix(self.prefix) for n in self.order if n < len(spellings)]
        folders = self.folders
        found = [(name, os.path.join(base, name)) for name in names if name for base in folders]
        if len(found) > 1 or self.respelled:
            for name, path in found:
                if exists(path):
                    return name, path
        for name, path in found if self.respelled else ():
            if there := as_it_lies(path):
                return name, there
        return found[0] if found else ("", "")


def find_images(
    file: Path, raw: Path, options: ReadOptions, probes: Iterable[Spelled], *, required: bool = True
) -> Images:
    """Find the images that a file of records names, and note their folders.

    Several folders are used together where each holds other images. A prefix of the names that is
    not here, such as `coco/`, is left out if all names that begin with it are found then.

    Args:
        file: names the images.
        raw: the file or folder that the user gave.
        options: `image_root`, outside of which nothing is tried, and `notes` are used.
        probes: its first images.
        required: False if images that are not found are to be rejected one by one.

    Raises:
        PackError: `image_root` is not there or has none of the images; several folders hold images
            of the same names; or the images are elsewhere, as the message says.
    """
    root = options.image_root
    if root is not None and not root.is_dir():
        raise PackError(f"--image-root {root}: no such folder")
    home = file.absolute().parent
    bases = [root] if root else [home, *([raw.absolute()] if raw.is_dir() else [])]
    probed = [_without_urls(_spellings(probe)) for probe in probes]
    names = list(filter(any, probed))
    tried, prefix = bases[:1], ""
    found = _holding(tried, names)
    if 2 * len(found.files) < len(names):
        tried = _near(file, bases, is_given=root is not None)
        found = _holding(tried, names)
    if 2 * len(found.files) < len(names):
        found, prefix = _further(bases, names, found, is_given=root is not None)
    if found.folders:
        _note(found.folders, prefix, bases, raw, options)
    elif names:
        is_error = required or root is not None
        around = list(dict.fromkeys([*bases, home, home.parent]))
        # Neighbours may be other datasets, whose images are no reason for an error.
        remedy = _elsewhere(names, around if is_error else bases)
        remedy = remedy or _in_archives(names, around, required)
        if remedy or is_error:
            raise _not_found(file, root, tried, names, remedy)

    used = Counter(file.spelling for file in found.files.values())
    spellings = range(max(map(len, probed), default=1))
    return Images(
        folders=found.folders or (bases[0],),
        order=tuple(sorted(spellings, key=lambda number: -used[number])),
        prefix=prefix,
        respelled=any(file.respelled for file in found.files.values()),
    )


def _spellings(image: Spelled) -> Sequence[str]:
    if not isinstance(image, str):
        return image
    # Windows wrote it where it has backslashes alone.
    return (image.replace("\\", "/") if "\\" in image and "/" not in image else image,)


def _without_urls(names: Sequence[str]) -> list[str]:
    return ["" if "://" in name else name for name in names]


def are_near(file: Path, root: Path | None, images: Iterable[Sequence[str]]) -> bool:
    """Return whether `root`, or else folders near a file, hold all images that it may name."""
    names = list(map(_without_urls, images))
    with suppress(PackError, ValueError):
        near = _near(file, [root or file.absolute().parent], is_given=root is not None)
        return len(_holding(near, names).files) == len(names)
    return False


def _first(names: _Names) -> str:
    return next(filter(None, names[0]))


def _near(file: Path, bases: Sequence[Path], *, is_given: bool) -> list[Path]:
    """Return `bases`, the folders above a file unless a root is given, and image folders in all."""
    split = file.name.partition(".")[0].rpartition("_")[2]
    above = () if is_given else file.absolute().parent.parents[:_ABOVE]
    near: dict[str, Path] = {}  # each once, however it is linked
    for folder in (*bases, *(outer for outer in above if outer != outer.parent)):
        called = _called_images(folder, split)
        inner = [inner for outer in called for inner in _called_images(outer, split)]
        for found in (folder, *called, *inner):
            near.setdefault(os.path.realpath(found), found)
    return list(near.values())


def _called_images(folder: Path, split: str) -> list[Path]:
    """Return the folders called as those of images are, without other splits beside `split`."""
    names = list_folder(folder, _ENTRIES).folders
    usual = IMAGE_FOLDERS if split in names and split in _USUAL else _USUAL
    return [folder / name for name in names if name == split or name.lower() in usual]


def _search(bases: Iterable[Path], names: _Names) -> list[tuple[Path, str]]:
    """Return folders below `bases` from which names of images lead to a file, most used first.

    With each comes the prefix of the names that is not there, such as `coco/`.
    """
    wanted = {
        _folded(os.path.basename(name)): os.path.dirname(name)
        for forms in names[:: max(len(names) // _FEW, 1)]
        for name in reversed(forms)
        if name
    }
    found: Counter[tuple[Path, str]] = Counter()
    seen = 0
    for base in bases:
        for listing in Survey(base).walk():
            for name in wanted.keys() & set(map(_folded, listing.files)):
                start, prefix = listing.folder, wanted[name]
                while prefix and _folded(os.path.basename(prefix)) == _folded(
                    os.path.basename(start)
                ):
                    start, prefix = os.path.dirname(start), os.path.dirname(prefix)
                found[Path(start), f"{prefix.rstrip('/')}/" if prefix else ""] += 1
            seen += len(listing.files) + 1
            if seen >= _ENTRIES:
                break
    return [place for place, _ in found.most_common(_LISTED)]


def _folded(name: str) -> str:
    """Return a name that is equal for all spellings of it that `as_it_lies` tries."""
    return normalize("NFC", name).lower()


class _File(NamedTuple):
    """File of an image: its real path, the index of its spelling, and `Images.respelled`."""

    path: str
    spelling: int
    respelled: bool


class _ImageFolders(NamedTuple):
    """Folders that hold images, that with most of them first, and their files by number."""

    folders: tuple[Path, ...]
    files: Mapping[int, _File]


def _holding(folders: Iterable[Path], names: _Names, prefix: str = "") -> _ImageFolders:
    """Return the folders, nearest first, that hold images of these names in some spelling.

    `prefix` is left out of the names that begin with it. PackError if a folder holds other files
    of half of the names that the best folder holds.
    """
    cut = [[name.removeprefix(prefix) for name in forms] for forms in names]
    held: dict[Path, dict[int, _File]] = {}
    for folder in folders:
        if any(_file_in(folder, forms) for forms in cut[:: max(len(cut) // _FEW, 1)]):
            files = ((number, _file_in(folder, forms)) for number, forms in enumerate(cut))
            held[folder] = {number: file for number, file in files if file}
    ranked = sorted(held, key=lambda folder: -len(held[folder]))
    used: list[Path] = []
    taken: dict[int, _File] = {}
    for folder in ranked:
        own = held[folder]
        others = [n for n, file in own.items() if n in taken and file.path != taken[n].path]
        if 2 * len(others) >= len(held[ranked[0]]):
            raise _several(names, {folder: len(held[folder]) for folder in ranked})
        if own.keys() - taken.keys():
            used.append(folder)
        taken = own | taken
    return _ImageFolders(tuple(used), taken)


def _file_in(folder: Path, forms: Sequence[str]) -> _File | None:
    paths = [(number, os.path.join(folder, name)) for number, name in enumerate(forms) if name]
    for number, path in paths:
        if os.path.isfile(path):  # unlike that of `Path`, this raises for no name, however long
            return _File(os.path.realpath(path), number, False)
    there = as_it_lies(paths[0][1]) if paths else None
    return _File(os.path.realpath(there), paths[0][0], True) if there else None


def _further(
    bases: Sequence[Path], names: _Names, found: _ImageFolders, *, is_given: bool
) -> tuple[_ImageFolders, str]:
    """Return a better choice of folders up to two levels below `bases`, with a prefix left out."""
    places = [
        (folder, prefix)
        for folder, prefix in _search(bases, names)
        if any(base in (folder, *folder.parents[:_BELOW]) for base in bases)
    ]
    prefix = places[0][1] if places else ""
    folders = [folder for folder, cut in places if cut == prefix]
    better = _holding([*found.folders, *folders], names, prefix)
    is_enough = not prefix or is_given or len(better.files) == len(names)
    return (better, prefix) if is_enough and better.files else (found, "")


def _note(
    folders: Sequence[Path], prefix: str, bases: Sequence[Path], raw: Path, options: ReadOptions
) -> None:
    said = ""
    if prefix:
        said = f", without the {printable(prefix)!r} that their paths begin with"
        options.notes.find("image_prefix", printable(prefix))
    if options.image_root is None:
        said += " (found; --image-root says otherwise)"
    for folder in folders:
        if prefix or folder not in bases:
            path = Path(os.path.relpath(folder, raw if raw.is_dir() else raw.parent))
            relative = printable(path.as_posix())
            options.notes.decide(f"images start in {relative}{said}")
            if options.image_root is None:
                options.notes.find("image_root", relative)


def _several(names: _Names, counts: Mapping[Path, int]) -> PackError:
    lines = [
        f"\n  --image-root {shlex.quote(printable(str(folder)))}  {count} of the first {len(names)}"
        for folder, count in islice(counts.items(), _LISTED)
    ]
    more = f"\n  and {len(counts) - _LISTED} more" if len(counts) > _LISTED else ""
    name, above = printable(_first(names)), printable(str(next(iter(counts)).parent))
    alike = len({forms[0] for forms in names}) == 1 < len(names)  # as in ScienceQA
    each = f", or, if each record has its own, --image-column '{above}/{{id}}/{name}'"
    return PackError(
        f"several folders hold images of the same names, such as {name}:{''.join(lines)}{more}\n"
        f"add the one that is meant to the command{each if alike else ''}"
    )


def _elsewhere(names: _Names, bases: Iterable[Path]) -> str:
    """Return the `--image-root` that works for images further below `bases`; "" without one."""
    for folder, prefix in _search(bases, names):
        count = len(_holding([folder], names, prefix).files)
        if 2 * count >= len(names):
            quoted = shlex.quote(printable(str(folder)))
            return f"give --image-root {quoted}, where {count} of the first {len(names)} are"
    return ""


def _in_archives(names: _Names, folders: Sequence[Path], required: bool) -> str:
    """Return what to do with archives that may hold the images, or with any if `required`."""
    listed = [forms[0] for forms in names]
    likely = {*_USUAL, *(name.partition("/")[0].lower() for name in listed if "/" in name)}
    here = [path for folder in folders for path in list_folder(folder, _ENTRIES).paths()]
    for path in map(Path, filter(is_archive, here)):
        if required or path.name.lower().partition(".")[0] in likely or holds(path, listed):
            return f"name their folder with --image-root, or: {packed_images(here)}"
    return ""


def _not_found(
    file: Path, root: Path | None, tried: Sequence[Path], names: _Names, remedy: str
) -> PackError:
    first = _first(names)
    if root is not None:
        where = printable(os.path.join(root, first))
        remedy = remedy or "fetch them, or name the folder that they are in"
        return PackError(
            f"--image-root {root}: none of the first images is there (looked for {where}); {remedy}"
        )
    listed = ", ".join(printable(str(folder)) for folder in tried[:_LISTED])
    more = (
        f" and {counted(len(tried) - _LISTED, 'folder')} near them" if len(tried) > _LISTED else ""
    )
    return PackError(
        f"{file}: its images (the first is {printable(first)}) are in none of {listed}{more}; "
        f"{remedy or 'name their folder with --image-root'}"
    )
