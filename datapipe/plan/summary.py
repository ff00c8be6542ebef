"""Summary of a plan: how full its units are, and how equal the work of the ranks is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.plan.epoch import round_up
from datapipe.plan.groups import text_cost
from datapipe.plan.options import PlanOptions, Unit
from datapipe.plan.ragged import edges
from datapipe.plan.steps import Step
from datapipe.plan.units import Sizes, Units

_TOGETHER = 1 << 16  # samples that are added up at once, since a step may hold one

# 1, 2, 3, 4, 6, 8, 12, ... to 2 ** 40: two bins an octave, with round edges.
_POWERS = 1 << np.arange(40, dtype=np.int64)
_EDGES = np.union1d(_POWERS, _POWERS[1:] * 3 // 2)


@dataclass(frozen=True, kw_only=True)
class LengthBin:
    """Number of samples of similar length."""

    # `start`, `stop`: tokens, from `start` to below `stop`
    start: int
    stop: int
    samples: int  # their number


@dataclass(frozen=True, kw_only=True)
class DatasetSums:
    """Sums over the samples of one dataset of a mixture."""

    samples: int  # their number
    # `tokens`, `labels`, `images`: over all of them; None if no tokens were counted
    tokens: int | None = None
    labels: int | None = None
    images: int | None = None
    # Of padded batches, for tokens, padding included; None for packs, whose rest belongs to no
    # dataset
    slots: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlanSummary:
    """Figures of the steps of a plan. Fields of tokens are None if no tokens were counted.

    Samples that are left out of the order count neither as samples nor as tokens, but their slots
    stay. Repeats at the end of an epoch are work for their rank, so they count for the imbalance
    alone.
    """

    unit: Unit  # "sample", "batch" or "pack"
    # `steps`, `units`, `samples`: numbers of them
    steps: int
    units: int
    samples: int
    repeats: int  # units that the last step repeats, so that all ranks have equal steps
    samples_per_unit: float  # mean
    most_samples: int  # in one unit
    # `tokens`, `labels`, `images`: over all samples
    tokens: int | None = None
    labels: int | None = None
    images: int | None = None
    most_tokens: int | None = None  # in one unit, padding of a padded batch included
    # Tokens by slots for tokens. A pack has `pack` slots, a padded batch of one rank its samples
    # times the longest, or times the length that all are padded to.
    fill: float | None = None
    padding: float | None = None  # 1 - `fill`
    # `text_imbalance`, `image_imbalance`: mean over the steps of (max - mean) / max of the ranks'
    # cost. That of text is `datapipe.plan.groups.text_cost`, that of images their tokens.
    text_imbalance: float | None = None
    image_imbalance: float | None = None
    # Of the lengths of samples, without empty bins at both ends
    histogram: tuple[LengthBin, ...] = ()
    # Sums of each dataset of a mixture; empty if they were not asked for
    datasets: tuple[DatasetSums, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return every figure of the whole, as JSON has them."""
        figures = {name: value for name, value in vars(self).items() if name != "datasets"}
        return figures | {"histogram": [asdict(length_bin) for length_bin in self.histogram]}


def summarise(
    steps: Iterable[Step],
    options: PlanOptions,
    *,
    units_per_rank: int,
    world_size: int,
    pad_to: int | None = None,
    multiple_of: int = 1,
    dataset_edges: Int64 | None = None,
) -> PlanSummary:
    """Add up steps of one epoch. Memory is that of some 65,536 samples, or of the largest step.

    A rank takes `units_per_rank` units in a step. Padded batches have `pad_to` tokens a sample,
    None for the longest of a batch rounded up to `multiple_of`. `dataset_edges` is int64 [datasets
    + 1], number of the first sample of each dataset of a mixture; None for one dataset.
    """
    totals = _Totals(options, units_per_rank, world_size, pad_to, multiple_of, dataset_edges)
    chunk: list[Step] = []
    samples = 0
    for step in steps:
        chunk.append(step)
        samples += len(step.units.samples)
        if samples >= _TOGETHER:
            totals.add(chunk)
            chunk, samples = [], 0
    if chunk:
        totals.add(chunk)
    return totals.summary()


