"""Comparison of two datasets by their indexes: keys, and sizes and checksums of members."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from os import PathLike

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datapipe.array_types import Int64, UInt64
from datapipe.declared import checked
from datapipe.errors import IndexMismatch
from datapipe.index.dataset import Dataset, open_dataset
from datapipe.plan.rng import mix_array

_EXAMPLES = 5
_SPAN = 1 << 20  # samples at a time


@dataclass(frozen=True, kw_only=True)
class DatasetDiff:
    """Differences of two datasets, A and B.

    Attributes:
        samples: of A and of B.
        equal: samples with the same key and the same members.
        changed: samples with the same key and other members, or members with other bytes.
        renamed: samples with other keys and the same members.
        only_a, only_b: samples that the other one does not have.
        examples: for each of these four, some keys; of renamed samples that in A and that in B.

    Examples:
        >>> diff = datapipe.diff_datasets("shards/", "shards/")
        >>> diff.samples, diff.equal, diff.is_same
        ((8, 8), 8, True)
    """

    samples: tuple[int, int]
    equal: int
    changed: int
    renamed: int
    only_a: int
    only_b: int
    examples: dict[str, tuple[str, ...]]

    @property
    def is_same(self) -> bool:
        """True if both hold the same samples, in whatever order."""
        return self.equal == self.samples[0] == self.samples[1]


@checked(IndexMismatch)
def diff_datasets(a: str | PathLike[str], b: str | PathLike[str]) -> DatasetDiff:
    """Compare the samples of two datasets by their indexes; no shard is read.

    Members are compared by extension, size and crc32. Order, shards and sources of samples are not
    compared.

    Args:
        a, b: folders or URLs that `datapipe pack` wrote, or folders of someone else's tars.

    Raises:
        IndexMismatch: there is no finished dataset, or it holds arrays.

    Examples:
        >>> report = datapipe.select_samples("shards/", "some/", number=3)
        >>> datapipe.diff_datasets("shards/", "some/").only_a
        5
    """
    one, other = _open(a), _open(b)
    spans = [each.columns.strings("key", *span) for each in (one, other) for span in _spans(each)]
    keys = pa.chunked_array(spans, pa.large_string()).combine_chunks()
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    same_a, same_b = _matched(codes[: len(one)], codes[len(one) :])
    content_a, content_b = _contents(one), _contents(other)
    changed = same_a[content_a[same_a] != content_b[same_b]]
    rest_a = np.delete(np.arange(len(one)), same_a)
    rest_b = np.delete(np.arange(len(other)), same_b)
    from_a, to_b = _matched(content_a[rest_a], content_b[rest_b])
    only_a, only_b = np.delete(rest_a, from_a), np.delete(rest_b, to_b)
    pairs = zip(_named(one, rest_a[from_a]), _named(other, rest_b[to_b]), strict=True)
    return DatasetDiff(
        samples=(len(one), len(other)),
        equal=len(same_a) - len(changed),
        changed=len(changed),
        renamed=len(from_a),
        only_a=len(only_a),
        only_b=len(only_b),
        examples={
            "changed": _named(one, changed),
            "renamed": tuple(f"{old} -> {new}" for old, new in pairs),
            "only_a": _named(one, only_a),
            "only_b": _named(other, only_b),
        },
    )


def _open(path: str | PathLike[str]) -> Dataset:
    dataset = open_dataset(path)
    if dataset.manifest.arrays is not None:
        raise IndexMismatch(f"{path} holds arrays; give the shards that they were made from")
    return dataset


def _named(dataset: Dataset, samples: Int64) -> tuple[str, ...]:
    return tuple(dataset.columns.keys(samples[:_EXAMPLES]))


def _spans(dataset: Dataset) -> list[tuple[int, int]]:
    samples = len(dataset)
    return [(start, min(start + _SPAN, samples)) for start in range(0, samples, _SPAN)]


def _contents(dataset: Dataset) -> UInt64:
    """Return a hash of the members of each sample, in whatever order: uint64 [N]."""
    columns = dataset.columns
    digests = [hashlib.sha256(ext.lower().encode()).digest() for ext in columns.extensions]
    names = np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")
    found = [np.zeros(0, np.uint64)]
    for start, stop in _spans(dataset):
        edges = np.asarray(columns.sample_member[start : stop + 1])
        members = slice(int(edges[0]), int(edges[-1]))
        hashes = names[columns.member_ext[members]]
        for values in (columns.member_size[members], columns.member_crc32[members]):
            hashes = mix_array(hashes + values.astype(np.uint64))
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(hashes)))  # overflows as it should
        found.append(np.diff(sums[edges - edges[0]]))
    return np.concatenate(found)


def _matched(a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Return pairs of indices of equal values, each index once, ascending in `a`: int64 [n] each.

    The first of several equal values in `a` goes with the first in `b`.
    """
    _, codes = np.unique(np.concatenate((a, b)), return_inverse=True)
    most = len(codes) + 1
    one, other = (of * most + _occurrence(of) for of in (codes[: len(a)], codes[len(a) :]))
    _, of_a, of_b = np.intersect1d(one, other, assume_unique=True, return_indices=True)
    order = np.argsort(of_a)
    return of_a[order], of_b[order]


def _occurrence(values: Int64) -> Int64:
    """Return how many equal values come before each: int64 [n] in and out."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    found = np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.searchsorted(ranked, ranked)
    return found
