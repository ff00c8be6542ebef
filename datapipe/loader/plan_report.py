"""Figures of a loader's plan: its samples, tokens and steps, of a mixture by dataset."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any

import numpy as np

from datapipe.index.dataset import Dataset
from datapipe.index.where import evaluate, parse_where
from datapipe.loader.loader import Loader
from datapipe.loader.schedule.origin import Origin
from datapipe.loader.schedule.sample_source import SampleSelection, unfit
from datapipe.plan.options import PlanOptions
from datapipe.plan.steps import Step
from datapipe.plan.summary import DatasetSums, PlanSummary, summarise
from datapipe.progress import Progress
from datapipe.store.record_fields import where_columns

_CHUNK = 1 << 16  # samples looked at together


LeftOut = Counter[str]
"""Number of samples that take no part, each under the first of `REASONS` that holds."""

REASONS = ("where", "unusable", "overlong", "images", "empty", "limit")
"""`where=` does not hold; those of `unfit`; more than the `limit` of a dataset of a mixture."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Samples that are too long or left out."""

    # Tokens that a sample may have; None for no limit, or if those of the datasets of a mixture
    # differ
    limit: int | None
    # Samples with more tokens, images included, for which `where=` holds. They are cut, or counted
    # in `left_out`. None if no tokens were counted.
    overlong: int | None
    left_out: LeftOut  # samples that take no part
    # `cut_images`, `cut_labels`: images and label tokens that truncation removes
    cut_images: int = 0
    cut_labels: int = 0

    @staticmethod
    def join(parts: Sequence[Lengths]) -> Lengths:
        """Add up the datasets of a mixture."""
        limits = {part.limit for part in parts}
        return Lengths(
            limit=limits.pop() if len(limits) == 1 else None,
            **_added(parts, ("overlong", "left_out", "cut_images", "cut_labels")),
        )


def look_at_lengths(dataset: Dataset, samples: SampleSelection, plan: PlanOptions) -> Lengths:
    """Count the samples that are too long, and those that are left out. Looks at every sample."""
    text, left_out = samples.text, LeftOut()
    if text is None:
        left_out["where"] = len(dataset) - samples.count
        return Lengths(limit=None, overlong=None, left_out=left_out)
    overlong = images = labels = 0
    given = samples.identity["where"]
    where = None if given is None else parse_where(given)
    columns = where_columns(dataset, where, text.where_columns())
    for start in range(0, len(dataset), _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, len(dataset)), dtype=np.int64)
        chosen = np.ones(len(numbers), bool)
        if where is not None:
            stop = start + len(numbers)
            chosen = evaluate(where, dataset.columns, columns, start, stop)
        left_out["where"] += int((~chosen).sum())
        whole, sizes = replace(text, limit=None).measure(numbers), text.measure(numbers)
        if text.limit is not None:
            readable = chosen & (text.columns.text_tokens[numbers] >= 0)
            overlong += int((readable & (whole.tokens > text.limit)).sum())
        for reason, out in unfit(text, plan, numbers, sizes).items():
            left_out[reason] += int((chosen & out).sum())
            chosen = chosen & ~out
        images += int((whole.images - sizes.images)[chosen].sum())
        labels += int((whole.labels - sizes.labels)[chosen].sum())
    return Lengths(
        limit=text.limit, overlong=overlong, left_out=left_out, cut_images=images, cut_labels=labels
    )


def _added(parts: Sequence[Any], names: Iterable[str]) -> dict[str, Any]:
    """Add up fields by name; None where one of the parts has None."""
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    return {
        name: None if None in values else sum(values[1:], values[0])
        for name, values in columns.items()
    }


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
        names = [field.name for field in fields(DatasetPlan)]
        summed = [field for field in names if field not in ("name", "groups")]
        return DatasetPlan(name=name, groups=groups, **_added(plans, summed))


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
    origin: Origin, sums: Sequence[DatasetSums], lengths: Sequence[Lengths], *, epoch: int, run: int
) -> Iterator[DatasetPlan]:
    """Yield the figures of each dataset, from its sums in an epoch, for a run of `run` epochs."""
    asked = origin.asked(epoch)
    counts = [origin.counts(number) for number in range(origin.legs.epoch, run)]
    for part, own, its in zip(origin.parts, sums, lengths, strict=True):
        run_drawn, run_tokens = sum(count[part.name] for count in counts), own.tokens
        if run_tokens is not None and len(counts) > 1:
            run_tokens = round(run_drawn * part.mean_tokens())
        yield DatasetPlan(
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
            left_out=its.left_out,
        )


