"""Counters of image tokens: rules by name, and functions."""

import numpy as np
import pytest

from datapipe.errors import PlanError
from datapipe.loader.schedule.image_token_counts import image_token_counter


def test_counters_count_as_they_are_told():
    widths, heights = np.array([280, 896]), np.array([560, 448])
    assert image_token_counter("native")(widths, heights).tolist() == [200, 512]
    assert image_token_counter("per-tile")(widths, heights).tolist() == [3 * 256, 3 * 256]
    halves = image_token_counter(lambda w, h: w // 2)(widths, heights)
    assert halves.tolist() == [140, 448]
    assert halves.dtype == np.int64


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (lambda w, h: w / 2, "float64"),
        (lambda w, h: 7, r"shape \(\)"),
        (lambda w, h: w[:1], r"shape \(1,\) for 2"),
        (lambda w, h: w - 280, "0 for an image of 280 x 560"),
    ],
)
def test_a_function_that_counts_wrongly_is_told(function, cause):
    with pytest.raises(PlanError, match=cause):
        image_token_counter(function)(np.array([280, 896]), np.array([560, 448]))
