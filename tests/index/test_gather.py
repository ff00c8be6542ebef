"""Values out of large columns are those that indexing gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.index.files import random_read as module
from datapipe.index.files import read_at
from datapipe.index.files.npy import NpyFile, map_plain
from datapipe.index.files.random_read import gather, gather_counts


@pytest.fixture
def column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A mapped column that counts as large, as `open_columns` maps one."""
    monkeypatch.setattr(module, "LARGE", 0)
    values = np.cumsum(np.random.default_rng(0).integers(0, 9, 5001))
    file = NpyFile(tmp_path / "column.npy", "<i8")
    file.append(values)
    file.close()
    return map_plain(tmp_path / "column.npy", "<i8")


@pytest.mark.parametrize("slow", [False, True])
def test_values_of_large_columns_are_read_and_not_mapped(
    column: Any, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_at, "_SLOW", -1.0 if slow else 1e9)
    numbers = np.random.default_rng(1).integers(0, 5000, 3000)
    assert gather(column, numbers).tolist() == column[numbers].tolist()
    expected = np.diff(column)[numbers]
    assert gather_counts(column, numbers).tolist() == expected.tolist()
    assert gather(column, np.zeros(0, np.int64)).tolist() == []


def test_a_part_of_a_column_and_a_column_in_memory_are_indexed(column: Any) -> None:
    numbers = np.array([3, 1, 1])
    assert gather(column[5:], numbers).tolist() == column[[8, 6, 6]].tolist()
    assert gather(column[::2], numbers).tolist() == column[[6, 2, 2]].tolist()
    assert gather(column.copy(), numbers).tolist() == column[numbers].tolist()
