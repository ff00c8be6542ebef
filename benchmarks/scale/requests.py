"""Requests to storage by kind of shuffle: spans of shards that the ranks of a step read."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from benchmarks.common import Row
from benchmarks.scale.data import MEMBER_BYTES, SHARD
from datapipe.array_types import Int64
from datapipe.index.rows import Member
from datapipe.loader.schedule.block_cache import PlannedBlocks
from datapipe.plan import EpochPlan, PlanOptions, Position, Sizes, Source, Step, walk
from datapipe.plan.options import Shuffle
from datapipe.store.remote import join

CAPACITY = 8192
RATE = 200  # samples a second of a rank
OF_MACHINE = 8  # ranks
_STEPS = 2
_LOOKED_AT = 64  # ranks of a step whose spans are joined
_ORDERS: dict[str, Shuffle] = {"True": True, '"shards"': "shards", "False": False}


def requests(samples: int, worlds: list[int]) -> Iterator[Row]:
    """Yield what storage is asked for, by the kind of shuffle and the number of ranks.

    A rank joins neighbours of its step, as it does for a dataset behind a URL.
    """
    shards = np.full(-(-samples // SHARD), SHARD, np.int64)
    shards[-1] = samples - SHARD * (len(shards) - 1)
    for name, shuffle in _ORDERS.items():
        for world in worlds:
            options = PlanOptions(shuffle=shuffle, seed=0, pack=CAPACITY, group=max(64, world))
            source = Source.of_dataset(samples, options, measure=_sizes, shards=shards)
            blocks = PlannedBlocks(EpochPlan(source, options, 0), None, ahead=False)
            steps = list(islice(walk(blocks, Position(0), share=world), _STEPS))
            yield _row(name, world, steps)


def _row(name: str, world: int, steps: list[Step]) -> Row:
    looked_at = min(world, _LOOKED_AT)
    asked = spans = read = 0
    for step in steps:
        for rank in range(looked_at):
            share = step.share(units_per_rank=1, rank=rank, world_size=world)
            found = join([_members(sample) for sample in share.units.samples.tolist()])
            asked += len(share.units.samples)
            spans += len(found)
            read += sum(span.stop - span.start for span in found)
    whole = [step.units.samples // SHARD for step in steps]
    of_machine = [
        step.units.between(0, min(OF_MACHINE, len(step.units))).samples // SHARD for step in steps
    ]
    return {
        "shuffle": name,
        "ranks": world,
        "requests a sample": round(spans / asked, 3),
        "requests/s, all ranks": round(spans / asked * RATE * world),
        "GB/s, all ranks": round(read / asked * RATE * world / 1e9, 1),
        "shards of a step, all ranks": round(np.mean([len(np.unique(s)) for s in whole])),
        f"of {OF_MACHINE} ranks": round(np.mean([len(np.unique(s)) for s in of_machine])),
    }


def _members(sample: int) -> tuple[int, list[Member]]:
    shard, place = divmod(sample, SHARD)
    return shard, [Member("jpg", place * MEMBER_BYTES, MEMBER_BYTES - 1024, 0)]


def _sizes(samples: Int64) -> Sizes:
    """Return sizes as those of `benchmarks.billion`, with an image of 144 tokens each."""
    drawn = np.exp(np.random.default_rng(0).normal(5.5, 1.2, 1 << 20))
    text = np.clip(drawn, 10, CAPACITY - 144).astype(np.int64)[samples % (1 << 20)]
    one = np.ones_like(text)
    return Sizes(tokens=text + 144, labels=text // 2, images=one, vision=144 * one, rows=one)
