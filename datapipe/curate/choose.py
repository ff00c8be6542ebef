"""Choice of samples for new datasets: some, a part by a hash of keys, those of several datasets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Bools, Int64
from datapipe.curate.sources import SPAN, Chosen, copy_chosen, local_folder, open_source
from datapipe.curate.spec import CopyReport, CopySpec
from datapipe.declared import Count, Part, Word, checked
from datapipe.errors import PackError
from datapipe.index.dataset import Dataset
from datapipe.index.where import evaluate, parse_where
from datapipe.plan.rng import derive, mix_array
from datapipe.progress import Progress
from datapipe.report.table import counted
from datapipe.store.record_fields import where_columns

_NAMED = 3  # keys in a message
_TOLERANCE = 1e-9


@checked(PackError)
def select_samples(
    dataset: str | PathLike[str],
    out: str | PathLike[str],
    *,
    where: str | None = None,
    keys: str | PathLike[str] | Sequence[str] | None = None,
    number: Count | None = None,
    seed: int = 0,
    output: CopySpec = CopySpec(),  # noqa: B008  (frozen)
) -> CopyReport:
    """Copy some samples of a dataset into new shards, in the order of the dataset.

    Conditions are combined: `number` is drawn from the samples that `where` and `keys` select. The
    same command continues a copy that was interrupted, and equal input and options give equal
    bytes.

    Args:
        dataset: folder or URL that `datapipe pack` wrote, or folder of someone else's tars.
        out: folder for the shards; new, or that of the same selection interrupted.
        where: expression, such as "width >= 336", as in `make_loader`.
        keys: keys of samples in a list, or a text file with one in each line.
        number: number of samples to draw at random; None takes all.
        seed: seed of the draw.
        output: options of the new shards.

    Raises:
        PackError: no sample is left, a key is missing, the output belongs to something else, or the
            disk is full.
        PlanError: the expression cannot be evaluated.
        IndexMismatch: there is no finished dataset, or it changed.
        StoreError: a member cannot be read, or is damaged.

    Examples:
        >>> datapipe.select_samples("shards/", "some/", where="height > 30", number=3).samples
        3
    """
    source = open_source(dataset, out)
    kept = np.ones(len(source), np.bool_)
    if where is not None:
        kept &= _where(source, where)
    if keys is not None:
        kept &= _with_keys(source, keys)
    samples = np.flatnonzero(kept).astype(np.int64)
    if number is not None:
        samples = _drawn(samples, number, seed)
    asked: dict[str, Any] = {"where": where and str(parse_where(where)), "number": number}
    if number is not None:
        asked["seed"] = seed
    return copy_chosen([Chosen(dataset=source, samples=samples)], out, "select", asked, output)


def _where(source: Dataset, expression: str) -> Bools:
    where = parse_where(expression)
    columns = where_columns(source, where, {})
    starts = range(0, max(len(source), 1), SPAN)  # of tars without a sample, too
    spans = ((start, min(start + SPAN, len(source))) for start in starts)
    return np.concatenate([evaluate(where, source.columns, columns, *span) for span in spans])


def _with_keys(source: Dataset, given: str | PathLike[str] | Sequence[str]) -> Bools:
    """Return whether each sample has one of some keys: bool [N]."""
    wanted = pa.array(_listed(given), pa.large_string()).unique()
    kept, found = [], []
    for start in range(0, len(source), SPAN):
        keys = source.columns.strings("key", start, min(start + SPAN, len(source)))
        kept.append(pc.is_in(keys, wanted).to_numpy(zero_copy_only=False))
        found.append(keys.filter(kept[-1]))
    missing = wanted.filter(pc.invert(pc.is_in(wanted, pa.chunked_array(found, wanted.type))))
    if len(missing):
        named = ", ".join(map(repr, missing[:_NAMED].to_pylist()))
        raise PackError(
            f"{source.folder} has no sample for {len(missing):,} of {len(wanted):,} keys, such as "
            f"{named}; remove them from the list, or give the dataset that has them"
        )
    return np.concatenate(kept)


def _listed(given: str | PathLike[str] | Sequence[str]) -> list[str]:
    if not isinstance(given, str | PathLike):
        if not given:
            raise PackError("keys is empty; give a list of keys, or a text file")
        return list(given)
    try:
        lines = Path(given).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PackError(
            f"{fspath(given)}: {reason}; give a text file of one key per line"
        ) from None
    if not (keys := [line for line in lines if line]):
        raise PackError(f"{fspath(given)} is empty; give a text file of one key per line")
    return keys


def _drawn(samples: Int64, number: int, seed: int) -> Int64:
    """Draw `number` of some samples; int64, ascending, in and out."""
    if number > len(samples):
        there = counted(len(samples), "sample")
        raise PackError(f"number {number:,}: only {there}; give a smaller number")
    if number == len(samples):
        return samples
    scrambled = mix_array(samples.astype(np.uint64) + np.uint64(derive(seed)))
    return np.sort(samples[np.argpartition(scrambled, number)[:number]])


@checked(PackError)
def split_dataset(
    dataset: str | PathLike[str],
    out: str | PathLike[str],
    *,
    val: Part | None = None,
    parts: Mapping[str, float] | None = None,
    salt: Word = "",
    output: CopySpec = CopySpec(),  # noqa: B008  (frozen)
) -> dict[str, CopyReport]:
    """Divide a dataset into parts, each a dataset in a folder `out/NAME`.

    The first 8 bytes of the sha256 of `salt` and key are a number that decides on the part. So a
    sample stays in its part when samples are added, as long as it keeps its key. Keys of a pack
    without `key_from` are ordinals: `--append` keeps them, a new pack of other inputs does not.

    Args:
        dataset: folder or URL that `datapipe pack` wrote, or folder of someone else's tars.
        out: folder for the folders of the parts.
        val: share of the part "val"; the rest is "train".
        parts: shares of parts by name, which add up to 1, in place of `val`. If a part grows at the
            cost of the one after it, only samples between these two move.
        salt: another text divides in another way.
        output: options of the new shards.

    Raises:
        PackError: the shares do not add up to 1, a part gets no sample, the output belongs to
            something else, or the disk is full.
        IndexMismatch: there is no finished dataset, or it changed.
        StoreError: a member cannot be read, or is damaged.

    Examples:
        >>> reports = datapipe.split_dataset("shards/", "parts/", val=0.3)
        >>> {name: report.samples for name, report in reports.items()}
        {'val': 1, 'train': 7}
    """
    if (val is None) == (parts is None):
        raise PackError("give either the share of val or named parts")
    shares = dict(parts) if parts is not None else {"val": val or 0.0, "train": 1 - (val or 0.0)}
    if not salt.isprintable():
        raise PackError(f"salt {salt!r}: give a text that can be printed")
    for name, share in shares.items():
        if not re.fullmatch(r"[\w-][\w.-]*", name) or not 0 < share <= 1:
            raise PackError(f"part {name!r} with share {share}: give a folder's name and a share")
    total = sum(shares.values())
    if abs(total - 1) > _TOLERANCE:
        raise PackError(f"the shares of the parts add up to {total:g}; they have to add up to 1")
    folder = local_folder(out)
    source = open_source(dataset, folder)
    numbers = _numbers(source, salt)
    edges = np.cumsum([0.0, *shares.values()])
    chosen: dict[str, Int64] = {}
    for name, start, stop in zip(shares, edges, [*edges[1:-1], np.inf], strict=False):
        chosen[name] = np.flatnonzero((numbers >= start) & (numbers < stop)).astype(np.int64)
        if not len(chosen[name]):
            raise PackError(
                f"part {name!r} would get none of {len(source):,} samples; give it a larger share"
            )
    asked = {"shares": shares, "salt": salt or None}
    reports = {}
    for name, samples in chosen.items():
        part, made_by = [Chosen(dataset=source, samples=samples)], {"part": name, **asked}
        reports[name] = copy_chosen(part, folder / name, "split", made_by, output)
    return reports


def _numbers(source: Dataset, salt: str) -> np.ndarray:
    """Return a number from 0 to 1 for each key, by its hash: float64 [N]."""
    salted = hashlib.sha256(f"{salt}\0".encode() if salt else b"")
    numbers = np.empty(len(source), np.float64)
    with Progress("dividing", unit="sample", total=len(source)) as progress:
        for start in range(0, len(source), SPAN):
            stop = min(start + SPAN, len(source))
            digests = []
            for key in source.columns.keys(np.arange(start, stop)):
                hashed = salted.copy()
                hashed.update(key.encode())
                digests.append(hashed.digest()[:8])
            numbers[start:stop] = np.frombuffer(b"".join(digests), ">u8") / 2.0**64
            progress.advance(stop - start)
    return numbers


@checked(PackError)
def merge_datasets(
    datasets: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    prefixes: Sequence[Word] = (),
    output: CopySpec = CopySpec(),  # noqa: B008  (frozen)
) -> CopyReport:
    """Copy the samples of datasets into new shards, one dataset after the other.

    Keys must be unique. Datasets with equal keys, such as the ordinals of two packs, are refused
    without `prefixes` or `CopySpec(renumber=True)`. You need not merge datasets to train on
    several: `make_loader` takes a list.

    Args:
        datasets: folders or URLs that `datapipe pack` wrote, or folders of someone else's tars.
        out: folder for the shards; new, or that of the same merge interrupted.
        prefixes: texts that the keys of each dataset begin with, such as ["coco-", "chats-"].
        output: options of the new shards.

    Raises:
        PackError: keys belong to several samples, the output belongs to something else, or the
            disk is full.
        IndexMismatch: there is no finished dataset, or it changed.
        StoreError: a member cannot be read, or is damaged.

    Examples:
        >>> datapipe.merge_datasets(["shards/", "shards/"], "all/", prefixes=["a-", "b-"]).samples
        16
    """
    if not datasets:
        raise PackError("datasets is empty; give at least one")
    if prefixes and len(prefixes) != len(datasets):
        given = f"{counted(len(prefixes), 'prefix', 'prefixes')} for {len(datasets)} datasets"
        raise PackError(f"{given}; give one for each")
    if prefixes and output.renumber:
        raise PackError("prefixes extend the keys of samples, renumber replaces them; give one")
    if dotted := [prefix for prefix in prefixes if "." in prefix]:
        raise PackError(
            f"prefix {dotted[0]!r}: a key ends at its first dot for readers of tars, which would "
            "take all of its samples for one; give a text without dots"
        )
    opened = [open_source(path, out) for path in datasets]
    chosen = [
        Chosen(dataset=dataset, samples=np.arange(len(dataset), dtype=np.int64), prefix=prefix)
        for dataset, prefix in zip(opened, prefixes or [""] * len(opened), strict=True)
    ]
    return copy_chosen(chosen, out, "merge", {"prefixes": list(prefixes) or None}, output)
