"""Every layout is packed as it was meant, or what is not packed is named."""

import pkgutil
from collections import Counter
from importlib import import_module

import pytest

from . import layouts
from .layouts.judge import faults_of
from .layouts.table import LAYOUTS, TEXTS, Layout, captioned, packed, refused

for module in pkgutil.iter_modules(layouts.__path__, f"{layouts.__name__}."):
    import_module(module.name)  # which adds its layouts to the table


def test_no_layout_is_lost_or_there_twice():
    assert sum(layout.is_source for layout in LAYOUTS) == 40
    assert sum(not layout.is_source for layout in LAYOUTS) == 205
    assert [name for name, n in Counter(layout.name for layout in LAYOUTS).items() if n > 1] == []


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_is_packed_as_meant_or_named(layout, tmp_path):
    faults = faults_of(layout, tmp_path)
    assert not faults, "\n".join([layout.name, *faults])


@pytest.mark.parametrize(
    ("fate", "fault"),
    [
        (packed(*TEXTS[:2]), "lost without a word"),
        (packed(TEXTS[0], captioned(1, "text 0")), "samples are others"),
        (packed(TEXTS[0], captioned(2, "text 1")), "samples are missing"),
        (packed(TEXTS[0]), "samples are others"),
        (packed(*TEXTS[:2], rejects=1), "0 rejects, not 1"),
        (packed(*TEXTS[:2], says=("masks",)), "'masks'"),
        (refused("video"), "packed 2 samples"),
    ],
)
def test_the_judge_finds_what_is_wrong(tmp_path, fate, fault):
    def make(raw):
        for number in range(2):
            raw.image(f"{number}.png", number)
            raw.text(f"{number}.txt", f"text {number}")
        raw.count("gone.png", 5)
        return fate

    faults = faults_of(Layout(name="two images", make=make), tmp_path)
    assert any(fault in found for found in faults), faults
