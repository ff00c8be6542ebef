"""Units of a plan as arrays: which samples each has, and how large they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datapipe.plan.ragged import Int64, edges, places


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the plan knows of n samples; all int64 [n].

    Attributes:
        tokens: of text and images together, as the batch will have them.
        labels: tokens that are predicted.
        images: that the batch will have.
        vision: cost of the images, in image tokens.
        rows: of `pixel_values` that the images fill: one each, or as many as tiles or patches.
    """

    tokens: Int64
    labels: Int64
    images: Int64
    vision: Int64
    rows: Int64

    @property
    def columns(self) -> tuple[Int64, ...]:
        """All of them, in the order of the fields."""
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

    Attributes:
        samples: int64 [n], numbers of samples, unit after unit.
        offsets: int64 [U + 1]; unit u has samples `offsets[u]` to `offsets[u + 1]`.
        sizes: of the samples, in the same order; None where the plan knows none.
    """

    samples: Int64
    offsets: Int64
    sizes: Sizes | None

    def __len__(self) -> int:
        """Number of units."""
        return len(self.offsets) - 1

    def places(self, numbers: Int64) -> Int64:
        """Where the samples of some units stand in `samples`: int64, unit after unit."""
        return places(self.offsets, numbers)[0]

    def take(self, numbers: Int64) -> Units:
        """Some units, in the order given; one may come twice."""
        chosen, offsets = places(self.offsets, numbers)
        sizes = self.sizes[chosen] if self.sizes else None
        return Units(self.samples[chosen], offsets, sizes)

    def between(self, start: int, stop: int) -> Units:
        """The units `start` to `stop`; arrays are shared."""
        offsets = self.offsets[start : stop + 1]
        span = slice(int(offsets[0]), int(offsets[-1]))
        return Units(
            self.samples[span], offsets - span.start, self.sizes[span] if self.sizes else None
        )

    def total(self, values: Int64) -> Int64:
        """Sums over the samples of each unit: int64 [n] to int64 [U]."""
        return np.diff(edges(values)[self.offsets])

    @staticmethod
    def join(parts: Sequence[Units]) -> Units:
        """The units of all parts, one part behind the other."""
        if len(parts) == 1:
            return parts[0]
        sizes = [part.sizes for part in parts if part.sizes]
        return Units(
            np.concatenate([part.samples for part in parts]),
            edges(np.concatenate([np.diff(part.offsets) for part in parts])),
            Sizes.join(sizes) if sizes else None,
        )
