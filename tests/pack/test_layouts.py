"""Every layout is packed as it was meant, or what is not packed is named."""

from __future__ import annotations

from collections import Counter

import pytest

from .layouts import (
    further_columns,
    further_folders,
    further_links,
    further_media,
    further_mixed,
    further_tables,
    further_tars,
    sources_captions,
    sources_chats,
    sources_questions,
)
from .layouts.judge import faults_of
from .layouts.table import LAYOUTS, Layout

TABLES = (
    sources_chats,
    sources_captions,
    sources_questions,
    further_tars,
    further_media,
    further_columns,
    further_folders,
    further_links,
    further_tables,
    further_mixed,
)
"""Modules that add their layouts to `LAYOUTS` when they are imported."""


def test_the_table_has_forty_sources_and_ninety_further_layouts():
    assert sum(layout.is_source for layout in LAYOUTS) == 40
    assert sum(not layout.is_source for layout in LAYOUTS) >= 90
    assert [name for name, n in Counter(layout.name for layout in LAYOUTS).items() if n > 1] == []


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_is_packed_as_meant_or_named(layout: Layout, tmp_path):
    faults = faults_of(layout, tmp_path)
    assert not faults, "\n".join([layout.name, *faults])
