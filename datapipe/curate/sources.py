"""Datasets that samples are taken from, and runs of the samples chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Int64
from datapipe.curate.copy import DIGITS, copy_samples
from datapipe.curate.new_shards import SampleRun, stored_bytes
from datapipe.curate.spec import CopyReport, CopySpec
from datapipe.errors import PackError, SampleError
from datapipe.index.dataset import Dataset, open_dataset
from datapipe.index.manifest import Shard
from datapipe.index.parquet import SCHEMA, checked_index
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.url_upload import local_path
from datapipe.pack.writers.ustar import member_header
from datapipe.plan.ragged import places
from datapipe.report.table import counted
from datapipe.store.open import open_store
from datapipe.store.protocol import Store

SELECTION = "selection"
"""Option in the manifest: the sha256 of the numbers of the samples."""

SPAN = 1 << 20  # samples whose keys are looked at together


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Samples of a dataset, and the text that their new keys begin with."""

    dataset: Dataset
    samples: Int64  # int64 [n], their numbers, ascending
    prefix: str = ""


def open_source(path: str | PathLike[str], out: str | PathLike[str]) -> Dataset:
    """Open a dataset that is copied from to `out`; PackError if it has arrays or `out` in it."""
    dataset = open_dataset(path)
    if dataset.manifest.arrays is not None:
        raise PackError(f"{path} holds arrays; give the shards that they were made from")
    folder_outside(out, path, dataset.folder)
    return dataset


def folder_outside(out: str | PathLike[str], dataset: str | PathLike[str], shards: object) -> Path:
    """Return the folder that `out` names; PackError if it is in the folder of the shards."""
    folder = local_folder(out)
    if isinstance(shards, Path) and folder.resolve().is_relative_to(shards.resolve()):
        raise PackError(f"{out} is inside the dataset {dataset}; give a folder outside it")
    return folder


def local_folder(out: str | PathLike[str]) -> Path:
    """Return the folder that `out` names; PackError for a URL."""
    folder = local_path(out)
    if folder is None:
        raise PackError(f"{out}: give a local folder for the output, and copy it there afterwards")
    return folder


def copy_chosen(
    parts: Sequence[Chosen],
    out: str | PathLike[str],
    command: str,
    asked: dict[str, Any],
    output: CopySpec,
    *,
    rejects: Sequence[Reject] = (),
) -> CopyReport:
    """Copy the samples of datasets into `out`, one dataset after the other.

    `asked` are the options of the command, for the manifest. Errors are those of `copy_samples`;
    PackError also for keys that two samples have, or no member can have.
    """
    if not output.view or len(parts) > 1:  # members keep their names in a view
        _check_keys(parts, renumbered=output.renumber)
    selection = hashlib.sha256()
    for part in parts:
        selection.update(part.samples.astype("<i8").tobytes())
    made_by = describe([part.dataset for part in parts], command, asked, output)
    made_by[SELECTION] = selection.hexdigest()
    with ExitStack() as opened:
        runs: list[SampleRun] = []
        for part in parts:
            runs += _runs(part, opened.enter_context(closing(open_store(part.dataset))))
        if output.view and any(run.tar is None for run in runs):
            raise PackError("a view only works on folders; leave it out to copy samples from a URL")
        size = sum(_bytes(part) for part in parts)
        return copy_samples(runs, local_folder(out), made_by, output, rejects=rejects, bytes=size)


def describe(
    datasets: Sequence[Dataset], command: str, asked: dict[str, Any], output: CopySpec
) -> dict[str, Any]:
    """Return what a dataset is made by, for its manifest, apart from the samples chosen."""
    asked = {"command": command, "renumber": output.renumber or None, **asked}
    made_by = {name: value for name, value in asked.items() if value is not None}
    return made_by | {"from": [dataset.fingerprint for dataset in datasets]}


def _runs(part: Chosen, store: Store) -> Iterator[SampleRun]:
    """Yield a run for each shard with chosen samples."""
    dataset, edges = part.dataset, part.dataset.columns.shard_sample
    bounds = part.samples.searchsorted(edges)
    for number, shard in enumerate(dataset.manifest.shards):
        start, stop = bounds[number : number + 2].tolist()
        if start == stop:
            continue
        rows = part.samples[start:stop] - edges[number]
        yield SampleRun(
            store=store,
            shard=number,
            samples=stop - start,
            rows=partial(_rows, dataset.home, shard, rows, part.prefix),
            tar=dataset.folder / shard.name if isinstance(dataset.folder, Path) else None,
        )


def _rows(home: Path, shard: Shard, rows: Int64, prefix: str) -> pa.Table:
    table = checked_index(home, shard)
    if len(rows) < len(table):
        table = table.take(rows)
    if prefix:
        keys = pc.binary_join_element_wise(pa.scalar(prefix), table["key"], "")
        table = table.set_column(0, SCHEMA.field("key"), keys)
    return table


def _bytes(part: Chosen) -> int:
    """Return the bytes that the samples take in new shards."""
    total, columns = 0, part.dataset.columns
    for start in range(0, len(part.samples), SPAN):
        members, _ = places(columns.sample_member, part.samples[start : start + SPAN])
        total += int(stored_bytes(columns.member_size[members]).sum())
    return total


def _check_keys(parts: Sequence[Chosen], *, renumbered: bool) -> None:
    """Refuse keys that two samples have, or names that no member can have.

    A dataset of ours has neither.
    """
    prefix = "--prefix with a text for each dataset, such as a-,b-, or " * (len(parts) > 1)
    remedy = f"give {prefix}--renumber, which makes new keys"
    spans: list[pa.Array] = []
    for part in parts:
        is_foreign, folder = part.dataset.manifest.foreign, part.dataset.folder
        extensions = part.dataset.columns.extensions
        for ext in extensions if is_foreign else ():
            check_name(folder, f"{0:0{DIGITS}}.{ext}", "pack the tars with `datapipe pack`")
        if renumbered or (len(parts) == 1 and not (is_foreign or part.prefix)):
            continue
        longest = max(extensions, key=len, default="")
        for start in range(0, len(part.samples), SPAN):
            found = part.dataset.columns.keys(part.samples[start : start + SPAN])
            keys = [part.prefix + key for key in found] if part.prefix else found
            for key in keys if is_foreign or part.prefix else ():
                check_name(folder, f"{key}.{longest}", remedy)
            spans.append(pa.array(keys, pa.large_string()))
    check_unique(pa.chunked_array(spans, pa.large_string()), remedy)


def check_unique(keys: pa.ChunkedArray, remedy: str) -> None:
    """Refuse keys that more than one sample has."""
    if pc.count_distinct(keys).as_py() < len(keys):
        counts = keys.value_counts()
        several = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
        verb = "belongs" if len(several) == 1 else "belong"
        raise PackError(
            f"{counted(len(several), 'key')} {verb} to more than one sample, such as "
            f"{several[0].as_py()!r}; {remedy}"
        )


def check_name(folder: object, name: str, remedy: str) -> None:
    """Refuse a name that no member can have."""
    try:
        member_header(name, 0)
    except SampleError as error:
        raise PackError(f"{folder}: {error}; {remedy}") from None
