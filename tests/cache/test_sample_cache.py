"""A cache asks its tiers one after the other, and counts what each of them serves."""

import numpy as np

from datapipe.cache.entries import EntrySizes
from datapipe.cache.evicting import EvictingTier
from datapipe.cache.layout import EntryLayout
from datapipe.cache.memory import SharedMemoryTier
from datapipe.cache.next_use import NextUse
from datapipe.cache.sample_cache import SampleCache
from datapipe.cache.tier import Tier

COUNT, SIZE = 20, 64


class Sizes(EntrySizes):
    """Sizes that need no dataset."""

    form = "decoded"

    def __init__(self): ...

    def __call__(self, samples):
        return np.full(len(samples), SIZE)


class DictTier(Tier):
    """Tier in a dictionary: the least that one has to do."""

    def __init__(self, name):
        self.name = name
        self.entries = {}

    def describe(self, form):
        return f"everything {form} in {self.name}"

    def holds(self, uses):
        return np.array([sample in self.entries for sample in uses.samples.tolist()], bool)

    def get(self, use):
        return self.entries.get(use.sample)

    def room(self, use, size):
        return np.empty(size, np.uint8)

    def put(self, use, entry):
        self.entries[use.sample] = entry
        return True


def make_cache(*tiers):
    return SampleCache(tiers, samples=COUNT, sizes=Sizes())


def use(cache, sample, next_use=0):
    return cache.uses(np.array([sample]), np.array([next_use]))[0]


def entry_of(sample):
    return np.full(SIZE, sample, np.uint8)


def put(cache, samples):
    for sample in samples:
        cache.put(use(cache, sample, sample), entry_of(sample))


def test_an_entry_of_a_slower_tier_goes_into_the_faster_ones_alone():
    tiers = [DictTier(name) for name in ("fast", "middle", "slow", "slowest")]
    cache = make_cache(*tiers)
    for tier in tiers[2:]:
        tier.put(use(cache, 3), entry_of(3))
    cache.get(use(cache, 3))
    stats = cache.stats()
    assert [stats[tier.name].kept for tier in tiers] == [1, 1, 0, 0]
    assert [stats[tier.name].hits for tier in tiers] == [0, 0, 1, 0]
    assert all(3 in tier.entries for tier in tiers)


def test_a_cache_holds_what_any_of_its_tiers_holds():
    tiers = DictTier("fast"), DictTier("slow")
    cache = make_cache(*tiers)
    for sample, tier in enumerate(tiers):
        tier.put(use(cache, sample), entry_of(sample))
    assert cache.holds(np.arange(3)).tolist() == [True, True, False]
    assert not make_cache().holds(np.arange(3)).any()


def test_room_is_in_the_fastest_tier_that_keeps_a_sample():
    fixed = SharedMemoryTier(EntryLayout(COUNT, Sizes(), 10 * SIZE))
    cache = make_cache(fixed, DictTier("slow"))
    for sample in range(COUNT):
        room = cache.room(use(cache, sample), SIZE)
        room[:] = sample
        cache.put(use(cache, sample), room)
    assert [tier.kept for tier in cache.stats().values()] == [10, COUNT, 0]
    found = list(cache.in_place(cache.uses(np.arange(COUNT)), np.ones(COUNT, bool)))
    assert [int((each.starts >= 0).sum()) for each in found] == [10]
    assert cache.stats()["memory"].hits == 10
    for sample in range(COUNT):
        assert (cache.get(use(cache, sample)) == entry_of(sample)).all()
    assert [tier.hits for tier in cache.stats().values()] == [20, 10, 0]
    assert [tier.bytes for tier in cache.stats().values()] == [20 * SIZE, 10 * SIZE, 0]


def test_an_entry_in_place_in_two_tiers_is_read_once():
    tiers = [SharedMemoryTier(EntryLayout(COUNT, Sizes(), n * SIZE)) for n in (5, 15)]
    cache = make_cache(*tiers)
    put(cache, range(COUNT))
    found = list(cache.in_place(cache.uses(np.arange(COUNT)), np.ones(COUNT, bool)))
    assert [int((each.starts >= 0).sum()) for each in found] == [5, 10]


def test_uses_are_planned_ahead_and_evictions_counted_if_a_tier_needs_them():
    cache = make_cache(DictTier("a"), EvictingTier(NextUse(4 * SIZE)))
    assert cache.plans_ahead
    put(cache, range(COUNT - 1, -1, -1))
    assert cache.stats()["memory"].evicted == COUNT - 4
    assert not make_cache(DictTier("a")).plans_ahead


def test_what_each_tier_keeps_is_said_with_what_it_will_serve():
    fixed = SharedMemoryTier(EntryLayout(COUNT, Sizes(), 10 * SIZE))
    assert make_cache(DictTier("a"), fixed).describe() == [
        "everything decoded in a",
        "10 of 20 samples (640 B) decoded in memory, a fixed part, which will serve 50.0% of reads",
    ]
