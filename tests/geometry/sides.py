"""Sizes of images, as strategies and as columns."""

import numpy as np
from hypothesis import strategies as st

SIDES = st.one_of(
    st.integers(1, 100), st.integers(1, 5000), st.integers(1, 300).map(lambda n: n * 14)
)
SIZES = st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=20)


def columns(sizes: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Widths and heights of a list of (width, height)."""
    array = np.array(sizes, np.int64)
    return array[:, 0], array[:, 1]
