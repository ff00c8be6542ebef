"""Tiers keep entries as they were given, in memory and on disk, whatever happens in between."""

import copy
import gc
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.cache.hits import Lru
from datapipe.cache.disk import DiskTier, open_folder
from datapipe.cache.entries import fill_members
from datapipe.cache.layout import EntryLayout, sample_draw
from datapipe.cache.memory import EvictingTier, SharedMemoryTier
from datapipe.cache.next_use import NextUse
from datapipe.cache.sample_cache import SampleCache
from datapipe.cache.tier import Use, Uses
from tests.waiting import wait_until

COUNT = 50


def sizes_of(samples):
    return 64 * (1 + samples % 3)


def entry_of(sample):
    size = int(sizes_of(np.array([sample]))[0])
    return np.random.default_rng(sample).integers(0, 256, size, np.uint8)


def layout(budget=1 << 20):
    return EntryLayout(COUNT, sizes_of, budget)


def use(sample, next_use=0):
    return Use(sample, int(sample_draw(COUNT).inverse([sample])[0]), next_use)


def uses(samples):
    numbers = np.array(samples, np.int64)
    return Uses(numbers, sample_draw(COUNT).inverse(numbers), np.zeros_like(numbers))


def fill(tier, samples=range(COUNT)):
    for sample in samples:
        tier.put(use(sample), entry_of(sample))


@pytest.mark.parametrize("kind", ["shared memory", "next-use", "lru", "disk"])
def test_a_tier_gives_back_what_was_put(kind, tmp_path):
    tier = {
        "shared memory": lambda: SharedMemoryTier(layout()),
        "next-use": lambda: EvictingTier(NextUse(1 << 20)),
        "lru": lambda: EvictingTier(Lru(1 << 20)),
        "disk": lambda: DiskTier(tmp_path, layout()),
    }[kind]()
    for sample in range(0, COUNT, 2):
        entry = entry_of(sample)
        room = tier.room(use(sample), len(entry))
        room[:] = entry
        assert tier.get(use(sample)) is None  # not before it is whole
        assert tier.put(use(sample), room)
    held = tier.holds(uses(range(COUNT)))
    for sample in range(COUNT):
        found = tier.get(use(sample))
        assert held[sample] == (found is not None) == (sample % 2 == 0)
        assert found is None or (found == entry_of(sample)).all()
    # An entry that was made elsewhere is taken, once.
    assert [tier.put(use(5), entry_of(5)) for _ in range(2)] == [True, False]
    assert (tier.get(use(5)) == entry_of(5)).all()


def test_entries_in_shared_memory_are_read_in_place():
    tier = SharedMemoryTier(layout())
    fill(tier, range(0, COUNT, 2))
    wanted = np.arange(COUNT) % 4 != 2
    for each in (tier, copy.copy(tier)):  # the copy reads them for the first time
        found = each.in_place(uses(range(COUNT)), wanted)
        assert (found.starts >= 0).tolist() == [sample % 4 == 0 for sample in range(COUNT)]
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
    torn = seen.buffer[seen.starts[0] :][: len(entry_of(3))]
    reader = copy.copy(writer)  # and has read nothing yet
    torn[part:] = 0
    assert reader.get(use(3)) is None
    found = reader.in_place(uses([3, 4]), np.ones(2, bool))
    assert (found.starts >= 0).tolist() == [False, True]
    torn[part:] = entry_of(3)[part:]  # now the other bytes arrive
    assert (reader.get(use(3)) == entry_of(3)).all()
    assert (reader.in_place(uses([3, 4]), np.ones(2, bool)).starts >= 0).all()


def test_memory_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="cannot be shared"):
        SharedMemoryTier(EntryLayout(1, lambda s: np.full(len(s), 2**62), 2**63 - 1))


@pytest.mark.parametrize("policy", [NextUse(400), Lru(400)], ids=["next-use", "lru"])
def test_entries_come_and_go_under_many_threads(policy):
    tier = EvictingTier(policy)
    wrong = []

    def work(seed):
        draw = np.random.default_rng(seed)
        for now in range(700):
            wanted = use(int(draw.integers(COUNT)), now)
            made, found = entry_of(wanted.sample), tier.get(wanted)
            if found is not None:
                wrong.extend(np.flatnonzero(found != made))
            elif (room := tier.room(wanted, len(made))) is not None:
                room[:] = made
                tier.put(wanted, room)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert wrong == []
    assert tier.evicted > 0
    held = tier.holds(uses(range(COUNT)))
    assert sizes_of(np.flatnonzero(held)).sum() == policy.bytes <= 400


def test_what_is_read_stays_whole_when_it_is_evicted_and_evictions_are_counted():
    sizes = SimpleNamespace(form="decoded")
    cache = SampleCache([EvictingTier(NextUse(200))], samples=COUNT, sizes=sizes)
    assert cache.plans_ahead
    cache.put(use(2, 9), entry_of(2))
    found = cache.get(use(2, 9))
    cache.put(use(5, 3), entry_of(5))
    assert cache.stats()["memory"].evicted == 1
    assert cache.get(use(2)) is None
    assert (found == entry_of(2)).all()


def test_a_smaller_disk_uses_what_a_larger_one_has(tmp_path):
    fill(DiskTier(tmp_path / "a", layout()))
    small = DiskTier(tmp_path / "a", layout(budget=2000))
    served = [sample for sample in range(COUNT) if small.get(use(sample)) is not None]
    assert small.present == len(served) == small.layout.kept < COUNT


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


def test_equal_members_make_equal_entries_whatever_the_memory_held():
    members = [memoryview(b"image"), memoryview(b"text")]
    entries = [np.full(24, filler, np.uint8) for filler in (0, 255)]
    for entry in entries:
        fill_members(entry, members)[:] = 7
    assert entries[0].tobytes() == entries[1].tobytes()
