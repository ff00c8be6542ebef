"""Figures of a loader's plan."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from datapipe.errors import PlanError
from datapipe.loader.loader import Loader
from datapipe.loader.schedule.left_out import Lengths, look_at_lengths
from datapipe.plan.steps import Step
from datapipe.plan.summary import PlanSummary, summarise
from datapipe.progress import Progress


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """Figures of an epoch of a loader.

    Attributes:
        dataset_samples: of the whole dataset.
        last_samples: samples of the last step, if `drop_last` drops it.
        lengths: samples that are too long or left out.
        seconds: that planning took.
        first_seconds: until the first step was known.
    """

    epoch: int
    world_size: int
    dataset_samples: int
    last_samples: int
    lengths: Lengths
    summary: PlanSummary
    seconds: float
    first_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return all figures in one level for JSON; the histogram is a list."""
        lengths = self.lengths
        return {
            "epoch": self.epoch,
            "world_size": self.world_size,
            **self.summary.to_dict(),
            "dataset_samples": self.dataset_samples,
            "limit": lengths.limit,
            "overlong": lengths.overlong,
            "cut_images": lengths.cut_images,
            "cut_labels": lengths.cut_labels,
            "left_out": {**lengths.left_out.to_dict(), "last_step": self.last_samples},
            "seconds": self.seconds,
            "first_step_seconds": self.first_seconds,
        }


def report_plan(loader: Loader, epoch: int | None = None) -> PlanReport:
    """Plan an epoch of a loader, and add it up.

    Samples that `exclude=` leaves out are counted as if they took part.

    Args:
        loader: with the plan; its state does not change.
        epoch: by default the loader's current one.

    Raises:
        PlanError: the epoch has no step.
    """
    epoch = loader.epoch if epoch is None else epoch
    options, schedule = loader.options, loader.components().schedule
    count = schedule.origin.source.count
    clock = _Clock()
    with Progress("planning", unit="sample", total=count) as progress:
        summary = summarise(
            clock.timed(loader.plan.steps(epoch=epoch), progress),
            schedule.plan,
            units_per_rank=options.units_per_rank,
            world_size=options.world_size,
            pad_to=options.pad_to,
            multiple_of=options.multiple_of,
        )
    if not summary.steps:
        raise PlanError(
            f"epoch {epoch} has no step: drop_last drops the only one, since its units are fewer "
            f"than the {options.share} that all ranks take"
        )
    return PlanReport(
        epoch=epoch,
        world_size=options.world_size,
        dataset_samples=len(loader.dataset),
        last_samples=count - summary.samples,
        lengths=look_at_lengths(loader.dataset, schedule.origin, schedule.plan),
        summary=summary,
        seconds=clock.seconds,
        first_seconds=clock.first,
    )


class _Clock:
    """Clock of the making of steps, without their use."""

    def __init__(self) -> None:
        self.seconds = self.first = 0.0

    def timed(self, steps: Iterator[Step], progress: Progress) -> Iterator[Step]:
        first = True
        while True:
            start = time.perf_counter()
            step = next(steps, None)
            self.seconds += time.perf_counter() - start
            if step is None:
                return
            if first:
                self.first, first = self.seconds, False
            yield step
            progress.advance(len(step.units.samples))
