"""Folders that the relative paths of records' images start from."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PosixPath

from datapipe.errors import PackError
from datapipe.index.images.field_names import IMAGE_FOLDERS
from datapipe.pack.input.archives import holds, is_archive, unpack_command
from datapipe.pack.input.listing import list_folder
from datapipe.pack.input.raw_sample import as_it_lies, printable
from datapipe.pack.notes import Notes

_BELOW = 4  # levels below the records' own folder
_ABOVE = 3
_FOLDERS = 1000  # that are looked into on a level
_ENTRIES = 100_000  # of a folder that are looked at for folders
_LISTED = 8  # in a message
_PROBES = 8  # names that say whether a folder is worth a look at all of them
# All names are rarely there: some downloads fail. Half of them elsewhere is a rival.
_TAKEN = 0.9
_RIVAL = 0.5

# Above the records, only folders that are called as folders of images are: a neighbour there may be
# another dataset, whose files have the same names.
_USUAL = (
    *(*IMAGE_FOLDERS, "data"),
    *("train", "val", "valid", "validation", "test", "train2014", "val2014", "test2014"),
    *("train2017", "val2017", "test2015", "test2017", "train_images", "val_images", "test_images"),
)

Names = Mapping[str, Sequence[str]]
"""Paths of the first images, by the field that names them."""


def image_root(
    names: Names, default: Path, *, raw: Path, beside: Path, label: str, notes: Notes, given: bool
) -> Path:
    """Return the folder that the paths of images start from, and note it if it had to be found.

    Args:
        names: paths of the first images.
        default: where they start if half of them are there, or none anywhere.
        raw: the file or folder that the user gave.
        beside: the file of records.
        label: what a person would call that file.
        notes: told what was found.
        given: whether the user named `default`.

    Raises:
        PackError: the images are in several folders, none or several of them below the records;
            or some of them in one, or in an archive; or none where the user said.
    """
    names = {field: listed for field, listed in names.items() if listed}
    held = _held_by(default, names)
    fallback = held.root if held else default
    if not names or (held and (given or held.share >= _RIVAL)):
        return fallback
    start = beside.absolute().parent
    within = raw.absolute() if raw.is_dir() else None
    hints = [beside.name.partition(".")[0].rpartition("_")[2]]
    if given:
        found = next(iter(_without_prefix(names, [default])), None)
        if found is None:
            raise _wrong_root(names, default, _folders_of(names, start, default, hints))
    else:
        folders = _folders_of(names, start, within, hints)
        found = _the_one(folders) or _the_one([f for f in folders if f.path.is_relative_to(start)])
        if found is None and held is None:
            if folders:
                raise _several(names, default, label, folders)
            searched = dict.fromkeys([start, within or start, start.parent])
            if archives := _archives_of(names, list(searched)):
                raise _packed_away(names, default, label, archives)
        if found is None:
            return fallback
    _note(found, raw if raw.is_dir() else raw.parent, given, notes)
    return found.root


class ImageRoot(PosixPath):
    """Folder of images that are elsewhere in it than their names say.

    Attributes:
        dropped: prefix of their paths that does not exist here, with a slash at its end.
        respelled: whether the disk spells names otherwise than the records.
    """

    dropped = ""
    respelled = False


def respelling(folder: Path, dropped: str = "", *, respelled: bool = True) -> Path:
    """Return a folder below which names are looked for in other spellings too."""
    root = ImageRoot(folder)
    root.dropped, root.respelled = dropped, respelled
    return root


@dataclass(frozen=True)
class ImageFolder:
    """Folder that holds images of these names.

    Attributes:
        path: that their paths start from.
        found: how many of the names are there.
        looked_for: how many names there are.
        dropped: prefix of the names that is not there.
        respelled: whether some are there in another spelling alone.
    """

    path: Path
    found: int
    looked_for: int
    dropped: str
    respelled: bool

    @property
    def share(self) -> float:
        return self.found / self.looked_for

    @property
    def root(self) -> Path:
        """Return what paths are joined to."""
        if not (self.respelled or self.dropped):
            return self.path
        return respelling(self.path, self.dropped, respelled=self.respelled)

    @property
    def count(self) -> str:
        """Return how many of the names are there, for messages."""
        lacking = f", without {printable(self.dropped)!r}" if self.dropped else ""
        return f"{self.found} of the first {self.looked_for}{lacking}"


def path_below(root: str | os.PathLike[str], name: str) -> str:
    """Return the path of an image below its root; one that Windows wrote becomes one of ours."""
    dropped = getattr(root, "dropped", "")
    name = _with_slashes(name)
    path = os.path.join(root, name.removeprefix(dropped) if dropped else name)
    if getattr(root, "respelled", False) and not os.path.isfile(path):
        return as_it_lies(path) or path
    return path


def _with_slashes(name: str) -> str:
    return name.replace("\\", "/") if "\\" in name and "/" not in name else name


def _held_by(folder: Path, names: Names, dropped: str = "") -> ImageFolder | None:
    """Return how many images of the best field a folder holds; None if there is none."""
    best = None
    for listed in names.values():
        paths = [os.path.join(folder, _with_slashes(name)[len(dropped) :]) for name in listed]
        others = [path for path in paths if not os.path.isfile(path)]
        respelled = sum(as_it_lies(path) is not None for path in others)
        found = len(paths) - len(others) + respelled
        if found and (best is None or found / len(listed) > best.share):
            best = ImageFolder(folder, found, len(listed), dropped, respelled > 0)
    return best


def _folders_of(
    names: Names, start: Path, within: Path | None, hints: Collection[str]
) -> list[ImageFolder]:
    """Return the folders near the records that hold images of these names; see `nearby`.

    Where none holds any, a prefix that all names share is left out, as short as possible; then a
    folder must hold every one.
    """
    folders = list(nearby(start, within, hints))
    found = [held for folder in folders if (held := _look(folder, names))]
    return found or _without_prefix(names, folders)


def _without_prefix(names: Names, folders: Sequence[Path]) -> list[ImageFolder]:
    """Return the folders that hold every image once a prefix that all names share is left out."""
    for field, listed in names.items():
        for dropped in _prefixes(listed):
            held = [_look(folder, {field: listed}, dropped) for folder in folders]
            if whole := [f for f in held if f and f.found == f.looked_for]:
                return whole
    return []


def _the_one(folders: Sequence[ImageFolder]) -> ImageFolder | None:
    """Return the folder that plainly is meant.

    The only one must hold half of the images; one of several nearly all, and no other half.
    """
    if sum(folder.share >= _RIVAL for folder in folders) != 1:
        return None
    best = max(folders, key=lambda folder: folder.share)
    return best if len(folders) == 1 or best.share >= _TAKEN else None


def _archives_of(names: Names, folders: Sequence[Path]) -> list[Path]:
    """Return archives in these folders that seem to hold images of these names."""
    listed = [name for names_ in names.values() for name in names_]
    starts = {name.partition("/")[0].lower() for name in listed if "/" in name.strip("/")}
    paths = [
        folder / name
        for folder in folders
        for name in filter(is_archive, list_folder(folder).files)
    ]
    stems = {*starts, *_USUAL}
    return [p for p in paths if p.name.lower().partition(".")[0] in stems or holds(p, listed)]


def _look(folder: Path, names: Names, dropped: str = "") -> ImageFolder | None:
    probes = {f: listed[:: max(len(listed) // _PROBES, 1)] for f, listed in names.items()}
    return _held_by(folder, names, dropped) if _held_by(folder, probes, dropped) else None


def _prefixes(names: Sequence[str]) -> Iterator[str]:
    """Yield the prefixes of the paths of all names, folder by folder: `a/`, `a/b/`."""
    ordered = sorted(map(_with_slashes, names))
    first, last = ordered[0], ordered[-1]  # all between share what these two do
    for position, letter in enumerate(first):
        if letter == "/":
            if not last.startswith(first[: position + 1]):
                return
            yield first[: position + 1]


def nearby(start: Path, within: Path | None, hints: Collection[str]) -> Iterator[Path]:
    """Yield the folders that may hold the images of records in `start`, nearest first.

    These are the folder of the records and `within`, with the folders below them, then three
    folders above, with those in them that are called as folders of images usually are.

    Args:
        start: the folder of the records.
        within: the folder that was given, if it is another.
        hints: further names of folders of images, such as the split.
    """
    seen: set[str] = set()

    def new(folder: Path) -> bool:
        real = os.path.realpath(folder)
        if real in seen or not os.path.isdir(real):
            return False
        seen.add(real)
        return True

    for base in (start, within):
        if base is not None:
            yield from filter(new, _below(base))
    likely = {name.lower() for name in (*_USUAL, *hints)}
    above = start.absolute()
    for _ in range(_ABOVE):
        above = above.parent
        if len(above.parts) < 2:  # the root of the disk holds no dataset
            return
        if new(above):
            yield above
        for folder in _called(above, likely):
            if new(folder):
                yield folder
            yield from filter(new, _called(folder, likely))


def _below(folder: Path) -> Iterator[Path]:
    level = [folder]
    yield folder
    for _ in range(_BELOW):
        level = [inner for outer in level for inner in _folders(outer)][:_FOLDERS]
        yield from level


def _called(folder: Path, names: Collection[str]) -> list[Path]:
    return [inner for inner in _folders(folder) if inner.name.lower() in names]


def _folders(folder: Path) -> list[Path]:
    return [folder / name for name in list_folder(folder, _ENTRIES).folders]


# --- what is said -----------------------------------------------------------------------------


def _note(found: ImageFolder, base: Path, given: bool, notes: Notes) -> None:
    relative = printable(Path(os.path.relpath(found.path, base)).as_posix())
    said = f"images start in {relative}"
    if found.dropped:
        said += f", without the {printable(found.dropped)!r} that their paths begin with"
        notes.find("image_prefix", printable(found.dropped))
    if not given:
        said += " (found; --image-root says otherwise)"
        notes.find("image_root", relative)
    notes.decide(said)


def _first(names: Names) -> str:
    return printable(next(iter(names.values()))[0])


def _several(names: Names, default: Path, label: str, folders: Sequence[ImageFolder]) -> PackError:
    many = "several folders hold images" if len(folders) > 1 else "a folder holds some images"
    lines = [
        f"\n  --image-root {shlex.quote(printable(str(folder.path)))}  {folder.count}"
        for folder in folders[:_LISTED]
    ]
    more = f"\n  and {len(folders) - _LISTED} more" if len(folders) > _LISTED else ""
    return PackError(
        f"{label}: {_first(names)} and others are not in {default}, where their paths start; "
        f"{many} of these names:{''.join(lines)}{more}\nadd the one that is meant to the command"
    )


def _packed_away(names: Names, default: Path, label: str, archives: Sequence[Path]) -> PackError:
    listed = ", ".join(printable(path.name) for path in archives[:5])
    return PackError(
        f"{label}: {_first(names)} and others are neither in {default} nor in a folder near it, "
        f"but {listed} in {printable(str(archives[0].parent))} may hold them; unpack it with "
        f"`{unpack_command(archives[0])}`, and run the same command again"
    )


def _wrong_root(names: Names, given: Path, folders: Sequence[ImageFolder]) -> PackError:
    looked_for = printable(os.path.join(given, next(iter(names.values()))[0]))
    if folders:
        seem = "they seem to be in " + ", ".join(
            f"{printable(str(folder.path))} ({folder.count})" for folder in folders[:_LISTED]
        )
        seem += "; give that folder, or leave --image-root out"
    else:
        seem = "nor in a folder near the records; fetch them, or name the folder they are in"
    count = sum(map(len, names.values()))
    images = f"none of the first {count} images is there" if count > 1 else "the image is not there"
    return PackError(f"--image-root {given}: {images} (looked for {looked_for}); {seem}")
