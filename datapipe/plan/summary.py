"""A plan in figures: how full its units are, and how equal the work of the ranks is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from datapipe.plan.groups import text_cost
from datapipe.plan.options import PlanOptions, Unit
from datapipe.plan.ragged import Int64, edges
from datapipe.plan.steps import Step
from datapipe.plan.units import Sizes, Units

_TOGETHER = 1 << 16  # samples that are added up at once, since a step may hold one
_OCTAVES = 40  # lengths up to 2 ** 40


def _bin_edges() -> Int64:
    """1, 2, 3, 4, 6, 8, 12, ...: two bins an octave, with edges that people can read."""
    powers = 1 << np.arange(_OCTAVES, dtype=np.int64)
    return np.union1d(powers, powers[1:] * 3 // 2)


_EDGES = _bin_edges()


@dataclass(frozen=True, kw_only=True)
class LengthBin:
    """Samples of similar length.

    Attributes:
        start, stop: tokens; `stop` is the first number that does not belong to it.
        samples: how many there are.
    """

    start: int
    stop: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class PlanSummary:
    """What the steps of a plan amount to. Fields of tokens are None where none were counted.

    Samples that are left out of the order count neither as samples nor as tokens, but their places
    stay. Repeats at the end of an epoch are work for their rank, so they count for the imbalance,
    and nowhere else.

    Attributes:
        unit: "sample", "batch" or "pack".
        steps, units, samples: how many there are.
        repeats: units that the last step repeats, so that all ranks have equal steps.
        samples_per_unit: mean.
        most_samples: in one unit.
        tokens, labels, images: over all samples.
        most_tokens: in one unit, padding of a padded batch included.
        fill: tokens by places for tokens. A pack has `pack` of them, a padded batch of one rank its
            samples times the longest.
        padding: 1 - `fill`.
        text_imbalance, image_imbalance: mean over the steps of (max - mean) / max of the ranks'
            cost. That of text is `datapipe.plan.groups.text_cost`, that of images their tokens.
        histogram: of the lengths of samples, without empty bins at both ends.
    """

    unit: Unit
    steps: int
    units: int
    samples: int
    repeats: int
    samples_per_unit: float
    most_samples: int
    tokens: int | None = None
    labels: int | None = None
    images: int | None = None
    most_tokens: int | None = None
    fill: float | None = None
    padding: float | None = None
    text_imbalance: float | None = None
    image_imbalance: float | None = None
    histogram: tuple[LengthBin, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Every figure, as JSON has them."""
        return {**asdict(self), "histogram": [asdict(length_bin) for length_bin in self.histogram]}


def summarise(
    steps: Iterable[Step], options: PlanOptions, *, units_per_rank: int, world_size: int
) -> PlanSummary:
    """Add up the steps of a plan. Memory is that of some 65,536 samples, or of the largest step.

    Args:
        steps: of one epoch, or of a part of it.
        options: that the steps were planned with.
        units_per_rank: units that a rank takes in a step.
        world_size: number of ranks.
    """
    totals = _Totals(options, units_per_rank, world_size)
    for some in _together(steps):
        totals.add(some)
    return totals.summary()


