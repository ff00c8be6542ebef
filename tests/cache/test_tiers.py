"""Tiers keep entries as they were given, in memory and on disk, whatever happens in between."""

from __future__ import annotations

import errno
import gc
import logging
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.array_types import Int64, UInt8
from datapipe.cache import disk as disk_module
from datapipe.cache.disk import DiskTier, make_room, open_disk, write_about
from datapipe.cache.entries import fill_members
from datapipe.cache.layout import EntryLayout, Use
from datapipe.cache.memory import EvictedEntries, FixedEntries
from datapipe.cache.next_use import Lru, NextUse

COUNT = 50


def sizes_of(samples: Int64) -> Int64:
    return 64 * (1 + samples % 3)


def entry_of(sample: int) -> UInt8:
    size = int(sizes_of(np.array([sample]))[0])
    return np.random.default_rng(sample).integers(0, 256, size, np.uint8)


def layout(budget: int = 1 << 20) -> EntryLayout:
    return EntryLayout(COUNT, sizes_of, budget, 3)


def use(tier: FixedEntries | DiskTier, sample: int) -> Use:
    place = int(tier.layout.places(np.array([sample]))[0])
    return Use(sample, memory=place, disk=place)


def test_a_fixed_tier_gives_back_what_was_kept() -> None:
    tier = FixedEntries(layout())
    for sample in range(0, COUNT, 2):
        entry = entry_of(sample)
        room = tier.room(use(tier, sample), len(entry))
        assert room is not None
        room[:] = entry
        assert tier.find(use(tier, sample)) is None  # not before it is whole
        tier.keep(use(tier, sample), room)
    for sample in range(COUNT):
        found = tier.find(use(tier, sample))
        if sample % 2:
            assert found is None
        else:
            assert (found == entry_of(sample)).all()


def test_a_fixed_tier_takes_entries_that_were_made_elsewhere() -> None:
    tier = FixedEntries(layout())
    tier.keep(use(tier, 5), entry_of(5))
    assert (tier.find(use(tier, 5)) == entry_of(5)).all()


def test_a_fixed_tier_leaves_out_what_has_no_place() -> None:
    tier = FixedEntries(layout(budget=1000))
    out = [sample for sample in range(COUNT) if not tier.wants(use(tier, sample), 64)]
    assert 0 < len(out) < COUNT
    tier.keep(use(tier, out[0]), entry_of(out[0]))
    assert tier.find(use(tier, out[0])) is None
    assert tier.room(use(tier, out[0]), 64) is None


def test_memory_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be shared"):
        FixedEntries(EntryLayout(1, lambda s: np.full(len(s), 2**62), 2**63 - 1, 3))


@pytest.mark.parametrize("policy", [NextUse(400), Lru(400)], ids=["next-use", "lru"])
def test_entries_come_and_go_under_many_threads(policy: NextUse | Lru) -> None:
    entries = EvictedEntries(policy)
    wrong: list[int] = []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for now in range(2000):
            sample = int(draw.integers(COUNT))
            found = entries.find(Use(sample, now))
            if found is None:
                made = entry_of(sample)
                room = entries.room(Use(sample, now), len(made))
                if room is not None:
                    room[:] = made
                    entries.keep(Use(sample, now), room)
            elif not (found == entry_of(sample)).all():
                wrong.append(sample)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert entries.evicted > 0
    assert sum(map(len, entries._entries.values())) == policy.bytes <= 400


def test_what_is_read_stays_whole_when_it_is_evicted() -> None:
    entries = EvictedEntries(Lru(200))
    entries.keep(Use(2), entry_of(2))
    found = entries.find(Use(2))
    entries.keep(Use(5), entry_of(5))
    assert entries.find(Use(2)) is None
    assert (found == entry_of(2)).all()


def test_a_disk_keeps_entries_over_a_restart(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "a", layout())
    for sample in range(0, COUNT, 2):
        tier.keep(use(tier, sample), entry_of(sample))
    del tier
    tier = DiskTier(tmp_path / "a", layout())
    assert tier.present == COUNT // 2
    for sample in range(COUNT):
        found = tier.find(use(tier, sample))
        assert (found is None) == bool(sample % 2)
        if found is not None:
            assert (found == entry_of(sample)).all()


def test_processes_that_use_a_disk_see_what_others_keep(tmp_path: Path) -> None:
    one, other = (DiskTier(tmp_path / "a", layout()) for _ in range(2))
    one.keep(use(one, 7), entry_of(7))
    assert (other.find(use(other, 7)) == entry_of(7)).all()


def test_a_smaller_disk_uses_what_a_larger_one_has(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "a", layout())
    for sample in range(COUNT):
        tier.keep(use(tier, sample), entry_of(sample))
    small = DiskTier(tmp_path / "a", layout(budget=2000))
    served = [sample for sample in range(COUNT) if small.find(use(small, sample)) is not None]
    assert len(served) == small.layout.kept < COUNT


