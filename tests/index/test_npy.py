"""Mapped files: read-only, not open, and given back with their last array."""

import gc
from pathlib import Path

import numpy as np
import pytest

from datapipe.index.files.npy import NpyFile, map_file, map_npy, map_plain


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = NpyFile(tmp_path / "values.npy", "<i4", (2,))
    file.append(np.arange(6, dtype=np.int32).reshape(3, 2))
    file.close()
    return tmp_path / "values.npy"


def _is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_values_are_those_of_the_file_and_read_only(path):
    whole, values = map_file(path), map_npy(path, "<i4", (2,))
    assert values.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert whole.tobytes() == path.read_bytes()
    for array in (whole, values, map_plain(path, "<i4", (2,))):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells what is mapped")
def test_a_file_is_mapped_as_long_as_an_array_of_it_is_held(path):
    values = map_npy(path, "<i4", (2,))[1:]
    plain = map_plain(path, "<i4", (2,))
    gc.collect()
    assert values.tolist() == plain[1:].tolist()
    del values
    gc.collect()
    assert _is_mapped(path)
    del plain
    gc.collect()
    assert not _is_mapped(path)
