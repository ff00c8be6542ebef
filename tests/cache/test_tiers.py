"""Tiers keep entries as they were given, in memory and on disk, whatever happens in between."""

import copy
import gc
import logging
import os
import pickle
import resource
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cache.hits import Lru
from datapipe.array_types import Int64, UInt8
from datapipe.cache.disk import DiskTier, open_folder
from datapipe.cache.entries import fill_members
from datapipe.cache.evicting import EvictingTier
from datapipe.cache.layout import EntryLayout, sample_draw
from datapipe.cache.memory import SharedMemoryTier
from datapipe.cache.next_use import NextUse
from datapipe.cache.tier import Tier, Use, Uses
from tests.waiting import wait_until

COUNT = 50


def sizes_of(samples: Int64) -> Int64:
    return 64 * (1 + samples % 3)


def entry_of(sample: int) -> UInt8:
    size = int(sizes_of(np.array([sample]))[0])
    return np.random.default_rng(sample).integers(0, 256, size, np.uint8)


def layout(budget: int = 1 << 20) -> EntryLayout:
    return EntryLayout(COUNT, sizes_of, budget)


def use(sample: int, next_use: int = 0) -> Use:
    return Use(sample, int(sample_draw(COUNT).inverse([sample])[0]), next_use)


def uses(samples: list[int]) -> Uses:
    numbers = np.array(samples, np.int64)
    return Uses(numbers, sample_draw(COUNT).inverse(numbers), np.zeros_like(numbers))


def make_tier(kind: str, folder: Path, budget: int = 1 << 20) -> Tier:
    tiers: dict[str, Any] = {
        "shared memory": lambda: SharedMemoryTier(layout(budget)),
        "next-use": lambda: EvictingTier(NextUse(budget)),
        "lru": lambda: EvictingTier(Lru(budget)),
        "disk": lambda: DiskTier(folder / "tier", layout(budget)),
    }
    tier: Tier = tiers[kind]()
    return tier


def fill(tier: Tier, samples: Iterable[int] = range(COUNT)) -> None:
    for sample in samples:
        tier.put(use(sample), entry_of(sample))


every_tier = pytest.mark.parametrize("kind", ["shared memory", "next-use", "lru", "disk"])


@every_tier
def test_a_tier_gives_back_what_was_put(kind, tmp_path):
    tier = make_tier(kind, tmp_path)
    for sample in range(0, COUNT, 2):
        entry = entry_of(sample)
        room = tier.room(use(sample), len(entry))
        assert room is not None
        room[:] = entry
        assert tier.get(use(sample)) is None  # not before it is whole
        assert tier.put(use(sample), room)
    held = tier.holds(uses(list(range(COUNT))))
    for sample in range(COUNT):
        found = tier.get(use(sample))
        assert held[sample] == (found is not None) == (sample % 2 == 0)
        assert found is None or (found == entry_of(sample)).all()
    # An entry that was made elsewhere is taken, once.
    assert [tier.put(use(5), entry_of(5)) for _ in range(2)] == [True, False]
    assert (tier.get(use(5)) == entry_of(5)).all()


@every_tier
def test_a_tier_keeps_no_more_than_its_budget(kind, tmp_path):
    tier = make_tier(kind, tmp_path, budget=1000)
    for sample in range(COUNT):
        kept = tier.room(use(sample), len(entry_of(sample))) is not None
        assert tier.put(use(sample), entry_of(sample)) == kept
    every = list(range(COUNT))
    held = tier.holds(uses(every))
    assert 0 < sizes_of(np.flatnonzero(held)).sum() <= 1000
    found = [sample for sample in every if tier.get(use(sample)) is not None]
    assert found == np.flatnonzero(held).tolist()


@pytest.mark.parametrize("kind", ["shared memory", "disk"])
def test_a_tier_says_which_share_it_will_serve(kind, tmp_path):
    tier = make_tier(kind, tmp_path)
    assert (tier.expected, tier.covered) == (1, COUNT)
    tier = make_tier(kind, tmp_path, budget=1000)
    every = list(range(COUNT))
    kept = [sample for sample in every if tier.room(use(sample), 64) is not None]
    assert (tier.expected, tier.covered) == (len(kept) / COUNT, len(kept))


def test_a_disk_is_expected_to_serve_what_faster_tiers_do_not(tmp_path):
    disks = [DiskTier(tmp_path / "a", layout(), covered) for covered in (0, 20, COUNT, None)]
    assert [disk.expected for disk in disks] == [1, 0.6, 0, None]
    assert [disk.covered for disk in disks] == [COUNT, COUNT, COUNT, None]


