"""Samples of a dataset that take no part in a plan, by reason, and samples that are cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.index.dataset import Dataset
from datapipe.index.where import evaluate, parse_where
from datapipe.loader.schedule.sample_source import SampleSelection, TextSizes
from datapipe.plan.options import PlanOptions
from datapipe.plan.units import Sizes

_CHUNK = 1 << 16  # samples looked at together


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Number of samples that take no part, each under the first reason that holds.

    Attributes:
        where: `where=` does not hold.
        unusable: the text cannot be used.
        overlong: dropped, since they are longer than the limit.
        images: more images than `max_images`, or patches than `max_patches`.
        empty: no token.
        limit: more than the `limit` of a dataset of a mixture.
    """

    where: int = 0
    unusable: int = 0
    overlong: int = 0
    images: int = 0
    empty: int = 0
    limit: int = 0

    @property
    def total(self) -> int:
        """Number of samples over all reasons."""
        return sum(self.to_dict().values())

    def to_dict(self) -> dict[str, int]:
        """Return the count of each reason."""
        return asdict(self)

    def __add__(self, other: LeftOut) -> LeftOut:
        theirs = other.to_dict()
        return LeftOut(**{name: count + theirs[name] for name, count in self.to_dict().items()})


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Samples that are too long or left out.

    Attributes:
        limit: tokens that a sample may have; None for no limit, or if those of the datasets of a
            mixture differ.
        overlong: samples with more tokens, images included, for which `where=` holds. They are cut,
            or counted in `left_out`. None if no tokens were counted.
        left_out: samples that take no part.
        cut_images, cut_labels: images and label tokens that truncation removes.
    """

    limit: int | None
    overlong: int | None
    left_out: LeftOut
    cut_images: int = 0
    cut_labels: int = 0

    @staticmethod
    def join(parts: Sequence[Lengths]) -> Lengths:
        """Add up the datasets of a mixture."""
        limits = {part.limit for part in parts}
        overlong = [part.overlong for part in parts if part.overlong is not None]
        return Lengths(
            limit=limits.pop() if len(limits) == 1 else None,
            overlong=sum(overlong) if overlong else None,
            left_out=sum((part.left_out for part in parts), LeftOut()),
            cut_images=sum(part.cut_images for part in parts),
            cut_labels=sum(part.cut_labels for part in parts),
        )


def look_at_lengths(dataset: Dataset, samples: SampleSelection, plan: PlanOptions) -> Lengths:
    """Count the samples that are too long, and those that are left out. Looks at every sample."""
    text = samples.text
    if text is None:
        where = len(dataset) - samples.count
        return Lengths(limit=None, overlong=None, left_out=LeftOut(where=where))
    overlong = images = labels = 0
    counts = dict.fromkeys(LeftOut().to_dict(), 0)
    for start in range(0, len(dataset), _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, len(dataset)), dtype=np.int64)
        chosen = _holds(dataset, text, samples.identity["where"], numbers)
        counts["where"] += int((~chosen).sum())
        whole = replace(text, limit=None).measure(numbers)
        long = _over(whole.tokens, text.limit)
        overlong += int((chosen & (text.columns.text_tokens[numbers] >= 0) & long).sum())
        sizes = text.measure(numbers)
        for reason, out in _reasons(text, plan, numbers, sizes):
            counts[reason] += int((chosen & out).sum())
            chosen = chosen & ~out
        images += int((whole.images - sizes.images)[chosen].sum())
        labels += int((whole.labels - sizes.labels)[chosen].sum())
    return Lengths(
        limit=text.limit,
        overlong=overlong,
        left_out=LeftOut(**counts),
        cut_images=images,
        cut_labels=labels,
    )


def _reasons(
    text: TextSizes, plan: PlanOptions, numbers: Int64, sizes: Sizes
) -> Iterator[tuple[str, Bools]]:
    """Yield each reason, and the samples that it leaves out."""
    yield "unusable", text.columns.text_tokens[numbers] < 0
    yield "overlong", _over(sizes.tokens, text.limit)
    yield "images", _over(sizes.images, plan.max_images) | _over(sizes.rows, plan.max_patches)
    yield "empty", sizes.tokens <= 0


def _over(values: Int64, limit: int | None) -> Bools:
    return np.zeros(len(values), bool) if limit is None else values > limit


def _holds(dataset: Dataset, text: TextSizes, where: str | None, numbers: Int64) -> Bools:
    if where is None:
        return np.ones(len(numbers), bool)
    start, stop = int(numbers[0]), int(numbers[-1]) + 1
    return evaluate(parse_where(where), dataset.columns, text.where_columns(), start, stop)
