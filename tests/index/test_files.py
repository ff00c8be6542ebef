"""Files of numbers: mapped and given back with their last array, or read at many offsets."""

import gc
import os
import time
from pathlib import Path

import numpy as np
import pytest

from datapipe.index.files.npy import NpyFile, map_file, map_npy
from datapipe.index.files.random_read import read_at


@pytest.fixture
def path(tmp_path):
    file = NpyFile(tmp_path / "values.npy", "<i4", (2,))
    file.append(np.arange(6, dtype=np.int32).reshape(3, 2))
    file.close()
    return tmp_path / "values.npy"


def _is_mapped(path):
    return str(path) in Path("/proc/self/maps").read_text()


def test_values_are_those_of_the_file_and_read_only(path):
    whole, values = map_file(path), map_npy(path, "<i4", (2,))
    assert values.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert whole.tobytes() == path.read_bytes()
    for array in (whole, values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells what is mapped")
def test_a_file_is_mapped_as_long_as_an_array_of_it_is_held(path):
    values = map_npy(path, "<i4", (2,))[1:]
    again = map_npy(path, "<i4", (2,))
    gc.collect()
    assert values.tolist() == again[1:].tolist()
    del values
    gc.collect()
    assert _is_mapped(path)
    del again
    gc.collect()
    assert not _is_mapped(path)


@pytest.mark.parametrize("every", [1, 2])
def test_a_slow_disk_is_told_of_the_next_reads_and_not_of_one_slow_read_among_fast_ones(
    every, tmp_path, monkeypatch
):
    data = np.random.default_rng(0).bytes(40_000)
    (tmp_path / "data").write_bytes(data)
    told = []
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
