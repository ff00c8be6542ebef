"""Survey of what a user gave to pack: each folder is listed once, each file is looked at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

from datapipe.index.tar.listing import names_shards
from datapipe.pack.input.file_kinds import is_picture
from datapipe.pack.input.listing import Listing, list_folder
from datapipe.pack.input.real_paths import UNKNOWN, folders_above

T = TypeVar("T")

_KEPT_NAMES = 500_000
_KEPT_LOOKS = 64  # a first record may hold images
_COUNTED = 20_000


def _listings(*, videos: bool) -> Callable[[str], Listing]:
    """Return `list_folder` that keeps half a million names; further folders are listed again."""
    kept: dict[str, Listing] = {}
    room = _KEPT_NAMES

    def listing(folder: str) -> Listing:
        nonlocal room
        found = kept.get(folder)
        if found is None:
            found = list_folder(folder, strict=True, videos=videos)
            size = 1 + len(found.files) + len(found.folders)
            if size <= room:
                room -= size
                kept[folder] = found
        return found

    return listing


class Survey:
    """A path that a user gave, and what was found there.

    Attributes:
        raw: the path.
        is_file, is_folder, is_list: what it is, a list of tars such as `train-{00..99}.tar` too.
        videos: whether videos count as images, as where their frames are wanted.
        listing: function that returns the content of a folder; OSError if it cannot be read.

    Examples:
        >>> survey = Survey("photos")
        >>> survey.is_folder, [len(listing.images) for listing in survey.walk()]
        (True, [8])
    """

    def __init__(self, raw: str | os.PathLike[str], *, videos: bool = False) -> None:
        self.raw = Path(raw)
        self.videos = videos
        self.is_file, self.is_folder = self.raw.is_file(), self.raw.is_dir()
        self.is_list = not (self.is_file or self.is_folder) and names_shards(self.raw)
        self._root = os.fspath(self.raw)
        self.listing = _listings(videos=videos)
        self._looks = lru_cache(_KEPT_LOOKS)(lambda look, path: look(path))

    def is_picture(self, ext: str) -> bool:
        """Return whether a name or extension is that of an image, or a video that counts as one."""
        return is_picture(ext, self.videos)

    def inside(self, folder: str) -> Survey:
        """Return the survey of a folder at the top, which knows what this one found there."""
        inner = Survey(self.raw / folder, videos=self.videos)
        inner.listing, inner._looks = self.listing, self._looks
        return inner

    @cached_property
    def _above(self) -> set[tuple[int, int]]:
        return folders_above(self._root)

    def below(self, path: str) -> str:
        """Return a path below the root of the survey; "" for the root itself."""
        return path[len(self._root) + 1 :]

    @property
    def top(self) -> Listing:
        """Content of the path itself; empty for a file or a folder that cannot be read."""
        try:
            return self.listing(self._root)
        except OSError:
            return Listing(folder=self._root)

    def look(self, at: Callable[[Path], T], path: Path) -> T:
        """Return what a function finds in a file; the last few hundred answers are kept."""
        found: T = self._looks(at, path)
        return found

    def walk(self, back: list[str] | None = None, *, most: int | None = None) -> Iterator[Listing]:
        """Yield every folder below the path, depth first; none of a file.

        Links to folders are followed, but neither back to a folder that was seen nor to one that
        contains the path; `back` gets the paths of such links. Folders that cannot be read are left
        out. The walk ends once there were `most` files and folders.
        """
        if not self.is_folder:
            return
        seen = self._above | {UNKNOWN}
        waiting = [self._root]
        entries = 0
        while waiting and (most is None or entries < most):
            folder = waiting.pop()
            try:
                listing = self.listing(folder)
            except OSError:
                continue
            if listing.identity in seen:
                if back is not None and listing.identity in self._above | {self.top.identity}:
                    back.append(folder)
                continue
            seen.add(listing.identity)
            yield listing
            entries += 1 + len(listing.files)
            waiting += [f"{folder}/{name}" for name in reversed(listing.folders)]

    def levels(self, most: int | None = None) -> Iterator[list[Listing]]:
        """Yield the folders of each depth, until `most` files were seen; may raise OSError."""
        folders = [self._root]
        visited = set(self._above)
        seen = 0
        while folders:
            level: list[Listing] = []
            for folder in folders:
                listing = self.listing(folder)
                if listing.identity not in visited:
                    visited.add(listing.identity)
                    level.append(listing)
                    seen += len(listing.files)
                if most is not None and seen > most:
                    yield level
                    return
            yield level
            folders = [f"{listing.folder}/{name}" for listing in level for name in listing.folders]

    @cached_property
    def extensions(self) -> Counter[str]:
        """Number of files with each extension, among about 20,000 files."""
        if self.is_file:
            return Counter({self.raw.suffix.lower(): 1})
        counts: Counter[str] = Counter()
        for listing in self.walk(most=_COUNTED):
            counts.update(os.path.splitext(name)[1].lower() for name in listing.files)
        return counts

    def describe(self) -> str:
        """Return the extensions of the files with their counts, for messages."""
        kinds = sorted(self.extensions.items(), key=lambda item: (-item[1], item[0]))[:6]
        listed = (f"{count:,} {extension or 'without extension'}" for extension, count in kinds)
        return ", ".join(listed) or "nothing"
