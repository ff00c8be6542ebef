"""Rates and draws per epoch of a mixture, from the sizes of its datasets. No I/O.

Rates over the draws of a run are a line of segments. Only + - * / of float64, comparisons and exact
sums (`math.fsum`) are used, so that every machine gets the same bits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import fsum, isfinite
from operator import itemgetter

import numpy as np

from datapipe.array_types import Float64, Int64
from datapipe.declared import shorten
from datapipe.errors import PlanError
from datapipe.mixture.spec import Child, Mixture, MixtureGroup, WeightChange
from datapipe.plan.mixture import Rates
from datapipe.quantities import Amount

# As `Rates` has them: the first draw of each, and the rates at its begin and end. The last has no
# end and constant rates.
_Segments = list[tuple[int, Sequence[float], Sequence[float]]]

_MOST_DRAWS = 2**62
_TOLERANCE = 2.0**-40  # of totals: sums of rates such as 0.1 miss a whole number by less


@dataclass(frozen=True)
class Resolved:
    """Rates of a mixture, and the draws of an epoch."""

    rates: Rates  # for the whole run, all epochs
    epoch: int  # draws of each epoch


def resolve(
    mixture: Mixture, sizes: Int64, tokens: Float64 | None = None, step: Amount | None = None
) -> Resolved:
    """Return the rates of a mixture and the draws of an epoch.

    `sizes` is int64 [D], samples of each dataset that take part; `tokens` float64 [D], mean tokens
    of a sample.

    Raises:
        PlanError: a dataset is empty, an amount needs tokens or steps that are not known, changes
            of the schedule overlap, or an epoch has no end.

    Examples:
        >>> mixture = Mixture.of({"captions/": 3, "chats/": 1})
        >>> resolved = resolve(mixture, np.array([600, 100]))
        >>> resolved.rates.first.tolist(), resolved.epoch
        ([[0.75, 0.25]], 800)
    """
    resolver = _Resolver(mixture, sizes, tokens, step)
    segments = resolver.segments()
    epoch = resolver.epoch(segments)
    if epoch > _MOST_DRAWS:
        raise PlanError(
            f"epoch {str(mixture.epoch)!r} has more than {_MOST_DRAWS:,} draws; give epoch "
            "'shortest' or an amount, or weights nearer to each other"
        )
    starts, first, last = map(np.array, zip(*segments, strict=True))
    return Resolved(Rates(starts=starts, first=first, last=last), epoch)


def _first_draw(
    segments: _Segments,
    density: Callable[[Sequence[float]], float],
    total: int,
    *,
    beyond: bool = False,
) -> int | None:
    """Return the fewest draws whose integral of `density` is `total`, or `beyond` it.

    None if it never is. A result above `_MOST_DRAWS` is not exact. `density` is linear in the rates
    and not negative. Rounding does not count.
    """

    def enough(reached: float) -> bool:
        if beyond:
            return reached > total * (1 + _TOLERANCE)
        return reached >= total * (1 - _TOLERANCE)

    passed = 0.0
    ends = [start for start, _, _ in segments[1:]]
    for (start, first, last), end in zip_longest(segments, ends):
        begin = density(first)
        length = 1 if end is None else end - start
        if end is None:
            if not begin and not enough(passed):
                return None
            while not enough(passed + length * begin):
                length *= 2
                if length > _MOST_DRAWS:
                    return start + length
        slope = (density(last) - begin) / (2 * length)
        if enough(passed + length * (begin + slope * length)):
            return start + bisect_left(
                range(length), True, key=lambda n: enough(passed + n * (begin + slope * n))
            )
        passed += length * (begin + slope * length)
    return None


class _Resolver:
    """A mixture with the sizes of its datasets, as Python's numbers."""

    def __init__(
        self, mixture: Mixture, sizes: Int64, tokens: Float64 | None, step: Amount | None
    ) -> None:
        self._mixture = mixture
        self._step = step
        self._counts: list[int] = sizes.tolist()
        # Mean tokens of a sample of each; empty if they are not known
        self._means: list[float] = [] if tokens is None else tokens.tolist()
        self._numbers = {dataset.name: n for n, dataset in enumerate(mixture.datasets)}
        for name, count in zip(self._numbers, self._counts, strict=True):
            if count < 1:
                raise PlanError(
                    f"dataset {shorten(name)} has no sample that takes part; change its where or "
                    "limit, or leave it out"
                )
        if not self._means and mixture.weights == "tokens":
            raise PlanError(
                "weights by tokens need the tokens of each dataset; give text=TextSpec(...), or "
                "weights by samples"
            )
        for name, mean in zip(self._numbers, self._means, strict=True) if self._means else ():
            if not (isfinite(mean) and mean > 0):
                raise PlanError(
                    f"dataset {shorten(name)} has {mean} tokens a sample; leave it out, or leave "
                    "samples without tokens out with where='tokens > 0'"
                )

    def segments(self) -> _Segments:
        changes = list(self._mixture.schedule)
        weights: dict[str, float] = {}
        before = -1
        if changes and not changes[0].start.number and not _over(changes[0]):
            weights |= changes.pop(0).weights
            before = 0
        rates = self._rates(weights, "at the beginning")
        segments: _Segments = [(0, rates, rates)]
        for change in changes:
            said = f"schedule from {change.start}"
            start = self._start(change.start, segments, said)
            last, _, reached = segments[-1]
            if start < last or start <= before:
                raise PlanError(
                    f"{said}: it begins at draw {start:,}, and the change before it ends at draw "
                    f"{max(last, before):,}; start it later"
                )
            weights |= change.weights
            rates = self._rates(weights, f"from {change.start}")
            over = self._stretch(change, reached, rates, said)
            if last == start:  # the segment before has no draw
                segments.pop()
            if over:
                segments.append((start, reached, rates))
            segments.append((start + over, rates, rates))
            before = start
        if segments[-1][0] > _MOST_DRAWS:
            raise PlanError(
                f"schedule: its last change ends at draw {segments[-1][0]:,}; give an end "
                f"within {_MOST_DRAWS:,} samples"
            )
        return segments

    def epoch(self, segments: _Segments) -> int:
        mixture = self._mixture
        if isinstance(mixture.epoch, Amount):
            return self._start(mixture.epoch, segments, "epoch")
        if mixture.epoch == "longest" and not any(mixture.has_weight.values()):
            return max(1, round(fsum(self._mass(child, False) for child in mixture.children)))
        ends = []
        for number, (dataset, count) in enumerate(zip(mixture.datasets, self._counts, strict=True)):
            if mixture.epoch == "shortest":
                beyond = _first_draw(segments, itemgetter(number), count, beyond=True)
                ends += [beyond - 1] if beyond is not None else []
                continue
            if not any(first[number] or last[number] for _, first, last in segments):
                continue  # a weight of 0 leaves a dataset out
            end = _first_draw(segments, itemgetter(number), count)
            if end is None:
                raise PlanError(
                    f"epoch 'longest' never ends: dataset {shorten(dataset.name)} is not drawn as "
                    f"often as it has samples ({count:,}) before its weight is 0; give epoch "
                    "'shortest' or an amount such as '2M samples'"
                )
            ends.append(end)
        return min(ends) if mixture.epoch == "shortest" else max(ends)

    def _rates(self, weights: dict[str, float], when: str) -> tuple[float, ...]:
        """Return the rate of each dataset; `weights` replace those of the tree by name."""
        by_tokens = self._mixture.weights == "tokens"
        found = [0.0] * len(self._numbers)

        def divide(children: tuple[Child, ...], share: float, whose: str) -> None:
            parts = [
                self._mass(child, by_tokens)
                if child.weight is None
                else weights.get(child.name, child.weight)
                for child in children
            ]
            total = fsum(parts)
            if not total:
                if share:
                    raise PlanError(
                        f"all weights of {whose} are 0 {when}; give one of them a weight"
                        + (", or the group 0" if whose != "the mixture" else "")
                    )
                return
            for child, part in zip(children, parts, strict=True):
                own = share * (part / total)
                if isinstance(child, MixtureGroup):
                    divide(child.children, own, f"group {shorten(child.name)}")
                else:
                    found[self._numbers[child.name]] = own

        divide(self._mixture.children, 1.0, "the mixture")
        if by_tokens:
            found = [share / mean for share, mean in zip(found, self._means, strict=True)]
        total = fsum(found)
        return tuple(share / total for share in found)

    def _mass(self, child: Child, by_tokens: bool) -> float:
        """Return the samples or tokens of a child with its repeats. Weights count as 1x."""
        times = 1.0 if child.repeat is None else child.repeat
        if isinstance(child, MixtureGroup):
            return times * fsum(self._mass(inner, by_tokens) for inner in child.children)
        number = self._numbers[child.name]
        if not by_tokens:
            return times * self._counts[number]
        return times * (self._counts[number] * self._means[number])

    def _start(self, amount: Amount, segments: _Segments, said: str) -> int:
        number, in_tokens = self._size(amount, said)
        if not in_tokens:
            return number
        draws = _first_draw(segments, self._mean_tokens, number)
        assert draws is not None
        return draws

    def _stretch(
        self, change: WeightChange, first: Sequence[float], last: Sequence[float], said: str
    ) -> int:
        """Return the draws over which rates change linearly."""
        over = _over(change)
        if over is None:
            return 0
        number, in_tokens = self._size(over, said)
        if not in_tokens:
            return number
        mean = (self._mean_tokens(first) + self._mean_tokens(last)) / 2
        return max(1, int(number / mean + 0.5))

    def _size(self, amount: Amount, said: str) -> tuple[int, bool]:
        """Return an amount in samples, or in tokens, which the second value says."""
        number, unit = amount.number, amount.unit
        if unit == "steps":
            if self._step is None:
                raise PlanError(f"{said}: the size of a step is not known; give samples or tokens")
            number, unit = number * self._step.number, self._step.unit
        if unit == "samples":
            return number, False
        if not self._means:
            raise PlanError(
                f"{said}: {amount} need the tokens of each dataset; give text=TextSpec(...), or an "
                "amount in samples"
            )
        return number, True

    def _mean_tokens(self, rates: Sequence[float]) -> float:
        return fsum(rate * mean for rate, mean in zip(rates, self._means, strict=True))


def _over(change: WeightChange) -> Amount | None:
    return change.over if change.over and change.over.number else None
