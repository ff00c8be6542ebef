"""Share of its reads that a cache serves, epoch after epoch, by the policies of loaders."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import machine, show, write_json
from datapipe.array_types import Int64
from datapipe.cache.layout import EntryLayout
from datapipe.cache.next_use import NextUse, NextUses
from datapipe.cache.tier import Policy
from datapipe.loader.schedule.block_cache import PlannedBlocks
from datapipe.plan.epoch import EpochPlan, Source
from datapipe.plan.options import PlanOptions

_SAMPLES = 80_000
_EPOCHS, _WARM = 16, 8
_BATCH = 10


class Lru:
    """Policy that keeps the samples that were used last, up to `budget` bytes."""

    keeps = "samples that were used last"
    plans_ahead = False

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._kept: OrderedDict[int, int] = OrderedDict()  # bytes by sample, used longest ago first

    def __contains__(self, sample: int) -> bool:
        return sample in self._kept

    def use(self, sample: int, next_use: int) -> None:
        self._kept.move_to_end(sample)

    def offer(self, sample: int, size: int, next_use: int) -> tuple[bool, list[int]]:
        if not self.would_keep(sample, size, next_use):
            return False, []
        going = []
        while self.bytes + size > self.budget:
            other, freed = self._kept.popitem(last=False)
            self.bytes -= freed
            going.append(other)
        self._kept[sample] = size
        self.bytes += size
        return True, going

    def would_keep(self, sample: int, size: int, next_use: int) -> bool:
        return size <= self.budget and sample not in self._kept


def _blocks(epoch: int) -> PlannedBlocks:
    options = PlanOptions(shuffle=True, seed=0, batch_size=_BATCH)
    plan = EpochPlan(Source.of_dataset(_SAMPLES, options), options, epoch)
    return PlannedBlocks(plan, None, ahead=False)


def _order(epoch: int) -> Int64:
    blocks = _blocks(epoch)
    return np.concatenate([blocks(block, 0).samples for block in range(blocks.count)])


def hits(path: Path | None) -> None:
    """Print shares of reads that were served, after the first epochs, and write them as JSON."""
    rows: list[dict[str, Any]] = []
    cases = [("one reader", part, 1) for part in (0.25, 0.5, 0.75)]
    cases += [(f"{ranks} ranks, each a part", 1 / ranks, ranks) for ranks in (4, 8)]
    for what, part, ranks in cases:
        kept = int(part * _SAMPLES)
        layout = EntryLayout(_SAMPLES, lambda s: np.full(len(s), 64), kept * 64)
        pinned = float((layout.places(_order(1)[::ranks]) >= 0).mean())
        served = {"lru": _run(Lru(kept), ranks), "next-use": _run(NextUse(kept), ranks)}
        rows.append({"what": what, "part": part, "pin": pinned, **served})
    show(f"Share of reads that the cache serves; {_SAMPLES:,} samples, reshuffled each epoch", rows)
    write_json(path, {"title": "cache hits", "where": machine(cache="none"), "rows": rows})


def _run(policy: Policy, ranks: int) -> float:
    """Return the share that one rank is served in the epochs after the first ones."""
    share = ranks * _BATCH
    uses = NextUses(_blocks, samples=_SAMPLES, rank=0, world_size=ranks, share=share)
    mine = np.flatnonzero(np.arange(_SAMPLES) % share % ranks == 0)
    served = 0
    for epoch in range(_EPOCHS):
        samples = _order(epoch)[mine]
        uses.of(samples[:1], epoch)
        uses.wait()
        for sample, then in zip(samples.tolist(), uses.of(samples, epoch), strict=True):
            there = sample in policy
            if there:
                policy.use(sample, then)
            else:
                policy.offer(sample, 1, then)
            served += there and epoch >= _WARM
    return served / ((_EPOCHS - _WARM) * len(mine))