@dataclass
class _Totals:
    """Sums and maxima over all steps so far, named as the fields of `PlanSummary`."""

    options: PlanOptions
    units_per_rank: int
    world_size: int
    pad_to: int | None
    multiple_of: int
    edges: Int64 | None  # of the datasets

    def __post_init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._by_dataset: dict[str, Int64] = {}  # names as those of `DatasetSums`
        self._most: Counter[str] = Counter()
        self._imbalance = np.zeros(2)  # of text and images
        self._histogram = np.zeros(len(_EDGES), np.int64)

    def add(self, steps: list[Step]) -> None:
        units = Units.join([step.units for step in steps])
        kept = ~np.concatenate([step.excluded for step in steps])
        slots, fresh = self._deal(edges(np.array([len(step.units) for step in steps])))
        self._sums.update(steps=len(steps), units=len(units), repeats=int((~fresh).sum()))
        self._most |= Counter(most_samples=int(np.diff(units.offsets).max()))
        columns: dict[str, Int64] = {"samples": np.ones(len(kept), np.int64)}
        sizes = units.sizes
        if sizes is not None:
            columns |= {"tokens": sizes.tokens, "labels": sizes.labels, "images": sizes.images}
            bins = np.searchsorted(_EDGES, sizes.tokens[kept], side="right") - 1
            self._histogram += np.bincount(np.maximum(bins, 0), minlength=len(_EDGES))
            text, vision = units.total(text_cost(sizes.tokens)), units.total(sizes.vision)
            self._imbalance += _imbalance(text[slots]), _imbalance(vision[slots])
        self._sums.update({name: int(values[kept].sum()) for name, values in columns.items()})
        room = None if sizes is None else self._add_slots(units, sizes, slots, fresh)
        if self.edges is not None:
            columns |= {} if room is None else {"slots": room}
            kinds = np.searchsorted(self.edges, units.numbers[kept], side="right") - 1
            for name, values in columns.items():
                total = self._by_dataset.setdefault(name, np.zeros(len(self.edges) - 1, np.int64))
                np.add.at(total, kinds, values[kept])

    def summary(self) -> PlanSummary:
        sums = self._sums
        figures: dict[str, Any] = {"most_samples": 0, **self._most}
        for name in ("steps", "units", "samples", "repeats"):
            figures[name] = sums[name]
        if "tokens" in sums:
            fill = sums["tokens"] / max(sums["slots"], 1)
            text, vision = (self._imbalance / sums["steps"]).tolist()
            figures |= {name: sums[name] for name in ("tokens", "labels", "images")}
            figures |= {"fill": fill, "padding": 1 - fill, "histogram": _bins(self._histogram)}
            figures |= {"text_imbalance": text, "image_imbalance": vision}
        by_dataset = [values.tolist() for values in self._by_dataset.values()]
        return PlanSummary(
            unit=self.options.unit,
            samples_per_unit=sums["samples"] / max(sums["units"], 1),
            datasets=tuple(
                DatasetSums(**dict(zip(self._by_dataset, row, strict=True)))
                for row in zip(*by_dataset, strict=True)
            ),
            **figures,
        )

    def _deal(self, starts: Int64) -> tuple[Int64, Bools]:
        """Return the unit of each slot, as `Step.share` deals them, and whether it is not a repeat.

        Both are [steps, units_per_rank, world_size].
        """
        slots = np.arange(self.units_per_rank * self.world_size, dtype=np.int64)
        counts = np.diff(starts)[:, None]
        shape = (-1, self.units_per_rank, self.world_size)
        return (starts[:-1, None] + slots % counts).reshape(shape), (slots < counts).reshape(shape)

    def _add_slots(self, units: Units, sizes: Sizes, slots: Int64, fresh: Bools) -> Int64 | None:
        """Add the slots for tokens of all units, and find the largest unit.

        Return the slots of each sample of padded batches, int64 [n]; None for packs.
        """
        if self.options.pack is not None:
            self._sums["slots"] += len(units) * self.options.pack
            self._most |= Counter(most_tokens=int(units.total(sizes.tokens).max()))
            return None
        if self.options.unit == "batch":
            counts = np.diff(units.offsets)
            longest = self._padded(np.maximum.reduceat(sizes.tokens, units.offsets[:-1]))
            largest = longest * counts
            room = np.repeat(longest, counts)
        else:
            largest = sizes.tokens
            longest = self._padded(np.where(fresh, largest[slots], 0).max(axis=1))
            room = np.empty(len(units), np.int64)
            room[slots[fresh]] = np.broadcast_to(longest[:, None], slots.shape)[fresh]
        self._sums["slots"] += int(room.sum())
        self._most |= Counter(most_tokens=int(largest.max()))
        return room

    def _padded(self, longest: Int64) -> Int64:
        """Return the length that the batches with these longest samples are padded to."""
        if self.pad_to is not None:
            return np.full_like(longest, self.pad_to)
        return round_up(longest, self.multiple_of)


def _imbalance(costs: Int64) -> float:
    """Add up (max - mean) / max of the ranks' costs: int64 [steps, units_per_rank, world_size]."""
    ranks = costs.sum(axis=1)
    largest = ranks.max(axis=1)
    return float(((largest - ranks.mean(axis=1)) / np.maximum(largest, 1)).sum())


def _bins(histogram: Int64) -> tuple[LengthBin, ...]:
    used = np.flatnonzero(histogram)
    return tuple(
        LengthBin(start=int(_EDGES[at]), stop=int(_EDGES[at + 1]), samples=int(histogram[at]))
        for at in (range(used[0], used[-1] + 1) if len(used) else ())
    )