def test_entries_in_shared_memory_are_read_in_place():
    tier = SharedMemoryTier(layout())
    fill(tier, range(0, COUNT, 2))
    every = list(range(COUNT))
    wanted = np.arange(COUNT) % 4 != 2
    for each in (tier, copy.copy(tier)):  # the copy reads them for the first time
        found = each.in_place(uses(every), wanted)
        assert found is not None
        assert (found.starts >= 0).tolist() == [sample % 4 == 0 for sample in every]
        assert found.bytes == sum(len(entry_of(sample)) for sample in range(0, COUNT, 4))
        for sample in range(0, COUNT, 4):
            entry = entry_of(sample)
            assert (found.buffer[found.starts[sample] :][: len(entry)] == entry).all()


@pytest.mark.parametrize("part", [0, 1, 63])
def test_a_mark_without_all_of_its_bytes_is_not_served(part):
    """As a process on another processor may see an entry while it is written."""
    writer = SharedMemoryTier(layout())
    reader = copy.copy(writer)  # shares the memory, as a worker process does
    fill(writer, (3, 4))
    seen = reader.in_place(uses([3]), np.ones(1, bool))
    assert seen is not None
    torn = seen.buffer[seen.starts[0] :][: len(entry_of(3))]
    reader = copy.copy(writer)  # and has read nothing yet
    torn[part:] = 0
    assert reader.get(use(3)) is None
    found = reader.in_place(uses([3, 4]), np.ones(2, bool))
    assert found is not None
    assert (found.starts >= 0).tolist() == [False, True]
    torn[part:] = entry_of(3)[part:]  # now the other bytes arrive
    assert (reader.get(use(3)) == entry_of(3)).all()
    found = reader.in_place(uses([3, 4]), np.ones(2, bool))
    assert found is not None
    assert (found.starts >= 0).all()


def test_memory_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="cannot be shared"):
        SharedMemoryTier(EntryLayout(1, lambda s: np.full(len(s), 2**62), 2**63 - 1))


@pytest.mark.parametrize("policy", [NextUse(400), Lru(400)], ids=["next-use", "lru"])
def test_entries_come_and_go_under_many_threads(policy):
    tier = EvictingTier(policy)
    wrong: list[int] = []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for now in range(700):
            wanted = use(int(draw.integers(COUNT)), now)
            found = tier.get(wanted)
            if found is None:
                made = entry_of(wanted.sample)
                room = tier.room(wanted, len(made))
                if room is not None:
                    room[:] = made
                    tier.put(wanted, room)
            elif not (found == entry_of(wanted.sample)).all():
                wrong.append(wanted.sample)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert tier.evicted > 0
    held = tier.holds(uses(list(range(COUNT))))
    assert sizes_of(np.flatnonzero(held)).sum() == policy.bytes <= 400


def test_what_is_read_stays_whole_when_it_is_evicted():
    tier = EvictingTier(NextUse(200))
    tier.put(use(2, 9), entry_of(2))
    found = tier.get(use(2, 9))
    tier.put(use(5, 3), entry_of(5))
    assert tier.evicted == 1
    assert tier.get(use(2)) is None
    assert (found == entry_of(2)).all()


def test_a_disk_keeps_entries_over_a_restart(tmp_path):
    tier = DiskTier(tmp_path / "a", layout())
    other = DiskTier(tmp_path / "a", layout())  # of another process
    for sample in range(0, COUNT, 2):
        tier.put(use(sample), entry_of(sample))
        assert (other.get(use(sample)) == entry_of(sample)).all()
    del tier, other
    tier = DiskTier(tmp_path / "a", layout())
    assert tier.present == COUNT // 2
    for sample in range(COUNT):
        found = tier.get(use(sample))
        assert (found is None) == bool(sample % 2)
        if found is not None:
            assert (found == entry_of(sample)).all()


def test_a_smaller_disk_uses_what_a_larger_one_has(tmp_path):
    tier = DiskTier(tmp_path / "a", layout())
    fill(tier)
    small = DiskTier(tmp_path / "a", layout(budget=2000))
    served = [sample for sample in range(COUNT) if small.get(use(sample)) is not None]
    assert len(served) == small.layout.kept < COUNT


