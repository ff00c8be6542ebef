"""Datasets that samples are taken from, and runs of the samples chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Int64
from datapipe.curate.copy import copy_samples
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
from datapipe.store.open import open_store
from datapipe.store.protocol import Store

SELECTION = "selection"
"""Option in the manifest: the sha256 of the numbers of the samples."""

SPAN = 1 << 20  # samples whose keys are looked at together
_DIGITS = 9  # of a key that is an ordinal


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Samples of a dataset, and the text that their new keys begin with."""

    dataset: Dataset
    samples: Int64  # int64 [n], their numbers, ascending
    prefix: str = ""

    def keys(self, start: int, stop: int) -> list[str]:
        found = self.dataset.columns.keys(self.samples[start:stop])
        return [self.prefix + key for key in found] if self.prefix else found


def open_source(path: str | PathLike[str], out: str | PathLike[str]) -> Dataset:
    """Open a dataset that is copied from to `out`; PackError if it has arrays or `out` in it."""
    dataset = open_dataset(path)
    if dataset.manifest.arrays is not None:
        raise PackError(f"{path} holds arrays; give the shards that they were made from")
    folder = local_folder(out).resolve()
    if isinstance(dataset.folder, Path) and folder.is_relative_to(dataset.folder.resolve()):
        raise PackError(f"{out} is inside the dataset {path}; give a folder outside it")
    return dataset


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
            store = open_store(part.dataset)
            opened.callback(store.close)
            first = sum(run.samples for run in runs) if output.renumber else None
            runs += _runs(part, store, first)
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


def _runs(part: Chosen, store: Store, first: int | None) -> Iterator[SampleRun]:
    """Yield a run for each shard with chosen samples; `first` is the ordinal of the first one."""
    dataset, edges = part.dataset, part.dataset.columns.shard_sample
    bounds = part.samples.searchsorted(edges)
    for number, shard in enumerate(dataset.manifest.shards):
        start, stop = bounds[number : number + 2].tolist()
        if start == stop:
            continue
        rows = part.samples[start:stop] - edges[number]
        ordinal = None if first is None else first + start
        yield SampleRun(
            store=store,
            shard=number,
            samples=stop - start,
            rows=partial(_rows, dataset.home, shard, rows, part.prefix, ordinal),
            tar=dataset.folder / shard.name if isinstance(dataset.folder, Path) else None,
        )


def _rows(home: Path, shard: Shard, rows: Int64, prefix: str, first: int | None) -> pa.Table:
    table = checked_index(home, shard)
    if len(rows) < len(table):
        table = table.take(rows)
    keys = table["key"]
    if first is not None:
        keys = pa.array([f"{first + n:0{_DIGITS}}" for n in range(len(table))], pa.string())
    elif prefix:
        keys = pc.binary_join_element_wise(pa.scalar(prefix), keys, "")
    number = SCHEMA.get_field_index("key")
    return table.set_column(number, SCHEMA.field(number), keys)


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
        extensions = part.dataset.columns.extensions
        if part.dataset.manifest.foreign:
            for ext in extensions:
                _check_name(part, f"{0:0{_DIGITS}}.{ext}", "pack the tars with `datapipe pack`")
        if renumbered or (len(parts) == 1 and not (part.dataset.manifest.foreign or part.prefix)):
            continue
        longest = max(extensions, key=len, default="")
        for start in range(0, len(part.samples), SPAN):
            keys = part.keys(start, start + SPAN)
            if part.dataset.manifest.foreign or part.prefix:
                for key in keys:
                    _check_name(part, f"{key}.{longest}", remedy)
            spans.append(pa.array(keys, pa.large_string()))
    refuse_repeated(pa.chunked_array(spans, pa.large_string()), remedy)


def refuse_repeated(keys: pa.ChunkedArray, remedy: str) -> None:
    """Raise a PackError if several samples have the same key."""
    if pc.count_distinct(keys).as_py() < len(keys):
        counts = keys.value_counts()
        several = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
        raise PackError(
            f"{len(several):,} keys belong to more than one sample, such as "
            f"{several[0].as_py()!r}; {remedy}"
        )


def _check_name(part: Chosen, name: str, remedy: str) -> None:
    try:
        member_header(name, 0)
    except SampleError as error:
        raise PackError(f"{part.dataset.folder}: {error}; {remedy}") from None
