"""Units of a plan as arrays: samples, their sizes, and what their random numbers depend on."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Int64, UInt64
from datapipe.plan.ragged import edges, places, totals

PASS_BIT = 40
"""Bits of a sample's number; the bits above it in `Units.samples` count the passes of its dataset.
Only mixtures count them there, since their datasets are passed at different rates."""


def numbers_of(samples: Int64) -> Int64:
    """Return the numbers of samples that may have their passes: int64 [n]."""
    return samples & ((1 << PASS_BIT) - 1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of n samples; all int64 [n].

    Examples:
        >>> one = np.ones(3, np.int64)
        >>> sizes = Sizes(tokens=20 * one, labels=4 * one, images=one, vision=16 * one, rows=one)
        >>> int(sizes.tokens.sum())
        60
    """

    tokens: Int64  # of text and images together, as the batch will have them
    labels: Int64  # tokens that are predicted
    images: Int64  # that the batch will have
    vision: Int64  # cost of the images, in image tokens
    rows: Int64  # of `pixel_values`: one for an image, or as many as it has tiles or patches

    @property
    def columns(self) -> tuple[Int64, ...]:
        """All columns, in the order of the fields."""
        return self.tokens, self.labels, self.images, self.vision, self.rows

    def __getitem__(self, chosen: Int64 | slice) -> Sizes:
        return Sizes(*(column[chosen] for column in self.columns))

    @staticmethod
    def join(parts: Sequence[Sizes]) -> Sizes:
        columns = zip(*(part.columns for part in parts), strict=True)
        return Sizes(*(np.concatenate(column) for column in columns))


@dataclass(frozen=True, slots=True)
class Units:
    """U units of n samples in all.

    Examples:
        >>> units = Units(np.array([4, 2, 9]), np.array([0, 2, 3]), None)
        >>> units.take(np.array([1])).samples.tolist()
        [9]
    """

    samples: Int64  # int64 [n], unit after unit: their numbers, in a mixture with their passes
    offsets: Int64  # int64 [U + 1]; unit u has samples `offsets[u]` to `offsets[u + 1]`
    sizes: Sizes | None  # of the samples, in the same order; None if no tokens were counted

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.offsets) - 1

    @property
    def numbers(self) -> Int64:
        """Return the numbers of the samples: int64 [n]."""
        return numbers_of(self.samples)

    @property
    def passes(self) -> Int64:
        """Return the pass of each sample's dataset in a mixture, else 0: int64 [n]."""
        return self.samples >> PASS_BIT

    def places(self, numbers: Int64) -> Int64:
        """Return the indices of some units' samples in `samples`: int64, unit after unit."""
        return places(self.offsets, numbers)[0]

    def take(self, numbers: Int64) -> Units:
        """Return some units, in the given order; one may come twice."""
        chosen, offsets = places(self.offsets, numbers)
        sizes = self.sizes[chosen] if self.sizes else None
        return Units(self.samples[chosen], offsets, sizes)

    def between(self, start: int, stop: int) -> Units:
        """Return the units `start` to `stop`; arrays are shared."""
        offsets = self.offsets[start : stop + 1]
        span = slice(int(offsets[0]), int(offsets[-1]))
        return Units(
            self.samples[span], offsets - span.start, self.sizes[span] if self.sizes else None
        )

    def total(self, values: Int64) -> Int64:
        """Add up values of the samples of each unit: int64 [n] to int64 [U]."""
        return totals(values, self.offsets)

    @staticmethod
    def join(parts: Sequence[Units]) -> Units:
        """Concatenate the units of all parts."""
        if len(parts) == 1:
            return parts[0]
        sizes = [part.sizes for part in parts if part.sizes]
        return Units(
            np.concatenate([part.samples for part in parts]),
            edges(np.concatenate([np.diff(part.offsets) for part in parts])),
            Sizes.join(sizes) if sizes else None,
        )


@dataclass(frozen=True)
class Identities:
    """Numbers of samples that other datasets of a mixture do not change."""

    edges: Int64  # int64 [datasets + 1], number of the first sample of each
    keys: UInt64  # uint64 [datasets], of the datasets' names

    def __call__(self, numbers: Int64) -> Int64:
        """Return those of samples, by their numbers in the mixture: int64 [n] in and out."""
        datasets = np.searchsorted(self.edges[:-1], numbers, side="right") - 1
        own = (numbers - self.edges[datasets]).astype(np.uint64)
        found = (own + self.keys[datasets]) & np.uint64(2**63 - 1)
        return found.view(np.int64)


@dataclass(frozen=True)
class RandomKeys:
    """Pass and identity of each sample of a step. They are worked out once one is asked for."""

    units: Units  # of a rank's step, with passes
    identities: Identities  # of samples

    def of(self, slot: int) -> tuple[int, int]:
        """Return pass and identity of the sample in a slot."""
        return self._all[slot]

    @functools.cached_property
    def _all(self) -> list[tuple[int, int]]:
        passes, identities = self.units.passes, self.identities(self.units.numbers)
        return list(zip(passes.tolist(), identities.tolist(), strict=True))
