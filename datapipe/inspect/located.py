"""Files of a dataset that is to be checked, found even where its manifest or index is damaged."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from datapipe.errors import IndexMismatch
from datapipe.index.columns import Columns
from datapipe.index.manifest import (
    MANIFEST,
    UNFINISHED,
    Arrays,
    Manifest,
    Shard,
    parse_manifest,
    refuse_unfinished,
)
from datapipe.index.raw_data import not_a_dataset
from datapipe.index.tar.listing import index_home, is_remote_folder, names_shards, tars_at
from datapipe.inspect.derived_check import check_derived
from datapipe.inspect.findings import Finding
from datapipe.inspect.sources import FolderSource, RemoteSource, Source
from datapipe.report.table import counted
from datapipe.store.arrays import TEXTS

_OWN = re.compile(r"shard-\d{6,}\.tar")

UNKNOWN = -1
"""`samples` and `bytes` of a shard that no manifest describes; its `index_sha256` is "".

So is its `index`, if it never had one.
"""


@dataclass(frozen=True, kw_only=True)
class DatasetFiles:
    """A dataset's files."""

    title: str  # the path or URL as it was given
    shards: Source  # of the tars or arrays
    index: Source  # of the manifest and the indexes
    manifest: Manifest | None  # None where it is missing or damaged
    entries: tuple[Shard, ...]  # from the manifest, or else from what is there
    # True if datapipe wrote the shards, all of whose members are in the index
    own: bool
    findings: list[Finding]  # about the manifest, names of shards, and derived files
    notes: list[str]
    columns: Columns | None = None  # None where they are missing or damaged, and behind a URL

    @property
    def home(self) -> Path | None:
        """Folder of the index; None behind a URL."""
        return self.index.folder if isinstance(self.index, FolderSource) else None

    @property
    def is_view(self) -> bool:
        """True if its index names shards of other datasets."""
        return self.manifest is not None and self.manifest.is_view

    @property
    def arrays(self) -> Arrays | None:
        """Files of a dataset of arrays; None of shards."""
        return None if self.manifest is None else self.manifest.arrays


def locate(dataset: str | os.PathLike[str]) -> DatasetFiles:
    """Find the files of a dataset: a folder, a URL, or a list of tars of someone else.

    Raises:
        IndexMismatch: it is something else, or its pack was not finished.
        StoreError: a server does not answer.
    """
    located = _locate(dataset)
    if located.manifest is None or located.home is None:
        return located
    columns, damage = check_derived(located.home, located.manifest)
    return replace(located, columns=columns, findings=[*located.findings, *damage])


def _locate(dataset: str | os.PathLike[str]) -> DatasetFiles:
    title = os.fspath(dataset)
    if is_remote_folder(dataset):
        source = RemoteSource(dataset)
        return _located(title, source, source, source.names)
    path, is_list = Path(dataset).absolute(), names_shards(dataset)
    if not is_list and not path.exists():
        raise IndexMismatch(f"{title}: no such folder; give the one that `datapipe pack` wrote")
    if not is_list and path.is_file() and path.suffix != ".tar":
        raise IndexMismatch(not_a_dataset(path))
    if not is_list and path.is_dir():
        own = FolderSource(path)
        if (path / MANIFEST).exists() and (found := _located(title, own, own, own.names)).own:
            return found
        if (path / UNFINISHED).exists() and not (path / MANIFEST).exists():
            raise IndexMismatch(
                f"{title}: its pack was not finished; run the same `datapipe pack` command again"
            )
    tars = tars_at(dataset if is_list else path)
    home = path if (path / MANIFEST).exists() else index_home(tars)
    if path.is_file() and (path.parent / MANIFEST).exists() and not (home / MANIFEST).exists():
        raise IndexMismatch(not_a_dataset(path))
    if not tars.shards and not (home / MANIFEST).exists():
        if (path / TEXTS).exists():
            raise IndexMismatch(
                f"{title} holds arrays without their {MANIFEST}; restore it from a copy, or "
                "convert the shards again into a new folder"
            )
        refuse_unfinished(path)
        raise IndexMismatch(not_a_dataset(path))
    return _located(title, FolderSource(tars.folder), FolderSource(home), tars.names)


def _located(
    title: str, shards: Source, index: Source, names_of: Callable[[], list[str]]
) -> DatasetFiles:
    content = index.read(MANIFEST)
    manifest, problem = None, "is missing"
    if content is not None:
        try:
            manifest = parse_manifest(content, MANIFEST)
        except IndexMismatch as error:
            problem = str(error).removeprefix(MANIFEST).partition(";")[0].strip()
    tars = [name for name in names_of() if name.endswith(".tar")]
    findings, notes = [], []
    if manifest is not None:
        entries = manifest.shards
        own = not manifest.foreign and not manifest.is_view
        more = sorted(set(tars) - {shard.name for shard in entries})
        if more and manifest.arrays is None and not manifest.is_view:
            what = f"{counted(len(more), 'tar')} that the manifest does not name, such as {more[0]}"
            if own:
                notes.append(f"not checked: {what}")
            else:
                problem = f"is older than {what}; run `datapipe index --force`"
                findings.append(Finding(file=MANIFEST, problem=problem))
    else:
        there = set(index.names())
        entries = tuple(_entry(name, there) for name in tars)
        own = all(entry.index == entry.name.removesuffix(".tar") + ".parquet" for entry in entries)
        if not entries:
            raise IndexMismatch(
                f"{title}: {MANIFEST} {problem}, and no shards are there; give a folder or URL "
                "that `datapipe pack` wrote, and restore the manifest of arrays"
            )
        if content is None and not own and not any(entry.index in there for entry in entries):
            entries = tuple(replace(entry, index="") for entry in entries)
            notes.append(
                "it has no index, so its bytes cannot be checked; `datapipe index` makes one"
            )
        else:
            findings.append(Finding(file=MANIFEST, problem=problem))
    return DatasetFiles(
        title=title,
        shards=shards,
        index=index,
        manifest=manifest,
        entries=entries,
        own=own,
        findings=findings,
        notes=notes,
    )


def _entry(name: str, there: set[str]) -> Shard:
    """Return a shard known only by its tar; its index is found by name."""
    stem = name.removesuffix(".tar")
    of_others = f"{stem}.index.parquet"
    is_own = f"{stem}.parquet" in there or (of_others not in there and bool(_OWN.fullmatch(name)))
    index = f"{stem}.parquet" if is_own else of_others
    counts = dict.fromkeys(("samples", "images", "bytes"), UNKNOWN)
    return Shard(name=name, index=index, index_sha256="", **counts)