def _together(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Steps by the tens of thousands of samples."""
    some: list[Step] = []
    samples = 0
    for step in steps:
        some.append(step)
        samples += len(step.units.samples)
        if samples >= _TOGETHER:
            yield some
            some, samples = [], 0
    if some:
        yield some


@dataclass
class _Totals:
    """Sums over all steps so far; the fields are those of `PlanSummary`."""

    options: PlanOptions
    units_per_rank: int
    world_size: int
    steps: int = 0
    units: int = 0
    samples: int = 0
    repeats: int = 0
    places: int = 0
    most_samples: int = 0
    tokens: int = 0
    labels: int = 0
    images: int = 0
    most_tokens: int = 0
    text_imbalance: float = 0.0
    image_imbalance: float = 0.0
    sized: bool = False
    histogram: Int64 = field(default_factory=lambda: np.zeros(len(_EDGES), np.int64))

    def add(self, steps: list[Step]) -> None:
        units = Units.join([step.units for step in steps])
        kept = ~np.concatenate([step.excluded for step in steps])
        starts = edges(np.array([len(step.units) for step in steps]))
        slots, fresh = self._deal(starts)
        self.steps += len(steps)
        self.units += len(units)
        self.samples += int(kept.sum())
        self.repeats += int((~fresh).sum())
        self.most_samples = max(self.most_samples, int(np.diff(units.offsets).max()))
        if units.sizes is not None:
            self.sized = True
            self._add_sizes(units, units.sizes, kept)
            self._add_places(units, units.sizes, slots, fresh)
            every = np.arange(len(units.samples), dtype=np.int64)
            text = text_cost(every, units.offsets, units.sizes.tokens)
            self.text_imbalance += self._imbalance(text[slots])
            self.image_imbalance += self._imbalance(units.total(units.sizes.vision)[slots])

    def summary(self) -> PlanSummary:
        counts: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("steps", "units", "samples", "repeats", "most_samples")
        }
        counts["unit"] = self.options.unit
        counts["samples_per_unit"] = self.samples / max(self.units, 1)
        if not self.sized:
            return PlanSummary(**counts)
        fill = self.tokens / max(self.places, 1)
        return PlanSummary(
            **counts,
            tokens=self.tokens,
            labels=self.labels,
            images=self.images,
            most_tokens=self.most_tokens,
            fill=fill,
            padding=1 - fill,
            text_imbalance=self.text_imbalance / self.steps,
            image_imbalance=self.image_imbalance / self.steps,
            histogram=_bins(self.histogram),
        )

    def _deal(self, starts: Int64) -> tuple[Int64, npt.NDArray[np.bool_]]:
        """Which unit each slot of each step takes, as `Step.share` says, and whether it is fresh.

        Both are [steps, units_per_rank, world_size].
        """
        slots = np.arange(self.units_per_rank * self.world_size, dtype=np.int64)
        counts = np.diff(starts)[:, None]
        shape = (-1, self.units_per_rank, self.world_size)
        taken = starts[:-1, None] + slots % counts
        return taken.reshape(shape), (slots < counts).reshape(shape)

    def _add_sizes(self, units: Units, sizes: Sizes, kept: npt.NDArray[np.bool_]) -> None:
        tokens = sizes.tokens[kept]
        self.tokens += int(tokens.sum())
        self.labels += int(sizes.labels[kept].sum())
        self.images += int(sizes.images[kept].sum())
        bins = np.searchsorted(_EDGES, tokens, side="right") - 1
        self.histogram += np.bincount(np.maximum(bins, 0), minlength=len(_EDGES))

    def _add_places(
        self, units: Units, sizes: Sizes, slots: Int64, fresh: npt.NDArray[np.bool_]
    ) -> None:
        """Places for tokens in all units, and in the largest."""
        if self.options.pack is not None:
            self.places += len(units) * self.options.pack
            largest = units.total(sizes.tokens)
        elif self.options.unit == "batch":
            largest = np.maximum.reduceat(sizes.tokens, units.offsets[:-1])
            largest = largest * np.diff(units.offsets)
            self.places += int(largest.sum())
        else:
            largest = sizes.tokens
            longest = np.where(fresh, largest[slots], 0).max(axis=1)
            self.places += int((longest * fresh.sum(axis=1)).sum())
        self.most_tokens = max(self.most_tokens, int(largest.max()))

    def _imbalance(self, costs: Int64) -> float:
        """Sum over the steps of (max - mean) / max of the ranks' costs: int64 as `_deal` has it."""
        ranks = costs.sum(axis=1)
        largest = ranks.max(axis=1)
        return float(((largest - ranks.mean(axis=1)) / np.maximum(largest, 1)).sum())


def _bins(histogram: Int64) -> tuple[LengthBin, ...]:
    used = np.flatnonzero(histogram)
    if not len(used):
        return ()
    return tuple(
        LengthBin(start=int(_EDGES[at]), stop=int(_EDGES[at + 1]), samples=int(histogram[at]))
        for at in range(used[0], used[-1] + 1)
    )
