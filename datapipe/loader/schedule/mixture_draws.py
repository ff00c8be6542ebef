"""Draws of a mixture: the samples of any stretch of a run, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.array_types import Int64
from datapipe.index.files.joined_array import split_by_part
from datapipe.loader.schedule.mixture_part import PartSource
from datapipe.loader.schedule.sample_source import Origin
from datapipe.plan.mixture import Cursor, DatasetOrder, Interleaving, Rates
from datapipe.plan.options import PlanOptions
from datapipe.plan.rng import derive
from datapipe.plan.units import PASS_BIT, Sizes, Units

_TIMES, _ORDERS = 1, 2  # purposes of derived keys
_MIXTURE = 7


class Draws:
    """Draws of a mixture over all epochs of a run.

    Args:
        parts: the datasets.
        edges: int64 [datasets + 1], number of the first sample of each.
        rates: of the datasets over the draws of the run.
        epoch: draws of an epoch.
    """

    def __init__(
        self,
        parts: Sequence[PartSource],
        edges: Int64,
        rates: Rates,
        plan: PlanOptions,
        *,
        epoch: int,
    ) -> None:
        self.parts = parts
        self.epoch = epoch
        self.rates = rates
        self._edges = edges
        self._plan = plan
        keys = [derive(plan.seed, _MIXTURE, _TIMES, part.key) for part in parts]
        self._interleaving = Interleaving(rates, keys)
        self._orders: dict[int, DatasetOrder] = {}

    def draw(self, epoch: int, start: int, stop: int) -> Int64:
        """Return the samples at some positions of an epoch, with their passes: int64 [n]."""
        before = epoch * self.epoch
        datasets, turns = self._interleaving.draws(before + start, before + stop)
        samples = np.empty(len(turns), np.int64)
        order = np.argsort(datasets, kind="stable")
        held, starts = np.unique(datasets[order], return_index=True)
        for number, chosen in zip(held.tolist(), np.split(order, starts[1:]), strict=True):
            passes, indices = self._order(number)(turns[chosen])
            own = self.parts[number].select(indices)
            samples[chosen] = self._edges[number] + own + (passes << PASS_BIT)
        return samples

    def cuts(self, epoch: int) -> Int64:
        """Return the positions in an epoch at which rates begin to change, or cease to."""
        return self.rates.starts - epoch * self.epoch

    def measure(self, samples: Int64) -> Sizes:
        """Return the sizes of samples, which may have their passes: int64 [n]."""
        numbers = samples & ((1 << PASS_BIT) - 1)
        sizes = Sizes(*np.empty((5, len(numbers)), np.int64))
        for number, chosen, own in split_by_part(self._edges, numbers):
            found = self.parts[number].measure(own)
            for column, values in zip(sizes.columns, found.columns, strict=True):
                column[chosen] = values
        return sizes

    def identities(self, numbers: Int64) -> Int64:
        """Return numbers of samples that other datasets do not change: int64 [n]."""
        found = np.empty(len(numbers), np.int64)
        for number, chosen, own in split_by_part(self._edges, numbers):
            keys = own.astype(np.uint64) + np.uint64(self.parts[number].key)
            found[chosen] = keys >> np.uint64(1)
        return found

    def identity(self) -> dict[str, Any]:
        """Return all that the draws depend on beside options of the plan: JSON-compatible."""
        rates = self.rates
        return {
            "epoch": self.epoch,
            "starts": rates.starts.tolist(),
            "datasets": {
                part.name: {
                    "fingerprint": part.part.fingerprint[:16],
                    "samples": part.samples,
                    "rates": [first, last],
                    **{name: value for name, value in part.identity.items() if value is not None},
                }
                for part, first, last in zip(
                    self.parts, rates.first.T.tolist(), rates.last.T.tolist(), strict=True
                )
            },
        }

    def places(self, epoch: int, position: int) -> dict[str, Cursor]:
        """Return the place of each dataset in its own order, at a position of an epoch."""
        turns = self._interleaving.counts(epoch * self.epoch + position).tolist()
        return {
            part.name: self._order(number).cursor(turns[number])
            for number, part in enumerate(self.parts)
        }

    def _order(self, number: int) -> DatasetOrder:
        order = self._orders.get(number)
        if order is None:
            part, plan = self.parts[number], self._plan
            order = self._orders[number] = DatasetOrder(
                part.samples,
                derive(plan.seed, _MIXTURE, _ORDERS, part.key),
                shuffle=plan.shuffle,
                shards=part.shards() if plan.shuffle == "shards" else None,
                shards_mixed=plan.shards_mixed,
            )
        return order


@dataclass(frozen=True, kw_only=True)
class MixedOrigin(Origin):
    """Source of the plan of a mixture, and its parts.

    Attributes:
        draws: of its datasets.
    """

    draws: Draws

    def random_keys(self, units: Units) -> dict[str, Any]:
        return {"passes": units.passes, "identities": self.draws.identities(units.numbers)}
