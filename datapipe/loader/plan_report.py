"""Figures of a loader's plan."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from datapipe.errors import PlanError
from datapipe.loader.loader import Loader
from datapipe.loader.mixture_report import MixturePlan, find_phases, plan_datasets, segments
from datapipe.loader.schedule.left_out import REASONS, Lengths, look_at_lengths
from datapipe.loader.schedule.origin import Origin
from datapipe.plan.steps import Step
from datapipe.plan.summary import PlanSummary, summarise
from datapipe.progress import Progress


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
        return {
            "epoch": self.epoch,
            "world_size": self.world_size,
            **self.summary.to_dict(),
            "dataset_samples": self.dataset_samples,
            **vars(self.lengths),
            "left_out": self._left_out(),
            "seconds": self.seconds,
            "first_step_seconds": self.first_seconds,
            **({} if self.mixture is None else {"mixture": self.mixture.to_dict()}),
        }

    def _left_out(self) -> dict[str, int]:
        found = {reason: self.lengths.left_out[reason] for reason in REASONS}
        if self.mixture is None:
            del found["limit"]  # only datasets of mixtures have one
        return {**found, "last_step": self.last_samples}


def report_plan(loader: Loader, epoch: int | None = None) -> PlanReport:
    """Plan an epoch of a loader, by default its current one, and add it up.

    The loader's state does not change. Samples that `exclude=` leaves out are counted as if they
    took part. Raises `PlanError` if the epoch has no step.
    """
    epoch = loader.epoch if epoch is None else epoch
    options, schedule = loader.options, loader.components().schedule
    origin = schedule.origin
    total = sum(origin.counts(epoch).values())
    planning = _Planning()
    with Progress("planning", unit="sample", total=total) as progress:
        summary = summarise(
            planning.watched(loader.plan.steps(epoch=epoch), origin, epoch, progress),
            schedule.plan,
            units_per_rank=options.units_per_rank,
            world_size=options.world_size,
            pad_to=options.batch.pad_to,
            multiple_of=options.batch.multiple_of,
            dataset_edges=None if origin.is_alone else origin.edges,
        )
    if not summary.steps:
        raise PlanError(
            f"epoch {epoch} has no step: drop_last drops the only one, since its units are fewer "
            f"than the {options.share} that all ranks take"
        )
    each: list[Lengths] = []
    for part in origin.parts:
        each.append(look_at_lengths(part.data.dataset(), part.selection(), schedule.plan))
        each[-1].left_out["limit"] = part.whole - part.samples
    mixture = None
    if not origin.is_alone:
        run = max(epoch + 1, options.epochs or 1)
        mixture = MixturePlan(
            epochs=run,
            datasets=plan_datasets(
                origin, summary.datasets, [one.left_out for one in each], epoch=epoch, run=run
            ),
            phases=find_phases(
                origin,
                share=options.share if schedule.plan.unit == "sample" else None,
                steps=planning.phases,
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
    """Steps of an epoch while they are planned: the time that takes, and the phases they begin."""

    def __init__(self) -> None:
        self.seconds = self.first = 0.0
        self.phases: dict[int, int] = {}

    def watched(
        self, steps: Iterator[Step], origin: Origin, epoch: int, progress: Progress
    ) -> Iterator[Step]:
        drawn, stop = origin.legs.span(epoch)
        starts = deque(start for start, *_ in segments(origin) if drawn <= start < stop)
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
                self.phases[starts.popleft()] = number
            yield step
            progress.advance(len(step.units.samples))