@pytest.mark.parametrize("harm", ["flip", "cut", "zeros"])
def test_damage_is_noticed_and_mended(tmp_path, harm, caplog):
    tier = DiskTier(tmp_path / "a", layout())
    fill(tier)
    path = tmp_path / "a" / "entries"
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[100] ^= 4
    elif harm == "cut":
        content = content[:-30]
    else:
        content[1000:3000] = bytes(2000)
    path.write_bytes(content)
    found = {sample: tier.get(use(sample)) for sample in range(COUNT)}
    assert caplog.text.count("is damaged") == sum(entry is None for entry in found.values()) > 0
    assert all((e == entry_of(s)).all() for s, e in found.items() if e is not None)
    fill(tier)
    assert all((tier.get(use(sample)) == entry_of(sample)).all() for sample in found)


@pytest.mark.parametrize("bit", [0, 32, 63])
def test_a_bit_of_what_is_noted_of_an_entry_is_noticed(tmp_path, bit, caplog):
    tier = DiskTier(tmp_path / "a", layout())
    tier.put(use(9), entry_of(9))
    path = tmp_path / "a" / "words"
    words = bytearray(path.read_bytes())
    words[8 * use(9).position + bit // 8] ^= 1 << bit % 8
    path.write_bytes(words)
    tier = DiskTier(tmp_path / "a", layout())
    assert tier.get(use(9)) is None
    assert caplog.text.count("is damaged") == 1


def test_a_disk_that_takes_no_more_is_said_once_and_what_is_there_still_serves(tmp_path, caplog):
    tier = DiskTier(tmp_path / "a", layout())
    tier.put(use(1), entry_of(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # no file may be written
    try:
        fill(tier, range(2, 9))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(caplog.records) == 1
    assert "File too large" in caplog.text
    assert tier.room(use(10), 64) is None
    assert (tier.get(use(1)) == entry_of(1)).all()
    assert tier.get(use(2)) is None


def test_a_tier_that_is_gone_leaves_no_open_file(tmp_path):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    tier = DiskTier(tmp_path / "a", layout())
    tier.put(use(1), entry_of(1))
    del tier
    gc.collect()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # others open files for a while


def test_room_is_made_by_removing_what_was_used_longest_ago(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folders = [open_folder(tmp_path, {"name": name}, None)[0] for name in ("old", "used", "new")]
    for number, folder in enumerate(folders):
        (folder / "entries").write_bytes(bytes(100_000))
        os.utime(folder, (number, number))
    (tmp_path / "mine").mkdir()  # of somebody else: no cache
    users = DiskTier(folders[0], layout())
    os.utime(folders[0], (0, 0))
    own, room = open_folder(tmp_path, {"name": "own"}, 250_000)
    assert room == pytest.approx(150_000, abs=10_000)
    # The oldest is used by somebody, so the next ones go.
    assert {path.name for path in tmp_path.iterdir()} == {"mine", folders[0].name, own.name}
    assert users.present == 0


def open_disk(root: Path, limit: int | None = None) -> DiskTier:
    folder, room = open_folder(root, {}, limit)
    return DiskTier(folder, layout(room))


@pytest.mark.parametrize("there", ["file", "file/below", "full/entries", "full/words"])
def test_a_folder_that_cannot_be_used_keeps_nothing_and_says_so_once(tmp_path, caplog, there):
    (tmp_path / "file").write_text("")
    full = tmp_path / "full"
    full.mkdir()
    if there.startswith("full"):
        folder, _ = open_folder(full, {}, None)
        tier = DiskTier(folder, layout())
        (folder / there.removeprefix("full/")).unlink()
        (folder / there.removeprefix("full/")).mkdir()
        del tier
        root = full
    else:
        root = tmp_path / there
    tier = open_disk(root)
    other = pickle.loads(pickle.dumps(tier))  # as a worker process has it
    for each in (tier, other):
        assert each.room(use(1), 64) is None
        assert not each.put(use(1), entry_of(1))
        assert each.get(use(1)) is None
        assert not each.holds(uses(list(range(COUNT)))).any()
        assert each.present == 0
        assert each.expected == 0
    assert len(caplog.records) == 1
    assert "give CacheSpec(disk=...) another folder" in caplog.text


def test_a_limit_below_one_entry_is_said(tmp_path, caplog):
    tier = open_disk(tmp_path, 10)
    assert tier.room(use(1), 64) is None
    assert caplog.text.count("there is no room for a single entry") == 1


def test_equal_members_make_equal_entries_whatever_the_memory_held():
    members = [memoryview(b"image"), memoryview(b"text")]
    entries = [np.full(24, filler, np.uint8) for filler in (0, 255)]
    for entry in entries:
        fill_members(entry, members)[:] = 7
    assert entries[0].tobytes() == entries[1].tobytes()
