"""Reads at many offsets give the bytes of the file there."""

from __future__ import annotations

import os
import time
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


@pytest.mark.parametrize("slow", [False, True])
def test_a_slow_disk_is_told_of_the_next_1024_reads_before_they_are_made(
    slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLOW", -1.0 if slow else 1e9)
    (tmp_path / "data").write_bytes(bytes(40_000))
    events: list[tuple[str, int]] = []
    pread = os.pread

    def announce(descriptor: int, offset: int, size: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            events.append(("announce", offset))

    def read(descriptor: int, size: int, offset: int) -> bytes:
        events.append(("read", offset))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "posix_fadvise", announce)
    monkeypatch.setattr(os, "pread", read)
    offsets = list(range(0, 40_000, 8))
    assert len(list(read_at(tmp_path / "data", offsets, 8))) == len(offsets)
    announced = [offset for event, offset in events if event == "announce"]
    # The first 64 show that the disk is slow.
    assert announced == (offsets[64:] if slow else [])
    before = [0, 0]
    for event, _ in events:
        before[event == "read"] += 1
        assert before[0] - before[1] <= 1024
    for offset in announced[::500]:
        assert events.index(("announce", offset)) < events.index(("read", offset))


def test_one_slow_read_among_fast_ones_announces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_bytes(bytes(4_000))
    advice: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: advice.append(given[3]))
    clock = iter(range(10**6))
    # Every second chunk of 16 takes a second.
    monkeypatch.setattr(time, "perf_counter", lambda: (next(clock) + 1) // 4)
    assert len(list(read_at(tmp_path / "data", list(range(4_000)), 1))) == 4_000
    assert advice == [os.POSIX_FADV_RANDOM]
