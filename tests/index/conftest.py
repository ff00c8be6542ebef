"""Fixtures of several modules of tests."""

import pytest

from .token_counts import make_manifest


@pytest.fixture
def manifest():
    """A manifest of four shards, of which one is empty."""
    return make_manifest([5, 1, 0, 7])
