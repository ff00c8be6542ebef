"""Protocols: tiers of a cache, which are asked about uses of samples, and eviction policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from datapipe.array_types import Bools, Int64, UInt8
from datapipe.cache.entries import EntrySizes
from datapipe.cache.spec import CacheSpec
from datapipe.index.dataset import Dataset


class Use(NamedTuple):
    """Use of one sample: its position in `sample_draw`, and its next use, where that is planned."""

    sample: int
    position: int
    next: int = 0


@dataclass(frozen=True, slots=True)
class Uses:
    """Uses of the samples of a batch: int64 [n] each, found together in little more than one."""

    samples: Int64
    positions: Int64
    next: Int64

    def __getitem__(self, slot: int) -> Use:
        return Use(int(self.samples[slot]), int(self.positions[slot]), int(self.next[slot]))


class InPlace(NamedTuple):
    """Entries that are read where they are."""

    buffer: UInt8
    starts: Int64  # int64 [n], offset in the buffer of the entry of each sample, -1 for none
    bytes: int  # of these entries


class Tier(Protocol):
    """Entries of some samples, for all threads of a process. Tiers derive from it."""

    name: str  # in figures
    plans_ahead: bool = False  # whether it needs the next use of each sample
    evicted: int = 0  # number of entries that made room for others
    # Share of reads that it will serve once it is filled; None if that is not known
    expected: float | None = None
    # Number of samples, from the start of `sample_draw`, that it and faster tiers keep for good;
    # None if entries come and go
    covered: int | None = None

    def describe(self, form: str) -> str:
        """Return a phrase about what it keeps, for the log; `form` is that of the entries."""

    def holds(self, uses: Uses) -> Bools:
        """Return whether the entry of each sample seems to be there just now: bool [n]."""

    def in_place(self, uses: Uses, wanted: Bools) -> InPlace | None:
        """Return the wanted entries that are there; None if each entry is in memory of its own."""
        return None

    def get(self, use: Use) -> UInt8 | None:
        """Return the entry of a sample, if it is there and whole, in memory that is writable."""

    def room(self, use: Use, size: int) -> UInt8 | None:
        """Return memory for an entry of `size` bytes; None if it would not be kept."""

    def put(self, use: Use, entry: UInt8) -> bool:
        """Keep an entry, which may be in the memory that `room` returned.

        Return False if it is not kept, or already there.
        """


class Policy(Protocol):
    """Choice of the entries that a tier keeps within a budget."""

    keeps: str  # phrase about the samples that it keeps, for the log
    plans_ahead: bool  # whether it needs the next use of each sample

    def __contains__(self, sample: int) -> bool: ...

    def use(self, sample: int, next_use: int) -> None:
        """Record the use of a kept sample, and its next use; it may be dropped then."""

    def offer(self, sample: int, size: int, next_use: int) -> tuple[bool, list[int]]:
        """Return whether a new sample is kept, and the samples that are evicted for it."""

    def would_keep(self, sample: int, size: int, next_use: int) -> bool:
        """Return whether the sample would be kept if it were offered now."""


@dataclass(frozen=True, kw_only=True)
class TierRequest:
    """Facts from which the tiers of a loader are made."""

    spec: CacheSpec
    dataset: Dataset
    sizes: EntrySizes
    policy: Callable[[int], Policy] | None  # of eviction, by its budget; None keeps a fixed part
    ranks: int  # that share an epoch
    covered: int | None  # by faster tiers, as `Tier` has it
