"""`verify_dataset`: every byte of a dataset compared with what was written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import Any

from datapipe.cpus import PackWorkers, available_cpus
from datapipe.declared import Word, checked
from datapipe.errors import IndexMismatch, PlanError, StoreError, WorkerError
from datapipe.index.dataset import Dataset
from datapipe.index.manifest import MANIFEST, parse_manifest
from datapipe.inspect.array_check import ArrayJob, array_jobs, check_array_files
from datapipe.inspect.derived_check import check_field_values
from datapipe.inspect.findings import FileFindings, VerifyReport
from datapipe.inspect.located import DatasetFiles, locate
from datapipe.inspect.shard_job import ShardJob
from datapipe.inspect.sources import RemoteSource
from datapipe.progress import Progress
from datapipe.report.table import counted
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

    Manifest, indexes, columns, fields and token counts are compared with their checksums and with
    each other; each member of a shard, text and image of arrays with its crc32; each header of a
    tar, the padding and the end with what a tar has to have there. Nothing is changed. A damaged
    manifest or index is a finding, and what can still be compared is.

    Args:
        dataset: folder or URL of shards, folder of arrays, or tars of someone else.
        deep: decode every image and parse every text as training would, and compare the columns of
            fields with the records.
        workers: threads; by default one per CPU, and 16 for a URL.
        engine, address: as in `pack_dataset`; a task checks a shard, or texts or images of arrays.

    Raises:
        IndexMismatch: no dataset is there, or its pack was not finished.
        PlanError: arrays behind a URL.
        StoreError: a server does not answer, or sends whole files only.
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
    manifest, arrays = located.manifest, located.arrays
    findings, notes = list(located.findings), list(located.notes)
    run = _Verification(located=located, deep=deep)
    numbers = range(len(located.entries))
    total = sum(max(shard.bytes, 0) for shard in located.entries)
    if manifest is not None and arrays is not None:
        if isinstance(located.shards, RemoteSource):
            raise PlanError(f"{dataset}: arrays behind a URL cannot be checked; copy them")
        findings += (damage := check_array_files(located.shards.folder, arrays))
        numbers, total = array_jobs(located, damage), manifest.bytes
    jobs: Iterable[Any] = numbers if engine == "ray" else map(run.job, numbers)
    remote = isinstance(located.shards, RemoteSource)
    count = workers or (_REMOTE_WORKERS if remote else available_cpus())
    threads = partial(ThreadPool, lambda job, part: job.run(part), count, ahead=2 * count)
    local = partial(threads, name="datapipe-verify", parts=lambda job: job.parts)
    bar = Progress("verifying", unit="member", total=total or None, total_unit="bytes")
    files: list[FileFindings] = []
    with (
        bar as run.progress,
        chosen.cluster(workers) as cluster,
        closing(open_pool(cluster, partial(_checker, located, deep), local)) as pool,
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
        of_view = " of the view" if located.is_view else ""
        notes.append(
            f"{counted(unindexed, 'member')} of no sample{of_view}: only the headers were checked"
        )
    home, columns = located.home, located.columns
    if deep and manifest is not None and home is not None and columns is not None:
        harmed = {finding.file for finding in findings}
        whole = [n for n, entry in enumerate(located.entries) if entry.name not in harmed]
        folder = located.shards.folder
        opened = Dataset(folder=folder, home=home, manifest=manifest, columns=columns)
        findings += check_field_values(opened, whole)
    samples = sum(file.samples for file in files) if manifest is None else manifest.samples
    # Texts and images of arrays are in two files, and a sample is counted once.
    damaged = {("" if arrays else file.file, n) for file in files for n in file.damaged}
    return VerifyReport(
        dataset=located.title,
        samples=samples,
        damaged_samples=len(damaged),
        files=len({file.file for file in files}),
        members=sum(file.members for file in files),
        bytes=sum(file.bytes for file in files),
        seconds=round(time.monotonic() - started, 3),
        findings=tuple(dict.fromkeys(findings)),  # a lost array is named by each of its jobs
        notes=tuple(notes),
    )


def _checker(located: DatasetFiles, deep: bool) -> Callable[[int], FileFindings]:
    """Return the function of a task on a node, which must see the same dataset."""
    there = located.index.read(MANIFEST)
    if located.manifest is not None and (
        there is None or parse_manifest(there, MANIFEST).fingerprint != located.manifest.fingerprint
    ):
        raise IndexMismatch(f"{located.title} is missing or a different dataset there")
    return _Verification(located=located, deep=deep, node=node_name()).check


@dataclass(kw_only=True)
class _Verification:
    """Jobs of one verification."""

    located: DatasetFiles
    deep: bool
    node: str = ""  # where tasks check; "" on this machine
    progress: Progress | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def take(self, found: FileFindings, number: int) -> None:
        """Count what a node checked; `WorkerError` if only the node cannot read it."""
        assert self.progress is not None
        of_arrays = found.file.endswith(".npy")
        size = found.bytes if of_arrays else max(self.located.entries[number].bytes, 0)
        self.progress.advance(found.members, of_total=size)
        for finding in found.findings:
            if finding.problem.startswith(("is missing", "cannot be read")):
                with self.located.shards.open(found.file) as file:
                    if file is not None and not self.check(number).findings:
                        raise WorkerError(
                            f"{finding} on the node {found.node}, but is intact here; nodes need "
                            "the dataset under the same path"
                        )

    def check(self, number: int) -> FileFindings:
        """Do one job in this thread."""
        job = self.job(number)
        found = job.run(0)
        for part in range(1, job.parts):
            job.run(part)
        found.node = self.node
        return found

    def job(self, number: int) -> ShardJob | ArrayJob:
        """Return the check of a shard, or of items of arrays."""
        kind = ShardJob if self.located.arrays is None else ArrayJob
        return kind(located=self.located, number=number, deep=self.deep, tell=self.tell)

    def tell(self, members: int, size: int) -> None:
        if self.stop.is_set():
            raise StoreError("the check was stopped")
        if self.progress is not None:
            self.progress.advance(members, of_total=size)