@pytest.mark.parametrize("harm", ["flip", "cut", "zeros"])
def test_damage_is_noticed_and_mended(tmp_path: Path, harm: str) -> None:
    tier = DiskTier(tmp_path / "a", layout())
    for sample in range(COUNT):
        tier.keep(use(tier, sample), entry_of(sample))
    path = tmp_path / "a" / "entries"
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[100] ^= 4
    elif harm == "cut":
        content = content[:-30]
    else:
        content[1000:3000] = bytes(2000)
    path.write_bytes(content)
    found = {sample: tier.find(use(tier, sample)) for sample in range(COUNT)}
    assert tier.corrupt == sum(entry is None for entry in found.values()) > 0
    assert all((e == entry_of(s)).all() for s, e in found.items() if e is not None)
    for sample in found:
        tier.keep(use(tier, sample), entry_of(sample))
    assert all((tier.find(use(tier, sample)) == entry_of(sample)).all() for sample in found)


@pytest.mark.parametrize("bit", [0, 31, 32, 33, 63])
def test_a_bit_of_what_is_noted_of_an_entry_is_noticed(tmp_path: Path, bit: int) -> None:
    tier = DiskTier(tmp_path / "a", layout())
    sample = int(np.flatnonzero(tier.layout.places(np.arange(COUNT)) >= 0)[0])
    tier.keep(use(tier, sample), entry_of(sample))
    tier._words[use(tier, sample).disk] ^= np.uint64(1 << bit)
    assert tier.find(use(tier, sample)) is None
    assert tier.corrupt == 1


def test_a_full_disk_is_said_once_and_what_is_there_still_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier = DiskTier(tmp_path / "a", layout())
    tier.keep(use(tier, 1), entry_of(1))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_module, "pwrite", full)
    for sample in range(2, 9):
        tier.keep(use(tier, sample), entry_of(sample))
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert not tier.wants(use(tier, 10))
    assert (tier.find(use(tier, 1)) == entry_of(1)).all()
    assert tier.find(use(tier, 2)) is None


def test_a_tier_that_is_gone_leaves_no_open_file(tmp_path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    tier = DiskTier(tmp_path / "a", layout())
    tier.keep(use(tier, 1), entry_of(1))
    del tier
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_room_is_made_by_removing_what_was_used_longest_ago(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number, name in enumerate(("old", "used", "new")):
        write_about(tmp_path / name, {})
        (tmp_path / name / "entries").write_bytes(bytes(100_000))
        os.utime(tmp_path / name, (number, number))
    (tmp_path / "mine").mkdir()  # of somebody else: no cache
    users = DiskTier(tmp_path / "old", layout())
    os.utime(tmp_path / "old", (0, 0))
    assert make_room(tmp_path, "own", 250_000) == pytest.approx(150_000, abs=10_000)
    # The oldest is used by somebody, so the next ones go.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "old"]
    assert users.present == 0


@pytest.mark.parametrize("there", ["file", "file/below", "full/about.json", "full/words"])
def test_a_folder_that_cannot_be_used_keeps_nothing_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, there: str
) -> None:
    (tmp_path / "file").write_text("")
    full = tmp_path / "full"
    full.mkdir()
    if there.startswith("full"):
        tier = open_disk(full, {}, None, layout)
        (tier.folder / there.removeprefix("full/")).unlink()
        (tier.folder / there.removeprefix("full/")).mkdir()
        del tier
        root = full
    else:
        root = tmp_path / there
    tier = open_disk(root, {}, None, layout)
    other = pickle.loads(pickle.dumps(tier))  # as a worker process has it
    for each in (tier, other):
        assert not each.wants(use(each, 1))
        each.keep(use(each, 1), entry_of(1))
        assert each.find(use(each, 1)) is None
        assert not each.holds(np.arange(COUNT)).any()
        assert each.present == 0
        assert each.layout.kept == 0
    assert len(caplog.records) == 1
    assert "give CacheSpec(disk=...) another folder" in caplog.text


def test_a_limit_below_one_entry_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = open_disk(tmp_path, {}, 10, layout)
    assert not tier.wants(use(tier, 1))
    assert caplog.text.count("there is no room for a single entry") == 1


def test_folders_of_others_that_cannot_be_read_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "theirs").mkdir()
    stat = os.stat

    def denied(path: str, *options: Any, **more: Any) -> os.stat_result:
        if "theirs" in os.fspath(path):
            raise PermissionError(errno.EACCES, "denied")
        return stat(path, *options, **more)

    monkeypatch.setattr(os, "stat", denied)
    assert open_disk(tmp_path, {}, None, layout).layout.kept == COUNT
    assert not caplog.records


def test_equal_members_make_equal_entries_whatever_the_memory_held() -> None:
    members = [memoryview(b"image"), memoryview(b"text")]
    entries = [np.full(24, filler, np.uint8) for filler in (0, 255)]
    for entry in entries:
        fill_members(entry, members)[:] = 7
    assert entries[0].tobytes() == entries[1].tobytes()
