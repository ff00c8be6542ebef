"""Figures of a mixture's plan: the samples, tokens and passes of each dataset, and the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from datapipe.loader.schedule.left_out import REASONS, LeftOut
from datapipe.loader.schedule.origin import Origin
from datapipe.plan.summary import DatasetSums


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """Figures of one dataset of a mixture, or of several together."""

    name: str
    groups: tuple[str, ...]  # that it is in, outermost first
    dataset_samples: int  # all of them
    samples: int  # those that take part
    asked: float  # samples of the epoch that weights or repeats ask for
    drawn: int  # samples of the epoch as planned, without those of a dropped last step
    tokens: int | None  # of these, like `images`; None if no tokens were counted
    images: int | None
    slots: int | None  # for tokens in padded batches, padding included; None for packs
    run_drawn: int  # samples of all epochs of the run
    run_tokens: int | None  # of these, from the mean of the dataset
    left_out: LeftOut  # samples that take no part

    @property
    def passes(self) -> float:
        """Times that the samples which take part are drawn over the run."""
        return self.run_drawn / self.samples

    @property
    def padding(self) -> float | None:
        """Share of padding in the slots of its samples; None for packs, and without samples."""
        return 1 - self.tokens / self.slots if self.slots and self.tokens is not None else None

    @staticmethod
    def join(name: str, groups: tuple[str, ...], plans: Sequence[DatasetPlan]) -> DatasetPlan:
        """Add up several datasets."""
        sums: dict[str, Any] = {}
        for field in ("dataset_samples", "samples", "asked", "drawn", "run_drawn"):
            sums[field] = sum(getattr(plan, field) for plan in plans)
        for field in ("tokens", "images", "slots", "run_tokens"):
            known = [getattr(plan, field) for plan in plans]
            sums[field] = None if None in known else sum(known)
        left_out = sum((plan.left_out for plan in plans), LeftOut())
        return DatasetPlan(name=name, groups=groups, left_out=left_out, **sums)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Stretch of a run in which the shares stay, or change linearly."""

    start: int  # samples of the run before it
    epoch: int | None  # in which it begins; None if that was planned with another mixture
    step: int | None  # of the epoch, in which it begins; None if that has to be planned to know it
    first: dict[str, float]  # share of each dataset in the samples, at the begin; `last` at the end
    last: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class MixturePlan:
    """Figures of the datasets of a mixture."""

    epochs: int  # of the run
    datasets: tuple[DatasetPlan, ...]  # in the order of the mixture
    phases: tuple[Phase, ...]  # of the schedule, in order; one if the shares never change

    @property
    def total(self) -> DatasetPlan:
        """All datasets together."""
        return DatasetPlan.join("all", (), self.datasets)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures for JSON, with a dict for each dataset and phase."""
        total = self.total
        return {
            "epochs": self.epochs,
            "datasets": [_figures(plan, total) for plan in self.datasets],
            "schedule": [dict(vars(phase)) for phase in self.phases],
        }


def _figures(plan: DatasetPlan, total: DatasetPlan) -> dict[str, Any]:
    tokens = None
    if plan.tokens is not None and total.tokens is not None:
        tokens = plan.tokens / max(total.tokens, 1)
    figures = {name: value for name, value in vars(plan).items() if name not in ("asked", "slots")}
    return {
        **figures,
        "groups": list(plan.groups),
        "asked_share": plan.asked / total.asked,
        "share": plan.drawn / max(total.drawn, 1),
        "token_share": tokens,
        "padding": plan.padding,
        "passes": plan.passes,
        "left_out": {reason: plan.left_out[reason] for reason in REASONS},
    }


def plan_datasets(
    origin: Origin,
    sums: Sequence[DatasetSums],
    left_out: Sequence[LeftOut],
    *,
    epoch: int,
    run: int,
) -> tuple[DatasetPlan, ...]:
    """Return the figures of each dataset, from its sums in an epoch, for a run of `run` epochs."""
    asked = origin.asked(epoch)
    counts = [origin.counts(number) for number in range(origin.legs.epoch, run)]
    found = []
    for part, own, out in zip(origin.parts, sums, left_out, strict=True):
        run_drawn, run_tokens = sum(count[part.name] for count in counts), own.tokens
        if run_tokens is not None and len(counts) > 1:
            run_tokens = round(run_drawn * part.mean_tokens())
        found.append(
            DatasetPlan(
                name=part.name,
                groups=part.groups,
                dataset_samples=len(part.data.dataset()),
                samples=part.samples,
                asked=asked[part.name],
                drawn=own.samples,
                tokens=own.tokens,
                images=own.images,
                slots=own.slots,
                run_drawn=run_drawn,
                run_tokens=run_tokens,
                left_out=out,
            )
        )
    return tuple(found)


def find_phases(origin: Origin, *, share: int | None, steps: dict[int, int]) -> tuple[Phase, ...]:
    """Return the phases of a run; `steps` are known from planning, by the draw of the run.

    `share` is the number of samples of a step over all ranks; None if it varies.
    """
    found = []
    for start, first, last in segments(origin):
        epoch = origin.legs.epoch_of(start)
        step = steps.get(start)
        if epoch is not None and share is not None:
            step = (start - origin.legs.span(epoch)[0]) // share
        found.append(Phase(start=start, epoch=epoch, step=step, first=first, last=last))
    return tuple(found)


def segments(origin: Origin) -> Iterator[tuple[int, dict[str, float], dict[str, float]]]:
    """Yield each phase of a run: its first draw, and the shares at its begin and at its end."""
    legs = origin.legs.legs
    ends = [leg.start for leg in legs[1:]] + [None]
    for leg, end in zip(legs, ends, strict=True):
        rates = leg.rates
        for at, first, last in zip(
            rates.starts.tolist(), rates.first.tolist(), rates.last.tolist(), strict=True
        ):
            if end is None or leg.start + at < end:
                here = dict(zip(leg.parts, first, strict=True))
                yield leg.start + at, here, dict(zip(leg.parts, last, strict=True))
