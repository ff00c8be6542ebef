"""Reads at many offsets give the bytes of the file there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datapipe.index.files import read_at as module
from datapipe.index.files.read_at import read_at


@pytest.mark.parametrize("slow", [False, True])
def test_reads_are_the_bytes_at_their_offsets_however_slow_the_disk_is(
    slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLOW", -1.0 if slow else 1e9)
    data = np.random.default_rng(0).bytes(50_000)
    (tmp_path / "data").write_bytes(data)
    offsets = np.random.default_rng(1).integers(0, 50_000, 3000).tolist()
    expected = [data[offset : offset + 8] for offset in offsets]
    assert list(read_at(tmp_path / "data", offsets, 8)) == expected
    assert list(read_at(tmp_path / "data", [], 8)) == []
