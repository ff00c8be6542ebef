"""`verify_dataset`: every byte of a dataset compared with what was written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path

from datapipe.cpus import PackWorkers, available_cpus
from datapipe.declared import Word, checked
from datapipe.errors import IndexMismatch, PlanError, StoreError, WorkerError
from datapipe.index.columns import COLUMNS, Columns
from datapipe.index.manifest import MANIFEST, Arrays, parse_manifest
from datapipe.index.parquet import parse_index, to_table
from datapipe.inspect.array_check import check_array_files, check_images, check_texts, image_jobs
from datapipe.inspect.block_check import check_columns, check_tokens
from datapipe.inspect.findings import FileFindings, Finding, VerifyReport
from datapipe.inspect.located import UNKNOWN, DatasetFiles, locate
from datapipe.inspect.member_table import MemberTable, differs, rows_of_columns
from datapipe.inspect.shard_check import MemberCheck, check_tar, check_unindexed
from datapipe.inspect.sources import FolderSource, RemoteSource, read_failure
from datapipe.progress import Progress
from datapipe.workers.engine import EngineName, EngineSpec, open_pool
from datapipe.workers.ray_cluster import node_name
from datapipe.workers.threads import ThreadPool

_REMOTE_WORKERS = 16  # that wait for a server most of the time


@checked(IndexMismatch)
def verify_dataset(
    dataset: str | PathLike[str],
    *,
    deep: bool = False,
    workers: PackWorkers | None = None,
    engine: EngineName = "local",
    address: Word | None = None,
) -> VerifyReport:
    """Compare every byte of a dataset with its checksums, and its files with each other.

    Manifest, indexes, columns and token counts are compared with their checksums and with each
    other; each member of a shard, text and image of arrays with its crc32; each header of a tar,
    the padding and the end with what a tar has to have there. Nothing is changed. A damaged
    manifest or index is a finding, and what can still be compared is.

    Args:
        dataset: folder or URL of shards, folder of arrays, or tars of someone else.
        deep: decode every image and parse every text as training would.
        workers: threads; by default one per CPU, and 16 for a URL.
        engine, address: as in `pack_dataset`; a task checks a shard.

    Raises:
        IndexMismatch: no dataset is there, or its pack was not finished.
        PlanError: arrays behind a URL, or on a cluster.
        StoreError: a server does not answer.
        WorkerError: the cluster cannot be used, or a node does not see the dataset.

    Examples:
        >>> tar = Path("shards/shard-000000.tar")
        >>> _ = tar.write_bytes(tar.read_bytes()[:-2000])
        >>> report = datapipe.verify_dataset("shards/")
        >>> report.is_whole, report.damaged_samples
        (False, 1)
    """
    started = time.monotonic()
    chosen = EngineSpec(engine=engine, address=address)
    located = locate(dataset)
    manifest, home = located.manifest, located.home
    findings, notes = list(located.findings), list(located.notes)
    columns = None
    if manifest is not None and home is not None:
        columns, found = check_columns(home, manifest)
        findings += [*found, *check_tokens(home, manifest)]
    run = _Verification(located=located, columns=columns, deep=deep)
    jobs: Iterable[_Job] = range(len(located.entries))
    remote = isinstance(located.shards, RemoteSource)
    total = sum(max(shard.bytes, 0) for shard in located.entries)
    if manifest is not None and manifest.arrays is not None:
        if remote:
            raise PlanError(f"{dataset}: arrays behind a URL cannot be checked; copy them")
        if engine == "ray":
            raise PlanError(f"{dataset} holds arrays, which threads check; leave --engine ray out")
        total = manifest.bytes
        jobs = run.array_jobs(manifest.arrays)
    count = workers or (_REMOTE_WORKERS if remote else available_cpus())
    files: list[FileFindings] = []
    with (
        Progress(
            "verifying", unit="member", total=total or None, total_unit="bytes"
        ) as run.progress,
        chosen.cluster(workers) as cluster,
        closing(
            open_pool(
                cluster,
                partial(_checker, located, columns, deep),
                partial(ThreadPool, run.check, count, name="datapipe-verify"),
                num_cpus=1,
            )
        ) as pool,
    ):
        try:
            for checked_file in pool.run(jobs):
                if checked_file.node:
                    run.take(checked_file, len(files))
                files.append(checked_file)
                findings += checked_file.findings
        finally:
            run.stop.set()  # after an interrupt, shards in progress are given up
    unindexed = sum(file.unindexed for file in files)
    if unindexed and not located.own and all(entry.index for entry in located.entries):
        notes.append(f"{unindexed:,} members belong to no sample; only their headers were checked")
    samples = manifest.samples if manifest is not None else sum(file.samples for file in files)
    return VerifyReport(
        dataset=located.title,
        samples=samples,
        damaged_samples=len({pair for file in files for pair in _samples_of(file)}),
        files=len({file.file for file in files}),
        members=sum(file.members for file in files),
        bytes=sum(file.bytes for file in files),
        seconds=round(time.monotonic() - started, 3),
        findings=tuple(findings),
        notes=tuple(notes),
    )


def _samples_of(file: FileFindings) -> Iterator[tuple[str, int]]:
    # Texts and images of arrays are in two files, and a sample is counted once.
    name = "" if file.file.endswith(".npy") else file.file
    return ((name, sample) for sample in file.damaged)


_Job = int | Callable[[], FileFindings]  # number of a shard, or a check of arrays


def _checker(
    located: DatasetFiles, columns: Columns | None, deep: bool
) -> Callable[[_Job], FileFindings]:
    """Return the function of a task on a node, which must see the same dataset."""
    there = located.index.read(MANIFEST)
    if located.manifest is not None and (
        there is None or parse_manifest(there, MANIFEST).fingerprint != located.manifest.fingerprint
    ):
        raise IndexMismatch(f"{located.title} is missing or another dataset there")
    run = _Verification(located=located, columns=columns, deep=deep, node=node_name())
    return run.check


def read_members(
    located: DatasetFiles, columns: Columns | None, number: int
) -> tuple[MemberTable | None, list[Finding]]:
    """Return the members of a shard from its index, or from the columns if that is damaged.

    None if nothing says which bytes the shard should hold. Index and columns are compared if both
    are whole. An index without a manifest is taken as it is.
    """
    entry, members, problem = located.entries[number], None, ""
    if not entry.index:
        return None, []
    try:
        content = located.index.read(entry.index)
        if content is None:
            problem = "is missing"
        else:
            table = parse_index(content, entry.index, sha256=entry.index_sha256 or None)
            members = MemberTable(table=table)
            if entry.samples not in (UNKNOWN, len(table)):
                problem = f"has {len(table):,} samples, the manifest says {entry.samples:,}"
    except IndexMismatch as error:
        problem = str(error).removeprefix(entry.index).partition(";")[0].lstrip(": ")
    except (OSError, StoreError) as error:
        problem = read_failure(error)
    found = []
    if columns is not None:
        first, stop = columns.shard_sample[number : number + 2].tolist()
        if problem:
            rows = rows_of_columns(columns, first, stop)
            members = MemberTable(table=to_table(rows))
        elif members is not None and differs(columns, first, members):
            what = f"differs from {entry.index}; remove the folder, and it is made again"
            found.append(Finding(file=f"{COLUMNS}/", problem=what))
    elif problem:
        members = None
        problem += f", so that the bytes of {entry.name} have nothing to be compared with"
    if problem:
        found.append(Finding(file=entry.index, problem=problem))
    return members, found


@dataclass(kw_only=True)
class _Verification:
    """Jobs of one verification."""

    located: DatasetFiles
    columns: Columns | None
    deep: bool
    node: str = ""  # where tasks check; "" on this machine
    progress: Progress | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def check(self, job: _Job) -> FileFindings:
        """Do a job."""
        return self.check_shard(job) if isinstance(job, int) else job()

    def take(self, found: FileFindings, number: int) -> None:
        """Count a shard that a node checked; `WorkerError` if only the node cannot read it."""
        assert self.progress is not None
        self.progress.advance(found.members, of_total=max(self.located.entries[number].bytes, 0))
        for finding in found.findings:
            if finding.problem.startswith(("is missing", "cannot be read")):
                with self.located.shards.open(found.file) as file:
                    if file is not None and not self.check_shard(number).findings:
                        raise WorkerError(
                            f"{finding} on the node {found.node}, and is whole here; nodes need "
                            "the dataset under the same path"
                        )

    def check_shard(self, number: int) -> FileFindings:
        """Check one shard."""
        entry = self.located.entries[number]
        found = FileFindings(file=entry.name, node=self.node)
        members, found.findings = read_members(self.located, self.columns, number)
        if entry.samples == UNKNOWN and members is not None:
            found.samples = len(members.table)
        try:
            with self.located.shards.open(entry.name) as file:
                if file is None:
                    samples = len(members.table) if members else max(entry.samples, 0)
                    found.add(f"is missing, with {samples:,} samples")
                    found.damaged.update(range(samples))
                    return found
                if entry.bytes not in (UNKNOWN, file.size):
                    found.add(f"has {file.size:,} bytes, the manifest says {entry.bytes:,}")
                place = Path(entry.name)
                if members is None:
                    check_unindexed(place, file, found, deep=self.deep, tell=self._tell)
                    return found
                check = MemberCheck(
                    file=file,
                    members=members,
                    found=found,
                    deep=self.deep,
                    tell=self._tell,
                    own=self.located.own,
                )
                check.run()
                check_tar(check, place)
        except (OSError, StoreError) as error:
            found.add(read_failure(error))
        return found

    def array_jobs(self, arrays: Arrays) -> Iterator[Callable[[], FileFindings]]:
        """Yield jobs that check a dataset of arrays."""
        assert isinstance(self.located.shards, FolderSource)
        folder = self.located.shards.folder
        damage = check_array_files(folder, arrays)
        yield lambda: FileFindings(file="dataset.json", findings=damage)
        keys: list[str] = []
        for number, entry in enumerate(self.located.entries):
            members, findings = read_members(self.located, self.columns, number)
            yield partial(FileFindings, file=entry.index, findings=findings)
            first = len(keys)
            keys += [""] * entry.samples if members is None else members.keys
            if members is not None:
                yield partial(self._check_texts, folder, members, first)
        harmed = {finding.file for finding in damage}
        if arrays.image and not harmed & {"image_crc32.npy", "image_offsets.npy", "checksums.npy"}:
            images = sum(entry.images for entry in self.located.entries)
            for some in image_jobs(arrays, images):
                yield partial(check_images, folder, arrays, some, keys, self._tell)

    def _check_texts(self, folder: Path, members: MemberTable, first: int) -> FileFindings:
        found = check_texts(folder, members, deep=self.deep, tell=self._tell)
        found.damaged = {first + sample for sample in found.damaged}
        return found

    def _tell(self, members: int, size: int) -> None:
        if self.stop.is_set():
            raise StoreError("the check was stopped")
        if self.progress is not None:
            self.progress.advance(members, of_total=size)
