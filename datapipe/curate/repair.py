"""`repair_dataset`: what a damaged dataset still holds, as a whole one."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import pyarrow as pa

from datapipe.cpus import available_cpus
from datapipe.curate.copy import copy_samples
from datapipe.curate.new_shards import SampleRun
from datapipe.curate.salvage import ShardSalvage, salvage_shard
from datapipe.curate.sources import SELECTION, check_name, check_unique, folder_outside
from datapipe.curate.spec import CopySpec
from datapipe.declared import checked
from datapipe.errors import PackError
from datapipe.index.columns import open_columns
from datapipe.index.manifest import (
    MANIFEST,
    Contribution,
    Manifest,
    Shard,
    replace_file,
    write_manifest,
)
from datapipe.index.parquet import read_index
from datapipe.index.record_fields import FIELDS
from datapipe.inspect.derived_check import check_derived
from datapipe.inspect.findings import Finding
from datapipe.inspect.located import DatasetFiles, locate
from datapipe.inspect.member_table import ONLY_INDEX
from datapipe.inspect.sources import RemoteSource
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.journal import REJECTS
from datapipe.pack.writers.shards import indexed_shard
from datapipe.progress import Progress
from datapipe.report.table import counted
from datapipe.store.remote import RemoteStore
from datapipe.store.shards import ShardStore
from datapipe.workers.threads import ThreadPool

_NO_CHECKSUM = "its bytes have no checksum"


@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """Result of `repair_dataset`.

    Examples:
        >>> report = datapipe.repair_dataset("shards/", "whole/")
        >>> report.samples, report.lost
        (8, ())
    """

    output: str  # folder of the repaired dataset
    samples: int  # in it
    without_checksum: int  # samples without checksums; in it if `unchecked` was given
    lost: tuple[Finding, ...]  # samples, and parts of tars, that are gone or left out
    remade: tuple[str, ...]  # files that were made again in place
    notes: tuple[str, ...]
    seconds: float

    @property
    def again(self) -> tuple[str, ...]:
        """Raw inputs to pack again, as far as they are known."""
        return tuple(dict.fromkeys(finding.source for finding in self.lost if finding.source))


@checked(PackError)
def repair_dataset(
    dataset: str | PathLike[str],
    out: str | PathLike[str] | None = None,
    *,
    in_place: bool = False,
    unchecked: bool = False,
    output: CopySpec = CopySpec(),  # noqa: B008  (frozen)
) -> RepairReport:
    """Copy what a damaged dataset still holds into a new one, or rebuild its lost indexes.

    With `out`, the whole samples are copied into new shards, and `rejects.jsonl` there lists those
    that are gone. A sample is copied if all its members have the checksums of an index, wherever in
    the shard they are now. Samples of a shard without an index that can be trusted are left out and
    listed: bits that flipped inside of them cannot be seen. With `unchecked`, those that are not
    next to damage, and whose images and texts can be read, are copied, and the report counts
    them. Without `out`, `in_place` makes manifest, indexes and columns again where shards are
    whole, and changes no shard; damaged files are kept as `NAME.damaged`.

    Args:
        dataset: folder or URL of shards, or tars of someone else.
        out: folder for the repaired dataset.
        in_place: make indexes again in the dataset's own folder.
        unchecked: copy samples without checksums too.
        output: options of the new shards.

    Raises:
        PackError: both or neither of `out` and `in_place` are given, `output` is to be a view, no
            sample is left, a shard is damaged or has no checksums and cannot be repaired in place,
            or the output belongs to something else.
        IndexMismatch: no dataset is there, or its pack was not finished.
        StoreError: a server does not answer.

    Examples:
        >>> Path("shards/dataset.json").unlink()
        >>> datapipe.repair_dataset("shards/", in_place=True).remade
        ('dataset.json',)
    """
    started = time.monotonic()
    if (out is None) is not in_place:
        raise PackError(
            "give either OUT (out=), a new folder for the repaired dataset, or --in-place "
            "(in_place=True), which rebuilds lost indexes in place"
        )
    if output.view:
        raise PackError("a repaired dataset has shards of its own; leave view out of `output`")
    located = locate(dataset)
    if located.arrays is not None:
        raise PackError(f"{dataset} holds arrays; convert the shards again into a new folder")
    if in_place and not all(entry.index for entry in located.entries):
        raise PackError(f"{dataset} has no index yet; `datapipe index` makes one")
    if in_place and isinstance(located.shards, RemoteSource):
        raise PackError(f"{dataset}: a URL cannot be repaired in place; give a new folder")
    folder = None if out is None else folder_outside(out, dataset, located.shards.folder)
    try:
        with TemporaryDirectory(prefix="datapipe-repair-") as spool:
            found = _DatasetSalvage(located, Path(spool), unchecked=unchecked)
            found.collect()
            if folder is None:
                samples, remade = found.remake()
            else:
                samples, remade = found.copy(folder, output), ()
    except OSError as error:
        raise PackError(
            f"{dataset}: its repair failed ({error.strerror or error}); check that "
            f"{located.home if folder is None else folder} and {gettempdir()} can be written and "
            "have room, and run the same command again"
        ) from error
    return RepairReport(
        output=str(dataset if out is None else out),
        samples=samples,
        without_checksum=found.without_checksum,
        lost=tuple(found.lost),
        remade=remade,
        notes=tuple(found.notes),
        seconds=round(time.monotonic() - started, 3),
    )


class _DatasetSalvage:
    """Rows of the samples that were salvaged of each shard, in files of a temporary folder."""

    def __init__(self, located: DatasetFiles, spool: Path, *, unchecked: bool) -> None:
        self.located, self.spool, self.unchecked = located, spool, unchecked
        self.lost: list[Finding] = []
        self.notes = list(located.notes)
        self.without_checksum = 0
        self._stop = threading.Event()
        self._remade: list[int] = []  # shards whose index is not the one that was there
        self._made: list[Shard] = []  # with the index in the temporary folder

    def collect(self) -> None:
        entries = self.located.entries
        total = sum(max(shard.bytes, 0) for shard in entries) or None
        salvage = partial(salvage_shard, self.located, self._tell)
        with (
            Progress("reading", unit="member", total=total, total_unit="bytes") as self._progress,
            closing(ThreadPool(salvage, available_cpus(), name="datapipe-repair")) as pool,
        ):
            try:
                for number, salvaged in enumerate(pool.run(range(len(entries)))):
                    self._add(number, salvaged)
            finally:
                self._stop.set()

    def _tell(self, members: int, size: int) -> None:
        if self._stop.is_set():
            raise PackError("the repair was stopped")
        self._progress.advance(members, of_total=size)

    def _add(self, number: int, salvaged: ShardSalvage) -> None:
        entry, table, lost = self.located.entries[number], salvaged.table, salvaged.lost
        made = indexed_shard(self._spooled(number), table, entry.name, entry.bytes)
        # The manifest vouches for an index that is made again as it was.
        if not salvaged.has_checksums and made.index_sha256 != entry.index_sha256:
            if self.located.is_view:
                # What is damaged in the shard may belong to samples that are not in the view.
                lost = [Finding(file=entry.index, problem=f"is lost or damaged, and {ONLY_INDEX}")]
            else:
                self.without_checksum += len(table)
                keys = [] if self.unchecked else table["key"].to_pylist()
                self.lost += [Finding(file=entry.name, key=k, problem=_NO_CHECKSUM) for k in keys]
            if self.located.is_view or not self.unchecked:
                table = table.slice(0, 0)
                made = indexed_shard(self._spooled(number), table, entry.name, entry.bytes)
        self._made.append(made)
        self.lost += lost
        self.notes += [f"{entry.name}: {note}" for note in salvaged.notes]
        if not salvaged.is_index_whole:
            self._remade.append(number)

    def _spooled(self, number: int) -> Path:
        return self.spool / f"{number}.parquet"

    def copy(self, out: Path, output: CopySpec) -> int:
        """Copy the samples into new shards; return their number."""
        located = self.located
        if not any(shard.samples for shard in self._made):
            count = self.without_checksum
            remedy = f", but {count:,} have no checksum; --unchecked (unchecked=True) takes them"
            unchecked = remedy if count else ""
            raise PackError(
                f"{located.title}: no intact sample is left{unchecked}; restore it from a copy, or "
                "pack again"
            )
        if not (output.renumber or located.own):
            remedy = "give --renumber, which makes new keys"
            tables = (read_index(self._spooled(number)) for number in range(len(self._made)))
            chunks = [chunk for table in tables for chunk in table["key"].chunks]
            keys = pa.chunked_array(chunks, pa.string())
            for key in keys.to_pylist():
                check_name(located.title, f"{key}.jpeg", remedy)
            check_unique(keys, remedy)
        names = [entry.name for entry in located.entries]
        store = (
            RemoteStore(located.shards.folder, names)
            if isinstance(located.shards, RemoteSource)
            else ShardStore(located.shards.folder, names)
        )
        runs = []
        for number, shard in enumerate(self._made):
            rows = partial(read_index, self._spooled(number))
            if shard.samples:
                runs.append(SampleRun(store=store, shard=number, samples=shard.samples, rows=rows))
        digests = "".join(shard.index_sha256 for shard in self._made)
        digest = hashlib.sha256(digests.encode()).hexdigest()
        made_by: dict[str, Any] = {"command": "repair", SELECTION: digest}
        made_by |= {"renumber": True} if output.renumber else {}
        size, rejects = sum(max(entry.bytes, 0) for entry in located.entries), [*self._rejects()]
        with closing(store):
            return copy_samples(runs, out, made_by, output, rejects=rejects, bytes=size).samples

    def _rejects(self) -> Iterator[Reject]:
        """Yield a reject for each sample that is gone, and each damaged part of a tar."""
        gone: dict[tuple[str, str, int], list[Finding]] = {}
        for number, finding in enumerate(self.lost):
            name = finding.file, finding.key, 0 if finding.key else number
            gone.setdefault(name, []).append(finding)
        for (file, key, _), findings in gone.items():
            first = findings[0]
            reasons = "; ".join(f"{f.place.removeprefix('sample ')}{f.problem}" for f in findings)
            source = first.source or (f"{file}:{key}" if key else file)
            yield Reject(source, reasons, "StoreError", file)

    def remake(self) -> tuple[int, tuple[str, ...]]:
        """Make files of the index again in place; return the samples, and names of the files."""
        located, home, before = self.located, self.located.home, self.located.manifest
        assert home is not None
        if self.lost:
            harmed = sorted({finding.file for finding in self.lost})
            remedy = "give a new folder, to which the intact samples are copied"
            if self.without_checksum:
                remedy += "; --unchecked (unchecked=True) accepts samples without a checksum"
            raise PackError(
                f"{located.title}: {counted(len(harmed), 'shard')} damaged or without checksums, "
                f"such as {self.lost[0]}; nothing was changed; {remedy}"
            )
        entries, remade = list(located.entries), []
        for number in self._remade:
            entry, path = entries[number], home / entries[number].index
            content = self._spooled(number).read_bytes()
            with located.shards.open(entry.name) as file:
                assert file is not None
                entries[number] = replace(self._made[number], index=entry.index, bytes=file.size)
            for left in path.parent.glob(f".{path.name}.*tmp-*"):  # of a repair that was killed
                left.unlink(missing_ok=True)
            if path.exists():
                if (before_it := path.read_bytes()) == content:
                    continue
                # A copy, so that there is an index at every moment, also where the disk is full.
                replace_file(path.with_name(f"{path.name}.damaged"), before_it)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
            remade.append(entry.index)
        parts = before.parts if before is not None else self._parts()
        manifest = Manifest(shards=tuple(entries), parts=parts)
        if before is None or manifest.fingerprint != before.fingerprint:
            if (home / MANIFEST).exists():
                (home / MANIFEST).replace(home / f"{MANIFEST}.damaged")
            write_manifest(home, manifest)
            remade.append(MANIFEST)
        for name in (finding.file for finding in check_derived(home, manifest)[1]):
            folder = name.partition("/")[0]
            if folder == FIELDS:
                (home / name).unlink(missing_ok=True)
                remade.append(name)
            elif f"{folder}/" not in remade:
                rmtree(home / folder, ignore_errors=True)
                remade.append(f"{folder}/")
        open_columns(home, manifest)
        return manifest.samples, tuple(remade)

    def _parts(self) -> tuple[Contribution, ...]:
        """Return the packs of a dataset whose manifest is lost, as one."""
        home = self.located.home
        if not self.located.own or home is None:
            return ()
        path = home / REJECTS
        rejects = path.read_bytes() if path.exists() else b""
        rejected = rejects.count(b"\n")
        part = Contribution(
            shards=len(self._made),
            inputs=sum(shard.samples for shard in self._made) + rejected,
            inputs_sha256="",
            rejected=rejected,
            rejects_bytes=len(rejects),
            options={"command": "repair"},
        )
        return (part,)
