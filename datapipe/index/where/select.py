"""Bitmaps of the samples that take part: made by one scan of all samples, kept on disk."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datapipe.array_types import Bools, UInt8
from datapipe.errors import PlanError
from datapipe.index.columns import Columns
from datapipe.index.files.derived import new_folder, open_or_build, read_about, write_about
from datapipe.index.files.npy import NpyFile, map_npy
from datapipe.index.where.evaluate import Where, clip, evaluate, holds
from datapipe.index.where.values import ExtraColumns, Span
from datapipe.progress import Progress
from datapipe.report.table import counted

_CHUNK = 1 << 18  # samples at a time; whole bytes
_ABOUT = "where.json"
_BITS = "bits.npy"
_VERSION = 2
_MOST_TERMS = 8  # shown in a message


class Selected(NamedTuple):
    """The samples that take part."""

    # uint8 [ceil(N / 8)], memory-mapped; sample `i` is bit `i % 8` from the lowest of byte `i // 8`
    bits: UInt8
    digest: str  # sha256 of `bits`, hex
    kept: int  # number of the samples that take part


def select_where(
    where: Where | None,
    columns: Columns,
    extra: ExtraColumns,
    *,
    keep: Callable[[slice, Bools], Bools] | None,
    folder: Path,
    fingerprint: str,
    identity: str = "",
) -> Selected:
    """Find the samples that both `where` and `keep` let take part, or open what was found before.

    The answer is in `folder`, or in the user's cache folder if that cannot be written. Opening it
    compares checksums; a damaged one is found again. Several processes may do this at once.

    `keep` is one more condition: bool [stop - start] of a slice of samples, given for which of them
    `where` holds. `identity` is what `extra` and `keep` depend on beside the dataset. Raises
    `PlanError` if no sample is left, or the expression cannot be evaluated.
    """
    if where is not None:
        evaluate(where, columns, extra, 0, 0)
    scan = _Scan(where, columns, extra)
    asked = json.dumps([_VERSION, fingerprint, where and str(where), identity])
    name = sha256(asked.encode()).hexdigest()[:32]
    return open_or_build(
        folder.parent,
        f"{folder.name}/{name}",
        fingerprint,
        "selections",
        open_at=_open,
        build=lambda home: _build(home, scan, keep),
    )


class _Scan(NamedTuple):
    where: Where | None
    columns: Columns
    extra: ExtraColumns

    @property
    def samples(self) -> int:
        return len(self.columns.sample_key) - 1

    def spans(self) -> Iterator[Span]:
        with Progress("selecting samples", unit="sample", total=self.samples) as progress:
            for start in range(0, self.samples, _CHUNK):
                stop = min(start + _CHUNK, self.samples)
                yield Span(self.columns, self.extra, start, stop)
                progress.advance(stop - start)

    def nothing(self) -> PlanError:
        """Return the error of a selection without samples; it says how many each term keeps."""
        unusable = "too large, or without a usable text"
        if self.where is None:
            return PlanError(
                f"none of {self.samples:,} samples takes part: all are {unusable}; raise the "
                "size limits, or change the template"
            )
        tree = self.where.tree
        terms = [tree]
        if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
            terms = tree.values
        counts = np.zeros(1 + len(terms), np.int64)
        for span in self.spans():
            counts += [holds(self.where, term, span).sum() for term in (tree, *terms)]
        kept = zip(terms, counts[1:], strict=True)
        shown = [f"`{clip(term)}` keeps {count:,}" for term, count in kept]
        if len(shown) > _MOST_TERMS:
            shown[_MOST_TERMS:] = [f"and {counted(len(shown) - _MOST_TERMS, 'more term')}"]
        what = f"where keeps none of {self.samples:,} samples: {', '.join(shown)}"
        if counts[0]:
            what += f"; the {counts[0]:,} that it keeps are all {unusable}"
        return PlanError(f"{what}; loosen it")


def _build(folder: Path, scan: _Scan, keep: Callable[[slice, Bools], Bools] | None) -> Selected:
    with new_folder(folder, lambda: _open(folder) is not None) as temporary:
        count = 0
        with closing(NpyFile(temporary / _BITS, "|u1")) as file:
            for span in scan.spans():
                kept = np.ones(span.size, np.bool_)
                if scan.where is not None:
                    kept = holds(scan.where, scan.where.tree, span)
                if keep is not None:
                    kept = kept & keep(span.slice, kept)
                file.append(np.packbits(kept, bitorder="little"))
                count += int(kept.sum())
        if not count:
            raise scan.nothing()
        bits: UInt8 = map_npy(temporary / _BITS, "|u1")
        about = {
            "version": _VERSION,
            "expression": scan.where and str(scan.where),
            "samples": scan.samples,
            "selected": count,
            "digest": sha256(bits.data).hexdigest(),
        }
        write_about(temporary / _ABOUT, about, compared=[_BITS])
    found = _open(folder)
    assert found, f"{folder} was written and cannot be read"
    return found


def _open(folder: Path) -> Selected | None:
    """Return the selection in a folder; None where it is missing, torn or damaged."""
    about = read_about(folder / _ABOUT, _VERSION)
    if about is None:
        return None
    return Selected(map_npy(folder / _BITS, "|u1"), about["digest"], about["selected"])
