"""Names of the files and folders in one folder, without what datapipe wrote into it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from datapipe.index.columns import COLUMNS
from datapipe.index.manifest import MANIFEST
from datapipe.index.record_fields import FIELDS
from datapipe.pack.input.file_kinds import is_picture, kind_of_name, split_extension
from datapipe.pack.input.file_starts import start_of
from datapipe.pack.input.real_paths import UNKNOWN, identity_of
from datapipe.pack.input.sorted_names import SortedNames

_INDEX_OF_TAR = ".index.parquet"
# Beside a manifest of ours: the index of a shard, what is derived from it, rejects, wids' sidecar.
_BESIDE_MANIFEST = re.compile(
    rf"{re.escape(MANIFEST)}|{COLUMNS}(-\d+-frames)?|{FIELDS}|where|tokens-[0-9a-f]{{16}}"
    r"|rejects\.jsonl|shardindex\.json|(shard|part)-\d{6,}\.parquet"
)
_MARK = b'"format": "datapipe"'
_LITTER = frozenset({"thumbs.db", "desktop.ini"})  # what Windows leaves in folders of images


def _is_own(folder: str, name: str) -> bool:
    """Return whether datapipe wrote a file or folder into raw data, so that it is none."""
    if name.endswith(_INDEX_OF_TAR):
        return bool(start_of(f"{folder}/{name.removesuffix(_INDEX_OF_TAR)}.tar", 1))
    is_beside = _BESIDE_MANIFEST.fullmatch(name) is not None
    return is_beside and _MARK in start_of(f"{folder}/{MANIFEST}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Listing:
    """Content of a folder, without hidden files and what datapipe wrote."""

    folder: str  # its path
    files: SortedNames = field(default_factory=SortedNames)  # names of files
    folders: list[str] = field(default_factory=list)  # names of folders, sorted
    identity: tuple[int, int] = UNKNOWN  # device and inode of the folder
    videos: bool = False  # whether videos count as images

    @cached_property
    def images(self) -> SortedNames:
        return SortedNames(n for n in self.files if is_picture(n.rpartition(".")[2], self.videos))

    @cached_property
    def records(self) -> list[str]:
        """Names of the files that may hold records, without sidecars of images and tars."""
        found = list(filter(kind_of_name, self.files))
        if not found:
            return []
        stems = {part for name in self.images for part in (name, split_extension(name)[0])}
        tars = (split_extension(name)[0] for name in self.files if name.endswith(".tar"))
        owners = {*self.folders, *tars}
        return [name for name in found if not _is_companion(name, stems, owners)]

    def paths(self) -> Iterator[str]:
        return (f"{self.folder}/{name}" for name in self.files)


def _is_companion(name: str, images: set[str], owners: set[str]) -> bool:
    """Return whether a file is the sidecar of an image, or tells of a tar or a folder."""
    stem, ext = split_extension(name)
    if ext == "parquet":
        owner = stem.removesuffix(".index")
        return owner in owners and (owner != stem or stem.isdigit() or stem.startswith("shard-"))
    return stem in images


def list_folder(
    folder: str | os.PathLike[str],
    most: int | None = None,
    *,
    strict: bool = False,
    videos: bool = False,
) -> Listing:
    """Return `most` entries of a folder; an unreadable one is empty, or an OSError if `strict`."""
    path = os.fspath(folder)
    files, folders, identity = SortedNames(), [], identity_of(path)
    try:
        with os.scandir(path) as entries:
            for entry in islice(entries, most):
                name = entry.name
                hidden = name[0] == "." or name.lower() in _LITTER
                if not hidden and not _is_own(path, name):
                    if _is_folder(entry):
                        folders.append(name)
                    else:
                        files.add(name)
    except OSError:
        if strict:
            raise
    return Listing(
        folder=path, files=files, folders=sorted(folders), identity=identity, videos=videos
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
