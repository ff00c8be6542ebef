"""Every layout is packed as it was meant, or what is not packed is named."""

from collections import Counter

import pytest

from .layouts import (
    further_columns,
    further_folders,
    sources_captions,
    sources_chats,
    sources_questions,
    stated,
)
from .layouts.judge import faults_of
from .layouts.raw import Raw
from .layouts.table import LAYOUTS, Fate, Layout, captioned, packed, refused

TABLES = (
    *(sources_chats, sources_captions, sources_questions),
    *(stated, further_columns, further_folders),
)
"""Modules that add their layouts to `LAYOUTS` when they are imported."""


def test_the_table_has_forty_sources_and_ninety_further_layouts():
    assert sum(layout.is_source for layout in LAYOUTS) == 40
    assert sum(not layout.is_source for layout in LAYOUTS) >= 90
    assert [name for name, n in Counter(layout.name for layout in LAYOUTS).items() if n > 1] == []


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_is_packed_as_meant_or_named(layout, tmp_path):
    faults = faults_of(layout, tmp_path)
    assert not faults, "\n".join([layout.name, *faults])


@pytest.mark.parametrize(
    ("fate", "fault"),
    [
        (packed(captioned(0, "text 0"), captioned(1, "text 1")), "lost without a word"),
        (packed(captioned(0, "text 0"), captioned(1, "text 0")), "samples are others"),
        (packed(captioned(0, "text 0"), captioned(2, "text 1")), "samples are missing"),
        (packed(captioned(0, "text 0")), "samples are others"),
        (packed(captioned(0, "text 0"), captioned(1, "text 1"), rejects=1), "0 rejects, not 1"),
        (packed(captioned(0, "text 0"), captioned(1, "text 1"), says=("masks",)), "'masks'"),
        (refused("video"), "packed 2 samples"),
    ],
)
def test_the_judge_finds_what_is_wrong(tmp_path, fate, fault):
    def make(raw: Raw) -> Fate:
        for number in range(2):
            raw.image(f"{number}.png", number)
            raw.text(f"{number}.txt", f"text {number}")
        raw.count("gone.png", 5)
        return fate

    faults = faults_of(Layout(name="two images", make=make), tmp_path)
    assert any(fault in found for found in faults), faults
