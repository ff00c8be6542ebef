"""Token counts in a few figures."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datapipe.index.tokens.columns import TokenColumns
from datapipe.index.tokens.stats import token_stats


def columns_of(lengths):
    text = np.array(lengths, np.int32)
    none = np.zeros(0, np.int32)
    return TokenColumns(
        folder=Path(),
        digest="",
        image_wrap=(0, 0),
        failed=int((text < 0).sum()),
        text_tokens=text,
        label_tokens=np.maximum(text, 0) // 2,
        sample_image_at=np.zeros(len(text) + 1, np.int64),
        image_at=none,
        sample_label=np.zeros(len(text) + 1, np.int64),
        label_start=none,
        label_stop=none,
    )


@settings(deadline=None)
@given(lengths=st.lists(st.integers(-1, 300), max_size=60))
@example([-1, -1])
def test_figures_are_those_of_the_texts_that_can_be_used(lengths):
    stats = token_stats(columns_of(lengths))
    usable = sorted(length for length in lengths if length >= 0)
    assert stats.failed == len(lengths) - len(usable)
    assert stats.text.total == sum(usable)
    assert stats.text.most == max(usable, default=0)
    assert stats.labels.total == sum(length // 2 for length in usable)
    assert stats.text.mean == pytest.approx(np.mean(usable or [0]))
    for percent in (50, 90, 99):
        found = np.percentile(usable or [0], percent, method="inverted_cdf")
        assert getattr(stats.text, f"p{percent}") == found


def test_figures_of_more_texts_than_are_looked_at_together():
    stats = token_stats(columns_of(np.tile(np.arange(-1, 300, dtype=np.int32), 14_000)))
    assert (stats.failed, stats.text.total) == (14_000, 14_000 * 300 * 299 // 2)
    assert (stats.text.p50, stats.text.p90, stats.text.p99, stats.text.most) == (149, 269, 296, 299)