def find_phases(origin: Origin, share: int | None) -> Iterator[Phase]:
    """Yield the phases of a run; the steps are left open unless each has `share` samples."""
    legs = origin.legs.legs
    ends = [leg.start for leg in legs[1:]] + [None]
    for leg, end in zip(legs, ends, strict=True):
        rates = leg.rates
        shares = zip(rates.first.tolist(), rates.last.tolist(), strict=True)
        for at, (first, last) in zip(rates.starts.tolist(), shares, strict=True):
            start = leg.start + at
            if end is not None and start >= end:
                break
            epoch = origin.legs.epoch_of(start)
            step = None
            if epoch is not None and share is not None:
                step = (start - origin.legs.span(epoch)[0]) // share
            yield Phase(
                start=start,
                epoch=epoch,
                step=step,
                first=dict(zip(leg.parts, first, strict=True)),
                last=dict(zip(leg.parts, last, strict=True)),
            )


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """Figures of an epoch of a loader."""

    epoch: int
    world_size: int
    dataset_samples: int  # of the whole dataset
    last_samples: int  # of the last step, if `drop_last` drops it
    lengths: Lengths  # samples that are too long or left out
    summary: PlanSummary
    seconds: float  # that planning took
    first_seconds: float  # until the first step was known
    mixture: MixturePlan | None  # None if the loader's data are no mixture

    def to_dict(self) -> dict[str, Any]:
        """Return all figures in one level for JSON; the histogram is a list."""
        left_out = {reason: self.lengths.left_out[reason] for reason in REASONS}
        if self.mixture is None:
            del left_out["limit"]  # only datasets of mixtures have one
        left_out["last_step"] = self.last_samples
        return {
            "epoch": self.epoch,
            "world_size": self.world_size,
            **self.summary.to_dict(),
            "dataset_samples": self.dataset_samples,
            **vars(self.lengths),
            "left_out": left_out,
            "seconds": self.seconds,
            "first_step_seconds": self.first_seconds,
            **({} if self.mixture is None else {"mixture": self.mixture.to_dict()}),
        }


def report_plan(loader: Loader, epoch: int | None = None) -> PlanReport:
    """Plan an epoch of a loader, by default its current one, and add it up.

    The loader's state does not change. Samples that `exclude=` leaves out are counted as if they
    took part. Raises `PlanError` if the epoch has no step.
    """
    epoch = loader.epoch if epoch is None else epoch
    options, schedule = loader.options, loader.components().schedule
    origin = schedule.origin
    total = sum(origin.counts(epoch).values())
    share = options.share if schedule.plan.unit == "sample" else None
    phases, span = [*find_phases(origin, share)], origin.legs.span(epoch)
    planning = _Planning()
    with Progress("planning", unit="sample", total=total) as progress:
        summary = summarise(
            planning.watched(loader.plan.steps(epoch=epoch), span, phases, progress),
            schedule.plan,
            units_per_rank=options.units_per_rank,
            world_size=options.world_size,
            pad_to=options.batch.pad_to,
            multiple_of=options.batch.multiple_of,
            dataset_edges=None if origin.is_alone else origin.edges,
        )
    if not summary.steps:
        raise schedule.no_step(epoch)
    each: list[Lengths] = []
    for part in origin.parts:
        each.append(look_at_lengths(part.data.dataset(), part.selection(), schedule.plan))
        each[-1].left_out["limit"] = part.whole - part.samples
    mixture = None
    if not origin.is_alone:
        run = max(epoch + 1, options.epochs or 1)
        mixture = MixturePlan(
            epochs=run,
            datasets=tuple(plan_datasets(origin, summary.datasets, each, epoch=epoch, run=run)),
            phases=tuple(
                replace(phase, step=planning.steps.get(phase.start, phase.step)) for phase in phases
            ),
        )
    return PlanReport(
        epoch=epoch,
        world_size=options.world_size,
        dataset_samples=len(loader.dataset),
        last_samples=total - summary.samples,
        lengths=Lengths.join(each),
        mixture=mixture,
        summary=summary,
        seconds=planning.seconds,
        first_seconds=planning.first,
    )


class _Planning:
    """Planning of an epoch: the time it takes, and the steps at which phases of the run begin."""

    def __init__(self) -> None:
        self.seconds = self.first = 0.0
        self.steps: dict[int, int] = {}  # by the start of a phase

    def watched(
        self, steps: Iterator[Step], span: tuple[int, int], phases: list[Phase], progress: Progress
    ) -> Iterator[Step]:
        """Yield the steps of an epoch, whose draws are a `span` of those of the run."""
        drawn, stop = span
        starts = deque(phase.start for phase in phases if drawn <= phase.start < stop)
        for number in count():
            begun = time.perf_counter()
            step = next(steps, None)
            self.seconds += time.perf_counter() - begun
            if step is None:
                return
            if not number:
                self.first = self.seconds
            # Blocks end where a phase begins, so units before it hold all samples before it.
            drawn += len(step.units.samples)
            while starts and starts[0] < drawn:
                self.steps[starts.popleft()] = number
            yield step
            progress.advance(len(step.units.samples))
