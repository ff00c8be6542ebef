"""Opened datasets: manifest and columns.

Foreign shards are indexed on first use. The index of a remote dataset is copied; its shards stay.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import IndexMismatch, StoreError
from datapipe.index import manifest as manifests
from datapipe.index.columns import COLUMNS, Columns, open_columns
from datapipe.index.files.derived import cached_home
from datapipe.index.manifest import MANIFEST, Manifest, Shard, read_manifest
from datapipe.index.mixture import DatasetPart, MixtureColumns, edges_of, part_of
from datapipe.index.parquet import file_sha256
from datapipe.index.raw_data import not_a_dataset
from datapipe.index.tar.indexer import check_same, index_shards
from datapipe.index.tar.listing import Tars, index_home, is_remote_folder, names_shards, tars_at
from datapipe.progress import Progress
from datapipe.remote.folder import RemoteFolder
from datapipe.text.videos import frame_of
from datapipe.workers.threads import ThreadPool

logger = logging.getLogger(__name__)

_AT_ONCE = 16  # index files that are fetched together


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """An indexed dataset."""

    folder: Path | RemoteFolder  # where the shards are, here or elsewhere
    home: Path  # where their index is, and what is derived from it
    manifest: Manifest  # its content
    columns: Columns  # what plan and fetch read of each sample
    max_frames: int | None = None  # of each video that `columns` have; None for all

    def __len__(self) -> int:
        return int(self.sample_edges[-1])

    @functools.cached_property
    def parts(self) -> tuple[DatasetPart, ...]:
        """The datasets of a mixture; a dataset alone is a mixture of one."""
        return (part_of(self),)

    @functools.cached_property
    def sample_edges(self) -> Int64:
        """Number of the first sample of each part, and of all samples: int64 [parts + 1]."""
        return edges_of([part.counts.samples for part in self.parts])

    @property
    def fingerprint(self) -> str:
        """sha256, in hex, of the content."""
        return self.manifest.fingerprint

    @property
    def opener(self) -> Callable[[], Dataset]:
        """Function that opens the same dataset in another process, on another machine too."""
        facts = (self.folder, self.home, self.fingerprint, self.max_frames)
        return functools.partial(_open_again, *facts)

    def with_frames(self, most: int | None) -> Dataset:
        """Return the dataset with at most this many frames of each video; None for all of them."""
        if most is None or not any(map(frame_of, self.columns.extensions)):
            return self
        columns = open_columns(self.home, self.manifest, most)
        return replace(self, columns=columns, max_frames=most)

    @property
    def bytes(self) -> int:
        """Bytes of the shards or arrays."""
        return self.manifest.bytes

    @property
    def title(self) -> str:
        """Name for messages."""
        return str(self.folder)

    def check_unchanged(self) -> None:
        """Raise `IndexMismatch` if the manifest on the disk changed after it was opened."""
        if read_manifest(self.home).fingerprint != self.fingerprint:
            raise IndexMismatch(
                f"{self.folder} was packed or indexed again after it was opened; call make_loader "
                "again"
            )

    @functools.cached_property
    def name(self) -> str:
        """Last part of the folder or URL, such as "captions" of "s3://data/captions/"."""
        # A Path keeps "..", which names nothing.
        path = os.path.normpath(self.folder) if isinstance(self.folder, Path) else self.folder.url
        return path.rsplit("/", 1)[-1] or path

    def kinds(self, samples: Int64) -> Int64:
        """Return the number of the part of each sample: int64 [n] in and out."""
        found: Int64 = np.searchsorted(self.sample_edges, samples, side="right") - 1
        return found

    def dataset_names(self, samples: Int64) -> list[str]:
        """Return the name of the part of each sample; `samples` is int64 [n]."""
        return [self.parts[number].name for number in self.kinds(samples).tolist()]


@dataclass(frozen=True, kw_only=True)
class DatasetMixture(Dataset):
    """Datasets of a mixture as one. Its manifest is empty."""

    parts: tuple[DatasetPart, ...] = field(repr=False)  # the datasets

    @staticmethod
    def of(parts: Sequence[DatasetPart]) -> DatasetMixture:
        return DatasetMixture(
            folder=Path(),
            home=Path(),
            manifest=Manifest(shards=()),
            columns=MixtureColumns.of(
                [part.columns for part in parts], [part.counts for part in parts]
            ),
            parts=tuple(parts),
        )

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(f"{part.name}\0{part.fingerprint}\0".encode())
        return digest.hexdigest()

    @property
    def bytes(self) -> int:
        return sum(part.dataset().bytes for part in self.parts)

    @property
    def title(self) -> str:
        return f"a mixture of {len(self.parts)} datasets"

    def check_unchanged(self) -> None:
        """Do nothing: each dataset is compared when it is opened."""


class FoundDataset(NamedTuple):
    """A dataset of which only the manifest was read."""

    folder: Path | RemoteFolder  # where the shards are
    home: Path | RemoteFolder  # where their index is
    manifest: Manifest
    tars: Tars | None = None  # of someone else


def find_dataset(folder: str | os.PathLike[str]) -> FoundDataset:
    """Find a dataset and read its manifest alone; foreign shards are indexed on first use.

    Raises the errors of `open_dataset`.
    """
    if is_remote_folder(folder):
        remote = RemoteFolder(folder)
        return FoundDataset(remote, remote, _remote_manifest(remote))
    with _naming_unreadable(folder):
        return _find_here(folder)


def open_dataset(folder: str | os.PathLike[str] | RemoteFolder) -> Dataset:
    """Open the dataset in `folder`, a path or a URL, or a list of tars of someone else.

    Raises:
        IndexMismatch: there is no finished dataset, the shards are not those of the index, or this
            user must not read them.
        StoreError: foreign shards cannot be indexed, or a server does not answer.
        PlanError: nothing that is installed knows such URLs.
    """
    if is_remote_folder(folder):
        folder = RemoteFolder(folder)
    if isinstance(folder, RemoteFolder):
        home, manifest = mirror_index(folder)
        columns = open_columns(home, manifest)
        return Dataset(folder=folder, home=home, manifest=manifest, columns=columns)
    with _naming_unreadable(folder):
        return _open_here(folder)


@contextmanager
def _naming_unreadable(folder: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise IndexMismatch(
            f"{error.filename or folder}: {error.strerror}; let this user read {folder} and what "
            "is in it"
        ) from error


def _open_again(
    folder: Path | RemoteFolder, home: Path, fingerprint: str, max_frames: int | None
) -> Dataset:
    if isinstance(folder, RemoteFolder):
        dataset = open_dataset(folder)
    else:
        manifest = read_manifest(home)
        columns = open_columns(home, manifest)
        dataset = Dataset(folder=folder, home=home, manifest=manifest, columns=columns)
    if dataset.fingerprint != fingerprint:
        raise IndexMismatch(f"{folder} is a different dataset here than where the command runs")
    return dataset.with_frames(max_frames)


def _find_here(folder: str | os.PathLike[str]) -> FoundDataset:
    # The program may go to another folder while the dataset is open.
    root = Path(folder).absolute()
    if (root / MANIFEST).exists():
        home, manifest = root, read_manifest(root)
        tars = tars_at(root) if manifest.foreign else None
    else:
        tars = _foreign(folder if names_shards(folder) else root)
        home = index_home(tars)
        if not (home / MANIFEST).exists():
            logger.info("%s has no index yet; building it", tars.name)
            index_shards(folder, home=home)
        manifest = read_manifest(home)
    return FoundDataset(root if tars is None else tars.folder, home, manifest, tars)


def _open_here(folder: str | os.PathLike[str]) -> Dataset:
    root, home, manifest, tars = _find_here(folder)
    assert isinstance(root, Path)
    assert isinstance(home, Path)
    name = str(root)
    if tars is None:
        check_shards(root, manifest)
    else:
        check_same(tars, manifest)
        name = tars.name
    columns = open_columns(home, manifest)
    indexes = zip((shard.index for shard in manifest.shards), columns.index_bytes, strict=True)
    said = "it had {}; it was cut or replaced"
    _check_sizes(home, dict(indexes), said, _remedy(manifest, name))
    return Dataset(folder=root, home=home, manifest=manifest, columns=columns)


def _foreign(path: str | os.PathLike[str]) -> Tars:
    if names_shards(path):
        return tars_at(path)
    root = Path(path)
    if not root.exists():
        raise IndexMismatch(f"{root}: no such folder; give the one that `datapipe pack` wrote")
    if root.is_file() and root.suffix != ".tar":
        raise IndexMismatch(not_a_dataset(root))
    manifests.refuse_unfinished(root)
    tars = tars_at(root)
    if not tars.shards:
        raise IndexMismatch(not_a_dataset(root))
    return tars


def check_shards(root: Path, manifest: Manifest) -> None:
    """Raise `IndexMismatch` for a shard, or array, that is missing or has another size."""
    if manifest.arrays is not None:
        kind, sizes = "file", dict(manifest.arrays.files)
    else:
        kind, sizes = "shard", {shard.name: shard.bytes for shard in manifest.shards}
    said = f"its index says {{}}; the {kind} changed after it was indexed"
    _check_sizes(root, sizes, said, _remedy(manifest, str(root)))


def _remedy(manifest: Manifest, name: str) -> str:
    """Return what to do about a file of a dataset, called `name` in a shell, that was changed."""
    if manifest.foreign:
        return f"restore it, or index again with `datapipe index --force {quote(name)}`"
    if manifest.arrays is not None:
        return "restore it, or convert the shards again into a new folder"
    return "restore it, or pack the raw data again into a new folder"


def _check_sizes(folder: Path, sizes: Mapping[str, int], said: str, remedy: str) -> None:
    """Raise `IndexMismatch` for a file that is missing or has another size.

    `said` is what the message says about the expected size, with `{}` for that size.
    """
    root = os.fspath(folder)
    for name, expected in sizes.items():
        path = f"{root}/{name}"  # a `Path` takes longer than the system call
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            raise IndexMismatch(f"{path} is missing; {remedy}") from None
        except OSError as error:
            raise IndexMismatch(
                f"{path}: {error.strerror}; let this user read the folder, or {remedy}"
            ) from None
        if size != expected:
            raise IndexMismatch(f"{path} has {size} bytes, {said.format(expected)}: {remedy}")


def mirror_index(folder: RemoteFolder) -> tuple[Path, Manifest]:
    """Fetch manifest and index of a remote dataset; return the local folder, and the manifest.

    They are in the cache folder under the dataset's fingerprint, so they are fetched once, wherever
    copies of it are. The manifest is read each time. Raises `IndexMismatch` if no dataset is at the
    URL, or its index is not that of its manifest, and `StoreError` if the server does not answer.
    """
    manifest = _remote_manifest(folder)
    home = cached_home(manifest.fingerprint)
    # The index is read, and compared, only to make columns of it.
    compared = not (home / COLUMNS).exists()
    missing = [shard for shard in manifest.shards if not _is_here(home, shard, compared)]
    if missing:
        fetch = functools.partial(_fetch, folder, home)
        with (
            Progress("fetching the index", unit="shard", total=len(missing)) as progress,
            closing(ThreadPool(fetch, _AT_ONCE, name="datapipe-fetch")) as pool,
        ):
            for _ in pool.run(missing):
                progress.advance()
    if not (home / MANIFEST).exists():
        home.mkdir(parents=True, exist_ok=True)
        manifests.replace_file(home / MANIFEST, manifests.manifest_file(manifest))
    return home, manifest


def _remote_manifest(folder: RemoteFolder) -> Manifest:
    try:
        content = folder.read(MANIFEST)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise IndexMismatch(
                f"{folder} has no {MANIFEST}; give the URL of a folder that `datapipe pack` "
                "wrote, or that `datapipe index` indexed before it was copied"
            ) from error
        raise
    return manifests.parse_manifest(content, folder.url_of(MANIFEST))


def _is_here(home: Path, shard: Shard, compared: bool) -> bool:
    """Return whether the index of a shard was fetched, and is still what was fetched."""
    path = home / shard.index
    if not path.exists():
        return False
    if compared and file_sha256(path) != shard.index_sha256:
        logger.warning("%s is damaged; fetching it again", path)
        return False
    return True


def _fetch(folder: RemoteFolder, home: Path, shard: Shard) -> None:
    content = folder.read(shard.index)
    if hashlib.sha256(content).hexdigest() != shard.index_sha256:
        raise IndexMismatch(
            f"{folder.url_of(shard.index)} is not the index that {MANIFEST} was written for; "
            "copy the whole dataset there again"
        )
    (home / shard.index).parent.mkdir(parents=True, exist_ok=True)
    manifests.replace_file(home / shard.index, content, durable=False)
