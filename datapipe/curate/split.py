"""Division of a dataset by a hash of the keys, so that a sample stays in its part."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from os import PathLike
from typing import Annotated

import numpy as np

from datapipe.array_types import Int64
from datapipe.curate.sources import SPAN, Chosen, copy_chosen, local_folder, open_source
from datapipe.curate.spec import CopyReport, CopySpec
from datapipe.declared import Within, Word, checked
from datapipe.errors import PackError
from datapipe.index.dataset import Dataset
from datapipe.progress import Progress

_TOLERANCE = 1e-9


@checked(PackError)
def split_dataset(
    dataset: str | PathLike[str],
    out: str | PathLike[str],
    *,
    val: Annotated[float, Within(above=0, below=1)] | None = None,
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
