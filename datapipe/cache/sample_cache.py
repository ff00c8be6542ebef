"""Cache of samples as they are before anything random is done to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from datapipe.array_types import Bools, Int64, UInt8
from datapipe.cache.disk import DiskTier, open_disk
from datapipe.cache.entries import EntrySizes, fill_members
from datapipe.cache.layout import EntryLayout, Use, Uses
from datapipe.cache.memory import EvictedEntries, FixedEntries
from datapipe.cache.next_use import AHEAD, Lru, NextUse, expected_hits
from datapipe.cache.spec import CacheSpec
from datapipe.cache.stats import TierCounter, TierStats
from datapipe.decode.transform import ImageTransform
from datapipe.index.dataset import Dataset
from datapipe.progress import readable_size

KEY = 0x6361636865
"""Seed of the draw of samples that a fixed part keeps: equal in all ranks and processes."""

_NO_LIMIT = 1 << 62
_LOOKED_AT = 1000  # samples, for the size of all
_VERSION = 1


class SampleCache:
    """Tiers of one loader.

    Args:
        kept: transform of images that are kept decoded; None keeps encoded ones.
        device: layout of the images that stay on the device; None for none.

    Attributes:
        memory, disk: tiers; None where there is none.
        texts: texts of the samples whose images stay on the device.
        expected: share of reads that each tier will serve once it is filled; None if not known.
    """

    def __init__(
        self,
        spec: CacheSpec,
        dataset: Dataset,
        *,
        images: bool,
        kept: ImageTransform | None,
        policy: Literal["pin", "next-use", "lru"],
        device: EntryLayout | None = None,
        world_size: int = 1,
    ) -> None:
        self.keep_decoded = kept is not None
        self.policy = policy
        self.sizes = EntrySizes(dataset.columns, kept, images=images)
        self.counter = TierCounter()
        self.memory: FixedEntries | EvictedEntries | None = None
        self.disk: DiskTier | None = None
        self.texts: FixedEntries | None = None
        count = self._samples = len(dataset)
        on_device = 0
        if device is not None:
            on_device = device.kept
            texts = EntrySizes(dataset.columns, None, images=False)
            self.texts = FixedEntries(EntryLayout(count, texts, _NO_LIMIT, KEY, stop=on_device))
        if spec.memory is not None:
            budget = int(spec.memory)
            if policy == "pin":
                layout = EntryLayout(count, self.sizes, budget, KEY, first=on_device)
                self.memory = FixedEntries(layout)
            else:
                self.memory = EvictedEntries((NextUse if policy == "next-use" else Lru)(budget))
        if spec.disk is not None:
            about = {
                "dataset": dataset.fingerprint,
                "samples": count,
                "keep": self._form,
                # All that the bytes of an entry depend on beside the dataset.
                "what": f"images={images}" if kept is None else repr(kept.spec),
                "version": _VERSION,
            }
            self.disk = open_disk(
                Path(spec.disk),
                about,
                None if spec.disk_size is None else int(spec.disk_size),
                lambda budget: EntryLayout(count, self.sizes, budget, KEY),
            )
        self.expected = self._expect(on_device, world_size)

    @property
    def _form(self) -> str:
        return "decoded" if self.keep_decoded else "encoded"

    def _expect(self, before: int, world_size: int) -> dict[str, float | None]:
        """Return the expected share by tier; the device serves samples up to `before`."""
        count = max(self._samples, 1)
        expected: dict[str, float | None] = {}
        if isinstance(self.memory, FixedEntries):
            before += self.memory.layout.kept
            expected["memory"] = self.memory.layout.kept / count
        elif self.memory is not None:
            spread = np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(np.int64)
            mean = float(self.sizes(spread).mean())
            part = min(1.0, self.memory.budget / max(mean * count, 1.0))
            name: Literal["next-use", "lru"] = "lru" if self.policy == "lru" else "next-use"
            expected["memory"] = expected_hits(name, round(part, 3), world_size, AHEAD)
        if self.disk is not None:
            rest = max(0, self.disk.layout.kept - before) / count
            # What memory holds of it comes and goes.
            expected["disk"] = rest if self.memory is None or self.policy == "pin" else None
        return expected

    def holds(self, samples: Int64) -> Bools:
        """Return whether a tier has the entry of each sample just now: bool [n]."""
        held = np.zeros(len(samples), bool)
        for tier in (self.memory, self.disk):
            if tier is not None:
                held |= tier.holds(samples)
        return held

    def holds_text(self, samples: Int64) -> Bools:
        """Return whether the text of each sample with images on the device is here: bool [n]."""
        return np.zeros(len(samples), bool) if self.texts is None else self.texts.holds(samples)

    @property
    def buffer(self) -> UInt8 | None:
        """The buffer of all entries in memory; None if each entry has its own."""
        return self.memory.data if isinstance(self.memory, FixedEntries) else None

    def uses(self, samples: Int64, next_use: Int64 | None = None) -> Uses:
        """Return the uses of the samples of a batch, for the methods below."""

        def indices(tier: FixedEntries | DiskTier | EvictedEntries | None) -> Int64:
            if tier is None or isinstance(tier, EvictedEntries):
                return np.full(len(samples), -1, np.int64)
            return tier.layout.places(samples)

        following = np.zeros_like(samples) if next_use is None else next_use
        return Uses(samples, following, *map(indices, (self.memory, self.disk, self.texts)))

    def read_offsets(self, indices: Int64) -> Int64:
        """Return the offset in `buffer` of each entry, -1 for one that is not there: int64 [n].

        Entries that are there count as read.
        """
        assert isinstance(self.memory, FixedEntries)
        starts, size = self.memory.entries(indices)
        if number := int(np.count_nonzero(starts >= 0)):
            self.counter.count("memory", hits=number, bytes=size)
        return starts

    def find(self, use: Use) -> UInt8 | None:
        """Return the entry of a sample from the nearest tier that has it, for reading."""
        if self.memory is not None:
            entry = self.memory.find(use)
            if entry is not None:
                self.counter.count("memory", hits=1, bytes=len(entry))
                return entry
        if self.disk is not None:
            entry = self.disk.find(use)
            if entry is not None:
                self.counter.count("disk", hits=1, bytes=len(entry))
                self._keep_in_memory(use, entry)
                return entry
        self.counter.count("source", hits=1)
        return None

    def room(self, use: Use, size: int) -> UInt8 | None:
        """Return memory for the entry of a sample; None if no tier keeps it."""
        if self.memory is not None:
            room = self.memory.room(use, size)
            if room is not None:
                return room
        if self.disk is not None and self.disk.wants(use):
            return np.empty(size, np.uint8)
        return None

    def keep(self, use: Use, entry: UInt8) -> None:
        """Keep an entry that was written to the memory that `room` returned."""
        if self.disk is not None and self.disk.wants(use):
            self.disk.keep(use, entry)
            self.counter.count("disk", kept=1)
        self._keep_in_memory(use, entry)

    def find_text(self, use: Use) -> UInt8 | None:
        """Return the text of a sample whose images are on the device, if it is here."""
        return None if self.texts is None else self.texts.find(use._replace(memory=use.text))

    def keep_text(self, use: Use, contents: Sequence[memoryview]) -> None:
        """Keep the text of a sample whose images are on the device."""
        if self.texts is not None:
            here = use._replace(memory=use.text)
            room = self.texts.room(here, sum(map(len, contents)))
            if room is not None:
                fill_members(room, contents)
                self.texts.keep(here, room)

    def stats(self) -> dict[str, TierStats]:
        """Return the figures of each tier, and of the source."""
        stats = {}
        if self.memory is not None:
            expected = self.expected["memory"]
            evicted = self.memory.evicted
            stats["memory"] = self.counter.stats("memory", evicted=evicted, expected=expected)
        if self.disk is not None:
            stats["disk"] = self.counter.stats("disk", expected=self.expected["disk"])
        return stats | {"source": self.counter.stats("source")}

    def describe(self) -> list[str]:
        """Return a phrase about each tier, for a log."""
        parts = []
        if isinstance(self.memory, FixedEntries):
            parts.append(f"{self._part(self.memory.layout)} in memory, a fixed part")
        elif self.memory is not None:
            use = "are used next" if self.policy == "next-use" else "were used last"
            parts.append(f"samples that {use} {self._form} in memory")
        if self.disk is not None:
            there = f"{self.disk.folder}, where {self.disk.present:,} are"
            parts.append(f"{self._part(self.disk.layout)} in {there}")
        return [
            part if share is None else f"{part}, which will serve {share:.1%} of reads"
            for part, share in zip(parts, self.expected.values(), strict=True)
        ]

    def _part(self, layout: EntryLayout) -> str:
        samples = f"{layout.kept:,} of {self._samples:,} samples"
        return f"{samples} ({readable_size(layout.bytes)}) {self._form}"

    def _keep_in_memory(self, use: Use, entry: UInt8) -> None:
        if self.memory is not None and self.memory.wants(use, len(entry)):
            self.memory.keep(use, entry)
            self.counter.count("memory", kept=1)
