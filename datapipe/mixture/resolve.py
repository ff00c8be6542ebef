"""Rates and draws per epoch of a mixture, from the sizes of its datasets. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from operator import itemgetter

import numpy as np

from datapipe.array_types import Float64, Int64
from datapipe.declared import shorten
from datapipe.errors import PlanError
from datapipe.mixture.rate_line import (
    MOST_DRAWS,
    RateLine,
    RatePiece,
    at_least,
    mean_tokens,
    more_than,
)
from datapipe.mixture.spec import Child, Mixture, MixtureGroup, WeightChange
from datapipe.plan.mixture import Rates
from datapipe.quantities import Amount


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """Size of a step over all ranks, to convert amounts in steps.

    Attributes:
        samples: samples of a step; exact.
        tokens: tokens of a step, for packs: packs of a step times their capacity. An estimate,
            because packs are not quite full.
    """

    samples: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        assert (self.samples is None) != (self.tokens is None)


@dataclass(frozen=True)
class Resolved:
    """Rates of a mixture, and the draws of an epoch.

    Attributes:
        rates: for the whole run, all epochs.
        epoch: draws of each epoch.
    """

    rates: Rates
    epoch: int


def resolve(
    mixture: Mixture, sizes: Int64, tokens: Float64 | None = None, step: StepSize | None = None
) -> Resolved:
    """Return the rates of a mixture and the draws of an epoch.

    Args:
        mixture: the mixture.
        sizes: int64 [D], samples of each of `mixture.datasets` that take part.
        tokens: float64 [D], mean tokens of a sample; None if they are not known.
        step: size of a step; None if it is not known.

    Raises:
        PlanError: a dataset is empty, an amount needs tokens or steps that are not known, changes
            of the schedule overlap, or an epoch has no end.

    Examples:
        >>> mixture = Mixture.of({"captions/": 3, "chats/": 1})
        >>> resolved = resolve(mixture, np.array([600, 100]))
        >>> resolved.rates.first.tolist(), resolved.epoch
        ([[0.75, 0.25]], 800)
    """
    counts, means = _checked(mixture, sizes, tokens)
    numbers = {dataset.name: number for number, dataset in enumerate(mixture.datasets)}
    shares = _Shares(mixture, numbers, counts, means)
    line = _schedule(mixture, shares, step)
    epoch = _epoch(shares, line)
    if epoch > MOST_DRAWS:
        raise PlanError(
            f"epoch {str(mixture.epoch)!r} has more than {MOST_DRAWS:,} draws; give epoch "
            "'shortest' or an amount, or weights nearer to each other"
        )
    rates = Rates(
        starts=np.array([piece.start for piece in line.pieces], np.int64),
        first=np.array([piece.first for piece in line.pieces], np.float64),
        last=np.array([piece.last for piece in line.pieces], np.float64),
    )
    return Resolved(rates, epoch)


def _checked(
    mixture: Mixture, sizes: Int64, tokens: Float64 | None
) -> tuple[list[int], list[float] | None]:
    """Return sizes and mean tokens as Python's numbers."""
    datasets = mixture.datasets
    counts = [int(size) for size in sizes]
    assert len(counts) == len(datasets)
    for dataset, count in zip(datasets, counts, strict=True):
        if count < 1:
            raise PlanError(
                f"dataset {shorten(dataset.name)} has no sample that takes part; change its where "
                "or limit, or leave it out"
            )
    if tokens is None:
        if mixture.weights == "tokens":
            raise PlanError(
                "weights by tokens need the tokens of each dataset; give text=TextSpec(...), or "
                "weights by samples"
            )
        return counts, None
    means = [float(mean) for mean in tokens]
    assert len(means) == len(datasets)
    for dataset, mean in zip(datasets, means, strict=True):
        if not (isfinite(mean) and mean > 0):
            raise PlanError(
                f"dataset {shorten(dataset.name)} has {mean} tokens a sample; leave it out, or "
                "leave samples without tokens out with where='tokens > 0'"
            )
    return counts, means


@dataclass(frozen=True)
class _Shares:
    """Rates from weights, by the tree of a mixture."""

    mixture: Mixture
    numbers: dict[str, int]
    counts: Sequence[int]
    means: Sequence[float] | None

    def rates(self, weights: dict[str, float], when: str) -> tuple[float, ...]:
        """Return the rate of each dataset; `weights` replace those of the tree by name."""
        found = [0.0] * len(self.numbers)

        def divide(children: tuple[Child, ...], share: float, whose: str) -> None:
            parts = [self._part(child, weights) for child in children]
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
                    found[self.numbers[child.name]] = own

        divide(self.mixture.children, 1.0, "the mixture")
        if self.mixture.weights == "tokens":
            assert self.means is not None
            found = [share / mean for share, mean in zip(found, self.means, strict=True)]
        total = fsum(found)
        return tuple(share / total for share in found)

    def natural(self) -> float:
        """Return the samples of all repeats together."""
        return fsum(self._mass(child, False) for child in self.mixture.children)

    def _part(self, child: Child, weights: dict[str, float]) -> float:
        """Return the share of a child among those beside it, not yet divided by their sum."""
        if child.weight is not None:
            return weights.get(child.name, child.weight)
        return self._mass(child, self.mixture.weights == "tokens")

    def _mass(self, child: Child, by_tokens: bool) -> float:
        """Return the samples or tokens of a child with its repeats. Weights count as 1x."""
        times = 1.0 if child.repeat is None else child.repeat
        if isinstance(child, MixtureGroup):
            return times * fsum(self._mass(inner, by_tokens) for inner in child.children)
        number = self.numbers[child.name]
        if not by_tokens:
            return times * self.counts[number]
        assert self.means is not None
        return times * (self.counts[number] * self.means[number])


