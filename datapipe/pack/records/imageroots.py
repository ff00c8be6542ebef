"""Where the images lie that records name: the folder that their relative paths start from."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PosixPath

from datapipe.pack.archives import holds
from datapipe.pack.filekinds import is_archive
from datapipe.pack.raw import printable

_BELOW = 4  # levels below the records' own folder
_ABOVE = 3
_FOLDERS = 1000  # that are looked into on a level
_ENTRIES = 100_000  # of a folder that are looked at for folders
_PROBES = 8  # names that say whether a folder is worth a look at all of them
# All names are rarely there: some downloads fail. But half of them elsewhere is a rival.
_TAKEN = 0.9
_RIVAL = 0.5

# Above the records, only folders that are called as folders of images are: a neighbour there may be
# another dataset, whose files have the same names.
_USUAL = (
    *("images", "image", "imgs", "img", "pics", "pictures", "photos", "jpegimages", "data"),
    *("train", "val", "valid", "validation", "test", "train2014", "val2014", "test2014"),
    *("train2017", "val2017", "test2015", "test2017", "train_images", "val_images", "test_images"),
)

Names = Mapping[str, Sequence[str]]
"""Paths of the first images, by the field that names them."""


class ImageRoot(PosixPath):
    """A folder of images whose paths begin with a prefix that does not exist here.

    Attributes:
        dropped: the prefix, with a slash at its end.
    """

    dropped = ""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder that holds images of these names.

    Attributes:
        folder: that their paths start from.
        found: how many of the names are there.
        looked_for: how many names there are.
        dropped: prefix of the names that is not there.
    """

    folder: Path
    found: int
    looked_for: int
    dropped: str = ""

    @property
    def share(self) -> float:
        return self.found / self.looked_for

    @property
    def root(self) -> Path:
        """What paths are joined to."""
        if not self.dropped:
            return self.folder
        root = ImageRoot(self.folder)
        root.dropped = self.dropped
        return root

    def __str__(self) -> str:
        """Return the folder with its count, for messages."""
        lacking = f" without {printable(self.dropped)!r}" if self.dropped else ""
        return f"{printable(str(self.folder))} ({self.found} of {self.looked_for}{lacking})"


def path_below(root: str | os.PathLike[str], name: str) -> str:
    """Return the path of an image below its root."""
    dropped = getattr(root, "dropped", "")
    return os.path.join(root, name.removeprefix(dropped) if dropped else name)


def held_by(folder: Path, names: Names, dropped: str = "") -> Place | None:
    """Return how many images of the best field a folder holds; None if there is none."""
    best = None
    for listed in names.values():
        found = sum(_is_file(folder, name, dropped) for name in listed)
        if found and (best is None or found / len(listed) > best.share):
            best = Place(folder=folder, found=found, looked_for=len(listed), dropped=dropped)
    return best


def places_of(
    names: Names, start: Path, within: Path | None = None, hints: Collection[str] = ()
) -> list[Place]:
    """Return the folders near the records that hold images of these names.

    Looked at are the folder of the records and `within`, with the folders below them, then three
    folders above, with those in them that are called as folders of images usually are. Where no
    folder holds any name, a prefix that all of them share is left out, as short as possible; then
    a folder must hold every one.

    Args:
        names: paths of the first images.
        start: the folder of the records.
        within: the folder that was given, if it is another.
        hints: further names of folders of images, such as the split.
    """
    folders = list(_nearby(start, within, hints))
    found = [place for folder in folders if (place := _look(folder, names))]
    if found:
        return found
    for field, listed in names.items():
        for dropped in _prefixes(listed):
            alone = {field: listed}
            places = [p for folder in folders if (p := _look(folder, alone, dropped))]
            if places := [place for place in places if place.found == place.looked_for]:
                return places
    return []


def stripped(names: Names, folder: Path) -> Place | None:
    """Return a folder that holds every image once a prefix that all names share is left out."""
    for field, listed in names.items():
        for dropped in _prefixes(listed):
            place = held_by(folder, {field: listed}, dropped)
            if place and place.found == place.looked_for:
                return place
    return None


def the_one(places: Sequence[Place]) -> Place | None:
    """Return the place that plainly is meant: it holds nearly all, and no other holds half."""
    if sum(place.share >= _RIVAL for place in places) != 1:
        return None
    best = max(places, key=lambda place: place.share)
    return best if best.share >= _TAKEN else None


def archives_of(names: Names, folders: Sequence[Path]) -> list[Path]:
    """Return archives in these folders that seem to hold images of these names."""
    listed = [name for names_ in names.values() for name in names_]
    starts = {name.partition("/")[0].lower() for name in listed if "/" in name.strip("/")}
    found = []
    for folder in folders:
        for path in sorted(_archives(folder)):
            stem = path.name.lower().partition(".")[0]
            if stem in starts or stem in _USUAL or holds(path, listed):
                found.append(path)
    return found


def _look(folder: Path, names: Names, dropped: str = "") -> Place | None:
    probes = {f: listed[:: max(len(listed) // _PROBES, 1)] for f, listed in names.items()}
    return held_by(folder, names, dropped) if held_by(folder, probes, dropped) else None


def _is_file(folder: Path, name: str, dropped: str) -> bool:
    try:
        return os.path.isfile(f"{folder}/{name[len(dropped) :]}")
    except ValueError:  # no file can have this name
        return False


def _prefixes(names: Sequence[str]) -> Iterator[str]:
    """Yield what the paths of all names begin with, folder by folder: `a/`, `a/b/`."""
    common = os.path.commonprefix([name.rpartition("/")[0] + "/" for name in names])
    for position, letter in enumerate(common):
        if letter == "/":
            yield common[: position + 1]


def _nearby(start: Path, within: Path | None, hints: Collection[str]) -> Iterator[Path]:
    seen: set[str] = set()

    def new(folder: Path) -> bool:
        real = os.path.realpath(folder)
        if real in seen or not os.path.isdir(real):
            return False
        seen.add(real)
        return True

    yield from filter(new, _below(start))
    if within is not None:
        yield from filter(new, _below(within))
    usual = {name.lower() for name in (*_USUAL, *hints)}
    above = start.absolute()
    for _ in range(_ABOVE):
        above = above.parent
        if len(above.parts) < 2:  # the root of the disk holds no dataset
            return
        for folder in (above, *_called(above, usual)):
            if new(folder):
                yield folder
            if folder != above:
                yield from filter(new, _called(folder, usual))


def _below(folder: Path) -> Iterator[Path]:
    level = [folder]
    yield folder
    for _ in range(_BELOW):
        level = [inner for outer in level for inner in _folders(outer)][:_FOLDERS]
        yield from level


def _called(folder: Path, names: Collection[str]) -> list[Path]:
    return [inner for inner in _folders(folder) if inner.name.lower() in names]


def _folders(folder: Path) -> list[Path]:
    """Folders in a folder, sorted; hidden ones are left out."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= _ENTRIES:
                    break
                if not entry.name.startswith(".") and _is_folder(entry):
                    found.append(entry.name)
    except OSError:
        return []
    return [folder / name for name in sorted(found)]


def _archives(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries if is_archive(entry.name)]
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
