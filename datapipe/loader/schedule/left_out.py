"""Samples of a dataset that take no part in a plan, by reason, and samples that are cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from datapipe.index.dataset import Dataset
from datapipe.index.where import evaluate, parse_where
from datapipe.loader.schedule.sample_source import SampleSelection, unfit
from datapipe.plan.options import PlanOptions
from datapipe.store.record_fields import where_columns

_CHUNK = 1 << 16  # samples looked at together


LeftOut = Counter[str]
"""Number of samples that take no part, each under the first of `REASONS` that holds."""

REASONS = ("where", "unusable", "overlong", "images", "empty", "limit")
"""`where=` does not hold; those of `unfit`; more than the `limit` of a dataset of a mixture."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Samples that are too long or left out."""

    # Tokens that a sample may have; None for no limit, or if those of the datasets of a mixture
    # differ
    limit: int | None
    # Samples with more tokens, images included, for which `where=` holds. They are cut, or counted
    # in `left_out`. None if no tokens were counted.
    overlong: int | None
    left_out: LeftOut  # samples that take no part
    # `cut_images`, `cut_labels`: images and label tokens that truncation removes
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
    text, left_out = samples.text, LeftOut()
    if text is None:
        left_out["where"] = len(dataset) - samples.count
        return Lengths(limit=None, overlong=None, left_out=left_out)
    overlong = images = labels = 0
    given = samples.identity["where"]
    where = None if given is None else parse_where(given)
    columns = where_columns(dataset, where, text.where_columns())
    for start in range(0, len(dataset), _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, len(dataset)), dtype=np.int64)
        chosen = np.ones(len(numbers), bool)
        if where is not None:
            stop = start + len(numbers)
            chosen = evaluate(where, dataset.columns, columns, start, stop)
        left_out["where"] += int((~chosen).sum())
        whole, sizes = replace(text, limit=None).measure(numbers), text.measure(numbers)
        if text.limit is not None:
            readable = chosen & (text.columns.text_tokens[numbers] >= 0)
            overlong += int((readable & (whole.tokens > text.limit)).sum())
        for reason, out in unfit(text, plan, numbers, sizes).items():
            left_out[reason] += int((chosen & out).sum())
            chosen = chosen & ~out
        images += int((whole.images - sizes.images)[chosen].sum())
        labels += int((whole.labels - sizes.labels)[chosen].sum())
    return Lengths(
        limit=text.limit, overlong=overlong, left_out=left_out, cut_images=images, cut_labels=labels
    )
