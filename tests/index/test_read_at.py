"""Reads at many offsets give the bytes of the file there."""

import os
import time

import numpy as np
import pytest

from datapipe.index.files.random_read import read_at


@pytest.mark.parametrize("every", [1, 2])
def test_a_slow_disk_is_told_of_the_next_reads_and_not_of_one_slow_read_among_fast_ones(
    every, tmp_path, monkeypatch
):
    data = np.random.default_rng(0).bytes(40_000)
    (tmp_path / "data").write_bytes(data)
    told: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: told.append(given[1]))
    clock = iter(range(10**6))
    # Each chunk of 16 reads takes a second, or every second one does.
    monkeypatch.setattr(time, "perf_counter", lambda: (next(clock) + 1) // (2 * every) * every)
    offsets = [*range(0, 40_000, 8)]
    reads = read_at(tmp_path / "data", offsets, 8)
    found = []
    for number, read in enumerate(reads):
        found.append(read)
        # The first is for the whole file. The first 64 reads show that the disk is slow.
        assert len(told) - 1 <= number + 1024
        assert number < 64 or every == 2 or len(told) > number - 64
    assert found == [data[offset : offset + 8] for offset in offsets]
    assert told[1:] == (offsets[64:] if every == 1 else [])
    assert list(read_at(tmp_path / "data", [], 8)) == []
