"""Selection of samples: by a filter, by keys, by number."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.array_types import Bools, Int64
from datapipe.curate.sources import SPAN, Chosen, copy_chosen, open_source
from datapipe.curate.spec import CopyReport, CopySpec
from datapipe.declared import Count, checked
from datapipe.errors import PackError
from datapipe.index.dataset import Dataset
from datapipe.index.where import evaluate, parse_where
from datapipe.plan.rng import derive, mix_array
from datapipe.store.record_fields import where_columns

_NAMED = 3  # keys in a message


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
    starts = range(0, len(source), SPAN)
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
        raise PackError(f"number {number:,}: only {len(samples):,} samples; give a smaller number")
    if number == len(samples):
        return samples
    scrambled = mix_array(samples.astype(np.uint64) + np.uint64(derive(seed)))
    return np.sort(samples[np.argpartition(scrambled, number)[:number]])
