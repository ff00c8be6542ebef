"""Plan of an epoch: blocks of ordered samples, made into units and laid out by cost.

A block's units are a pure function of (source, options, epoch, block), so resuming plans one block
again, and ranks may share what one of them has planned. They do not depend on workers or caches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Int64
from datapipe.errors import PlanError
from datapipe.plan.batching import cut_batches
from datapipe.plan.groups import lay_out, text_cost
from datapipe.plan.options import PlanOptions
from datapipe.plan.order import Permutation, ShardOrder
from datapipe.plan.packing import pack_units
from datapipe.plan.rng import derive
from datapipe.plan.units import Sizes, Units

_ORDER, _BATCHES, _LAYOUT = 1, 2, 3  # purposes of derived keys


@dataclass(frozen=True, kw_only=True)
class Source:
    """Samples of a plan.

    Attributes:
        count: number of samples that take part.
        select: maps indices among those that take part to sample numbers; None if all do.
        measure: maps sample numbers to sizes; None if no tokens have been counted.
        shards: int64, samples of each shard that take part; for `shuffle="shards"`.
        draw: for a source that orders itself, as a mixture does: returns the samples at the
            positions `start` to `stop` of an epoch, as `Units.samples` has them. `select` and
            `shards` are not used then.
        bounds: returns positions in an epoch at which a block has to begin, ascending from 0 to the
            number of positions; None for 0 and `count`.

    Examples:
        >>> everything = Source(count=1000)
        >>> odd_ones = Source(count=500, select=lambda places: 2 * places + 1)
    """

    count: int
    select: Callable[[Int64], Int64] | None = None
    measure: Callable[[Int64], Sizes] | None = None
    shards: Int64 | None = None
    draw: Callable[[int, int, int], Int64] | None = None
    bounds: Callable[[int], list[int]] | None = None


class EpochPlan:
    """Plan of one epoch.

    Attributes:
        edges: int64 [blocks + 1], position of the first sample of each block, and their number.

    Raises:
        PlanError: the options need what the source does not know.

    Examples:
        >>> from datapipe.plan import EpochPlan, PlanOptions, Source
        >>> options = PlanOptions(shuffle=True, seed=0, batch_size=None)
        >>> plan = EpochPlan(Source(count=100), options, epoch=0)
        >>> sorted(plan.samples(0, 100).tolist()) == list(range(100))
        True
    """

    def __init__(self, source: Source, options: PlanOptions, epoch: int) -> None:
        if options.needs_lengths and source.measure is None:
            raise PlanError(
                f"units of a {options.unit} need the number of tokens of every sample, and none "
                "have been counted; give text=TextSpec(tokenizer=..., template=...)"
            )
        self.source = source
        self.options = options
        self.epoch = epoch
        self._key = derive(options.seed, epoch)
        self._order = self._make_order(derive(options.seed, epoch, _ORDER))
        self.edges = self._make_edges()

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return len(self.edges) - 1

    def samples(self, start: int, stop: int) -> Int64:
        """Return the samples at these positions, as `Units.samples` has them: int64 [n]."""
        if self.source.draw is not None:
            return self.source.draw(self.epoch, start, stop)
        chosen = np.arange(start, stop, dtype=np.int64)
        if self._order is not None:
            chosen = self._order(chosen)
        return self.source.select(chosen) if self.source.select else chosen

    def form(self, block: int) -> Units:
        """Return the units of a block, before they are laid out."""
        options = self.options
        samples = self.samples(*self.edges[block : block + 2].tolist())
        sizes = self.source.measure(samples) if self.source.measure else None
        if options.unit == "sample":
            return Units(samples, np.arange(len(samples) + 1, dtype=np.int64), sizes)
        assert sizes is not None  # checked above
        if options.unit == "pack":
            assert options.pack is not None
            order, offsets = pack_units(
                round_up(sizes.tokens, options.pack_multiple_of),
                options.pack,
                window=options.pack_window,
                images=sizes.rows if options.max_images is None else sizes.images,
                max_images=options.max_images or options.max_patches,
                max_samples=options.max_samples,
            )
        else:
            order, offsets = cut_batches(
                sizes.tokens,
                batch_size=options.batch_size,
                max_tokens=options.max_tokens,
                buckets=1 if options.buckets is None else options.buckets,
                key=derive(self._key, block, _BATCHES) if options.shuffle else None,
            )
        return Units(samples[order], offsets, sizes[order])

    def lay_out(self, units: Units, block: int, before: int) -> Units:
        """Return the units that `form` made, in groups of near-equal cost.

        `before` is the number of units of the epoch before the block: if they do not fill a group,
        the first units here do.
        """
        options = self.options
        if options.unit == "sample" and options.group == 1:
            return units
        assert units.sizes is not None
        if not options.shuffle and options.group == 1:
            return units
        order = lay_out(
            units.total(text_cost(units.sizes.tokens)),
            units.total(units.sizes.vision),
            group=options.group,
            phase=before % options.group,
            key=derive(self._key, block, _LAYOUT),
        )
        return units.take(order)

    def _make_edges(self) -> Int64:
        source = self.source
        bounds = [0, source.count] if source.bounds is None else source.bounds(self.epoch)
        starts = [np.arange(*span, self.options.block) for span in itertools.pairwise(bounds)]
        return np.append(np.concatenate(starts), bounds[-1]).astype(np.int64)

    def _make_order(self, key: int) -> Permutation | ShardOrder | None:
        if self.source.draw is not None:
            return None
        if self.options.shuffle == "shards":
            if self.source.shards is None:
                raise PlanError("shuffle='shards' needs the number of samples of each shard")
            return ShardOrder(self.source.shards, key, shards_mixed=self.options.shards_mixed)
        return Permutation(self.source.count, key) if self.options.shuffle else None


def round_up(lengths: Int64, multiple: int) -> Int64:
    """Round each length up to a multiple: int64 in and out."""
    return lengths if multiple == 1 else -(-lengths // multiple) * multiple
