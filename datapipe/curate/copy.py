"""Samples of shards copied into new shards by byte ranges.

Runs of samples come in; a dataset goes out. Each new shard is a job, and shards are put in place in
their order, as a pack does. The index rows are kept, apart from offsets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.curate.new_shards import SampleRun, ShardCopier, new_shards, shard_copier
from datapipe.curate.spec import CopyReport, CopySpec
from datapipe.errors import PackError
from datapipe.index.dataset import check_shards
from datapipe.index.manifest import MANIFEST, Manifest, fsync_folder, read_manifest
from datapipe.index.parquet import SCHEMA, with_offsets
from datapipe.index.sidecars import parse_sidecars, write_sidecars
from datapipe.pack import journal as journals
from datapipe.pack.input.raw_sample import InputCount, Reject
from datapipe.pack.journal import Journal
from datapipe.pack.options import parse_shard_size
from datapipe.pack.space import check_room
from datapipe.pack.writers.shards import indexed_shard, place_attempt, remove_attempts, writing
from datapipe.progress import Progress
from datapipe.workers.engine import EngineSpec, open_pool
from datapipe.workers.threads import ThreadPool

_SHARDS = 2  # that are written at once: one ends while the next begins
_EXAMPLES = 5  # rejects in a report
DIGITS = 9  # of a key that is an ordinal


def copy_samples(
    runs: Sequence[SampleRun],
    out: Path,
    made_by: dict[str, Any],
    output: CopySpec,
    *,
    rejects: Sequence[Reject],
    bytes: int,
) -> CopyReport:
    """Copy samples into new shards in `out`; continue if an earlier run was interrupted.

    `made_by` says what the samples are: the command, its options, fingerprints of the sources. It
    is written to the manifest, and an output that was made by something else is refused. `rejects`
    are written to the file of rejects. `bytes` are those of all members, for the check of space.

    PackError if there are no samples, the output belongs to something else, or the disk is full;
    StoreError for a member that cannot be read or differs from its checksum.
    """
    started = time.monotonic()
    samples = sum(run.samples for run in runs)
    if not samples:
        raise PackError(f"{out}: no samples are left to copy; choose others")
    made_by = made_by | ({"view": True} if output.view else {"shard_size": output.shard_size})
    before = manifest = finished_in(out, made_by)
    if manifest is None:
        with journals.working_folder(out, lock_check=output.lock_check):
            # Another run may have ended meanwhile.
            manifest = finished_in(out, made_by)
            if manifest is None:
                if output.renumber:
                    firsts = accumulate((run.samples for run in runs), initial=0)
                    runs = [
                        _renumbered(run, first) for run, first in zip(runs, firsts, strict=False)
                    ]
                manifest = _copy(runs, out, made_by, output, rejects, bytes)
    write_sidecars(out, manifest, parse_sidecars(output.sidecars))
    return report_on(manifest, out, started, rejects, finished_before=before is not None)


def finished_in(out: Path, made_by: dict[str, Any], *, but: str = "") -> Manifest | None:
    """Return the finished dataset in `out`; None if it is still to be made.

    Raises PackError if something else is there, or a dataset made by anything but `made_by`; the
    option `but` is not compared. IndexMismatch if a shard is missing or was cut since.
    """
    journals.refuse_foreign(out)
    if not (out / MANIFEST).exists():
        return None
    manifest = read_manifest(out)
    if manifest.foreign or manifest.arrays is not None:
        raise PackError(f"{out} holds another dataset; give a new folder")
    options = manifest.parts[0].options
    journals.same_options(out, {name: options[name] for name in options if name != but}, made_by)
    check_shards(out, manifest)
    journals.remove_finished(out, manifest, lock_check=True)  # left by a kill after the manifest
    return manifest


def report_on(
    manifest: Manifest,
    out: Path,
    started: float,
    rejects: Sequence[Reject] = (),
    *,
    finished_before: bool,
) -> CopyReport:
    return CopyReport(
        samples=manifest.samples,
        images=manifest.images,
        rejected=manifest.rejected,
        shards=len(manifest.shards),
        bytes=manifest.bytes,
        seconds=round(time.monotonic() - started, 3),
        output=str(out),
        examples=tuple(rejects[:_EXAMPLES]),
        finished_before=finished_before,
    )


def _renumbered(run: SampleRun, first: int) -> SampleRun:
    """Return samples whose keys are ordinals from `first` on."""

    def rows() -> pa.Table:
        keys = [f"{first + number:0{DIGITS}}" for number in range(run.samples)]
        return run.rows().set_column(0, SCHEMA.field("key"), pa.array(keys, pa.string()))

    return replace(run, rows=rows)


def _copy(
    runs: Sequence[SampleRun],
    out: Path,
    made_by: dict[str, Any],
    output: CopySpec,
    rejects: Sequence[Reject],
    size: int,
) -> Manifest:
    """Write what is still to be written; the members of all samples have so many bytes."""
    with writing(out):
        journal = Journal(out, made_by)
    with closing(journal):
        if output.space_check and not output.view:
            left = max(size - sum(shard.bytes for shard in journal.shards), 0)
            check_room(out, left, "samples to copy", "choose fewer samples")
        if not journal.shards:
            for reject in rejects:  # before any shard: each checkpoint has them all
                journal.reject(reject)
        count = InputCount()  # its digest says nothing: `made_by` names the sources
        count.number = journal.last.inputs
        if output.view:
            _link(runs, journal, count)
        else:
            _write(runs, output, journal, count)
        count.number += len(rejects)
        return journal.finish(count, made_by)


def _write(
    runs: Sequence[SampleRun], output: CopySpec, journal: Journal, count: InputCount
) -> None:
    stores = list(dict.fromkeys(run.store for run in runs))
    size = parse_shard_size(output.shard_size)
    jobs = new_shards(runs, stores, size, count.number, len(journal.shards))
    left = sum(run.samples for run in runs) - count.number
    work = journal.work.absolute()
    remove_attempts(work)
    local = ShardCopier(stores, work)
    there = partial(shard_copier, stores, work)
    here = partial(ThreadPool, local.write, _SHARDS, ahead=1)
    options: dict[str, Any] = {"describe": lambda job: f"shard {job.number} of {journal.out}"}
    with (
        EngineSpec(engine=output.engine, address=output.address).cluster() as cluster,
        Progress("copying", unit="sample", total=left) as progress,
        closing(open_pool(cluster, there, here, ahead=1, **options)) as pool,
    ):
        try:
            for written in pool.run(jobs):
                shard = written.shard
                count.number += shard.samples
                place_attempt(written, journal.out)
                journal.commit(shard, journal.checkpoint(count))
                progress.advance(shard.samples)
        finally:
            local.stop.set()  # after an interrupt, shards in progress are given up


def _link(runs: Sequence[SampleRun], journal: Journal, count: InputCount) -> None:
    """Write indexes that name the shards where they are."""
    out, home = journal.out, journal.out.resolve()
    for number in range(len(journal.shards), len(runs)):
        run, name = runs[number], f"shard-{number:06d}.parquet"
        assert run.tar is not None
        table = run.rows()
        table = with_offsets(table, pc.list_flatten(table["offset"]).to_numpy())
        with writing(out):
            tar, size = os.path.relpath(run.tar.resolve(), home), run.tar.stat().st_size
            shard = indexed_shard(journal.work / name, table, tar, size)
            (journal.work / name).replace(out / name)
            fsync_folder(out)
            count.number += len(table)
            journal.commit(shard, journal.checkpoint(count))
