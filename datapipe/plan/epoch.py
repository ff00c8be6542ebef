"""Plan of an epoch: blocks of ordered samples, made into units and laid out by cost.

A block's units are a pure function of (source, options, epoch, block), so resuming plans one block
again, and ranks may share what one of them has planned. They do not depend on workers or caches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64
from datapipe.errors import PlanError
from datapipe.plan.batching import cut_batches
from datapipe.plan.groups import lay_out, text_cost
from datapipe.plan.mixture import DatasetOrder
from datapipe.plan.options import PlanOptions
from datapipe.plan.packing import pack_units
from datapipe.plan.rng import derive
from datapipe.plan.units import Sizes, Units

_BATCHES, _LAYOUT = 2, 3  # purposes of derived keys; 1 is that of `DatasetOrder`


@dataclass(frozen=True, kw_only=True)
class Source:
    """Samples of a plan, in the order of each epoch.

    Examples:
        >>> options = PlanOptions(shuffle=True, seed=0)
        >>> source = Source.of_dataset(500, options, select=lambda places: 2 * places + 1)
        >>> bool((source.draw(0, 0, 500) % 2).all())
        True
    """

    count: int  # of an epoch
    # Of an epoch, `start` and `stop`: the samples at these positions, as `Units.samples` has them
    draw: Callable[[int, int, int], Int64]
    # Of an epoch: positions at which a block has to begin, ascending from 0 to their number
    bounds: Callable[[int], list[int]]
    measure: Callable[[Int64], Sizes] | None = None  # None if no tokens have been counted

    @staticmethod
    def of_dataset(
        count: int,
        options: PlanOptions,
        *,
        select: Callable[[Int64], Int64] | None = None,
        measure: Callable[[Int64], Sizes] | None = None,
        shards: npt.ArrayLike | None = None,
    ) -> Source:
        """Return one dataset; each epoch is a pass over it. Samples do not count passes here.

        `select` maps indices among the `count` samples that take part to sample numbers. `shards`
        is int64, samples of each shard that take part, for `shuffle="shards"`.
        """
        order = DatasetOrder(count, options, shards=shards)

        def draw(epoch: int, start: int, stop: int) -> Int64:
            _, indices = order(epoch * count + np.arange(start, stop, dtype=np.int64))
            return indices if select is None else select(indices)

        return Source(count=count, draw=draw, bounds=lambda epoch: [0, count], measure=measure)


class EpochPlan:
    """Plan of one epoch.

    Attributes:
        edges: int64 [blocks + 1], position of the first sample of each block, and their number.

    Raises:
        PlanError: the options need what the source does not know.

    Examples:
        >>> from datapipe.plan import EpochPlan, PlanOptions, Source
        >>> options = PlanOptions(shuffle=True, seed=0, batch_size=None)
        >>> plan = EpochPlan(Source.of_dataset(100, options), options, epoch=0)
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
        bounds = source.bounds(epoch)
        starts = [np.arange(*span, options.block) for span in itertools.pairwise(bounds)]
        self.edges = np.append(np.concatenate(starts), bounds[-1]).astype(np.int64)

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return len(self.edges) - 1

    def samples(self, start: int, stop: int) -> Int64:
        """Return the samples at these positions, as `Units.samples` has them: int64 [n]."""
        return self.source.draw(self.epoch, start, stop)

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
        if options.group == 1 and (options.unit == "sample" or not options.shuffle):
            return units
        assert units.sizes is not None
        order = lay_out(
            units.total(text_cost(units.sizes.tokens)),
            units.total(units.sizes.vision),
            group=options.group,
            phase=before % options.group,
            key=derive(self._key, block, _LAYOUT),
        )
        return units.take(order)


def round_up(lengths: Int64, multiple: int) -> Int64:
    """Round each length up to a multiple: int64 in and out."""
    return lengths if multiple == 1 else -(-lengths // multiple) * multiple
