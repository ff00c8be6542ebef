"""Caches that are impossible are refused, and sizes are read as people write them."""

import logging
import re

import pytest

import datapipe
from datapipe import CacheSpec, ImageSpec

LOTS = 1 << 30


@pytest.mark.parametrize(
    ("cache", "where"),
    [
        (CacheSpec(memory=LOTS), r".*\) decoded in memory, a fixed part"),
        (CacheSpec(device="1MB"), r"67\.4 KB\) decoded on cpu"),
    ],
    ids=["memory", "device"],
)
def test_the_choice_is_said(make, caplog, cache, where):
    caplog.set_level(logging.INFO)
    make(image=ImageSpec(size=24), device="cpu", cache=cache)
    assert re.search(rf"keeps 37 of 37 samples \({where}, .* 100.0% of reads", caplog.text)


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        ("50", "cache memory '50': give a size with its unit, such as 50MB or 50GB"),
        ("0.5", "give a size such as 8GB"),
        ("200000", "give a size with its unit, such as 200000MB"),
        (50, "cache memory 50: give at least 1,000 bytes, such as 8GB"),
        ("10B", "give at least 1,000 bytes"),
        (0, "give at least 1,000 bytes, such as 8GB: .*; None is no cache"),
        ("cache/", r"give a size such as 8GB; a folder is CacheSpec\(disk=...\)"),
        (3.5, "cache 3.5: give an integer, a string, a CacheSpec or None"),
    ],
)
def test_a_size_that_cannot_be_meant_is_refused(make, cache, said):
    with pytest.raises(datapipe.PlanError, match=said):
        make(cache=cache)
    if isinstance(cache, str | int):
        with pytest.raises(datapipe.PlanError, match=said):
            CacheSpec(memory=cache)
        with pytest.raises(datapipe.PlanError, match="cache disk_size "):
            CacheSpec(disk="kept", disk_size=cache)


def test_a_size_is_the_short_form_of_a_cache_in_memory(make):
    assert CacheSpec("1.5GB") == CacheSpec(memory=1_500_000_000)
    assert CacheSpec(" 20 KB ").memory == 20_000
    assert CacheSpec("20000000").memory == 20_000_000
    for cache in ("8MB", 8_000_000, CacheSpec(memory="8MB")):
        loader = make(cache=cache, epochs=2)
        assert len(list(loader)) == 20
        assert loader.stats()["memory"].kept >= 37  # threads may make one at once
    with pytest.raises(TypeError):
        CacheSpec("1GB", "cache/")


def test_a_cache_that_holds_no_sample_says_so(make, caplog):
    make(cache=CacheSpec(8192, keep="encoded"))
    assert "the cache keeps nothing in memory: no sample of" in caplog.text
    assert "fits into 8,192 bytes; give more, such as '8GB'" in caplog.text