def _schedule(mixture: Mixture, shares: _Shares, step: StepSize | None) -> RateLine:
    """Return the segments of a run."""
    changes = list(mixture.schedule)
    weights: dict[str, float] = {}
    before = -1
    if changes and not changes[0].start.number and not _over(changes[0]):
        weights |= changes.pop(0).weights
        before = 0
    rates = shares.rates(weights, "at the beginning")
    line = RateLine((RatePiece(0, None, rates, rates),))
    for change in changes:
        said = f"schedule from {change.start}"
        start = _start(change.start, line, shares.means, step, said)
        complete = line.pieces[-1].start
        if start < complete or start <= before:
            raise PlanError(
                f"{said}: it begins at draw {start:,}, and the change before it ends at draw "
                f"{max(complete, before):,}; let it begin later"
            )
        weights |= change.weights
        rates = shares.rates(weights, f"from {change.start}")
        now = line.pieces[-1].last
        over = _stretch(_over(change), now, rates, shares.means, step, said)
        line = line.change(start, over, rates)
        before = start
    if line.pieces[-1].start > MOST_DRAWS:
        raise PlanError(
            f"schedule: its last change ends at draw {line.pieces[-1].start:,}; give an end within "
            f"{MOST_DRAWS:,} samples"
        )
    return line


def _over(change: WeightChange) -> Amount | None:
    return change.over if change.over and change.over.number else None


def _start(
    amount: Amount,
    line: RateLine,
    means: Sequence[float] | None,
    step: StepSize | None,
    said: str,
) -> int:
    """Return the fewest draws that are at least an amount."""
    number, unit = _samples_or_tokens(amount, means, step, said)
    if unit == "samples":
        return number
    assert means is not None
    draws = line.first_draw(mean_tokens(means), at_least(number))
    assert draws is not None
    return draws


def _stretch(
    amount: Amount | None,
    first: Sequence[float],
    last: Sequence[float],
    means: Sequence[float] | None,
    step: StepSize | None,
    said: str,
) -> int:
    """Return the draws of a linear change over an amount."""
    if amount is None:
        return 0
    number, unit = _samples_or_tokens(amount, means, step, said)
    if unit == "samples":
        return number
    assert means is not None
    density = mean_tokens(means)
    mean = (density(first) + density(last)) / 2
    return max(1, int(number / mean + 0.5))


def _samples_or_tokens(
    amount: Amount, means: Sequence[float] | None, step: StepSize | None, said: str
) -> tuple[int, str]:
    """Return an amount in samples, or in tokens if these are given or a step has tokens.

    Raises:
        PlanError: the size of a step or the tokens of samples are not known.
    """
    number, unit = amount.number, str(amount.unit)
    if amount.unit == "steps":
        if step is None:
            raise PlanError(f"{said}: the size of a step is not known; give samples or tokens")
        if step.samples is not None:
            return number * step.samples, "samples"
        assert step.tokens is not None
        number, unit = number * step.tokens, "tokens"
    if unit == "tokens" and means is None:
        raise PlanError(
            f"{said}: {amount} need the tokens of each dataset; give text=TextSpec(...), or an "
            "amount in samples"
        )
    return number, unit


def _epoch(shares: _Shares, line: RateLine) -> int:
    """Return the draws of an epoch."""
    mixture = shares.mixture
    if isinstance(mixture.epoch, Amount):
        return _start(mixture.epoch, line, shares.means, None, "epoch")
    if mixture.epoch == "longest" and mixture.only_repeats:
        return max(1, round(shares.natural()))
    ends = []
    for number, (dataset, count) in enumerate(zip(mixture.datasets, shares.counts, strict=True)):
        if mixture.epoch == "shortest":
            beyond = line.first_draw(itemgetter(number), more_than(count))
            ends += [beyond - 1] if beyond is not None else []
            continue
        if not any(piece.first[number] or piece.last[number] for piece in line.pieces):
            continue  # a weight of 0 leaves a dataset out
        end = line.first_draw(itemgetter(number), at_least(count))
        if end is None:
            raise PlanError(
                f"epoch 'longest' never ends: dataset {shorten(dataset.name)} is not drawn as "
                f"often as it has samples ({count:,}) before its weight is 0; give epoch "
                "'shortest' or an amount such as '2M samples'"
            )
        ends.append(end)
    return min(ends) if mixture.epoch == "shortest" else max(ends)
