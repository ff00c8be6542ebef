"""Warning about samples without labels, from which a model learns nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from datapipe.array_types import Int64
from datapipe.index.columns import Columns
from datapipe.index.files.random_read import gather

if TYPE_CHECKING:  # it imports this module
    from datapipe.loader.schedule.sample_source import SampleSelection

_SHARE = 0.01
# Runs of neighbours, since single samples of a large dataset would each cost a read.
_RUNS, _RUN = 64, 64


def without_labels(selection: SampleSelection, columns: Columns) -> str | None:
    """Return a warning if more than 1 % of the samples that take part have no label, else None.

    Up to 4,096 samples are looked at, evenly spread over a larger dataset.
    """
    text, count = selection.text, selection.count
    assert text is not None
    samples = _looked_at(count, selection.select)
    without = samples[text.measure(samples).labels == 0]
    if len(without) <= _SHARE * len(samples):
        return None
    cut = gather(text.columns.label_tokens, without) > 0
    empty = ~cut & (gather(columns.text_bytes, without) == 0)
    kinds = (
        (
            cut,
            "lose their answers to the limit of tokens (give a larger max_length, pack or "
            "max_tokens, or overlong='drop')",
        ),
        (empty, 'have no text (where="label_tokens > 0" leaves them out)'),
        (
            ~cut & ~empty,
            "have text that teaches nothing: no turn is the assistant's, its answers are "
            "empty or marked as not learnt, or the template leaves them out "
            '(where="label_tokens > 0" leaves such samples out)',
        ),
    )
    counts = (
        f"{int(chosen.sum()):,}, such as {columns.key(int(without[chosen][0]))}, {what}"
        for chosen, what in kinds
        if chosen.any()
    )
    spread = "" if len(samples) == count else f" (spread over all {count:,})"
    return (
        f"{100 * len(without) / len(samples):.1f}% of {len(samples):,} samples{spread} have no "
        f"label, so the model learns nothing from them: {'; '.join(counts)}"
    )


def _looked_at(count: int, select: Callable[[Int64], Int64] | None) -> Int64:
    """Return the numbers of the samples that are looked at, of those that take part."""
    if count <= _RUNS * _RUN:
        indices = np.arange(count, dtype=np.int64)
    else:
        starts = np.linspace(0, count - _RUN, _RUNS).astype(np.int64)
        indices = (starts[:, None] + np.arange(_RUN)).ravel()
    return indices if select is None else select(indices)
