"""Profile of a loader: all measurements in turn, and the conclusions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from datapipe.cpus import available_cpus
from datapipe.declared import Seconds, checked, shorten
from datapipe.diagnosis.loader_rules import Limit
from datapipe.errors import PlanError
from datapipe.loader.loader import Loader
from datapipe.profile.forecast import Forecast, Remedy, rank
from datapipe.profile.measure.alone import library_stage, measure_alone
from datapipe.profile.measure.roofline import measure_roofline
from datapipe.profile.pipeline import PipelineRun, find_bottleneck, run_pipeline
from datapipe.profile.remedies import other_decoder, predict_remedies
from datapipe.report.table import counted, plain

Make = Callable[..., Loader]
"""Function that makes the loader; takes arguments of `make_loader` that differ from its own."""

_LONGEST_ALONE = 3.0  # seconds
_LONGEST_CEILING = 0.6  # seconds, of each
_OTHER_DECODER = 0.15  # of the time, for each of the two decoders
_SHARE_ALONE = 0.3  # of the time


@dataclass(frozen=True, kw_only=True)
class Profile:
    shards: str  # the dataset, as the user named it
    loader: str  # its description in a line
    workers: str  # as "2 threads"
    samples: int  # of the dataset that take part
    forecast: Forecast  # stages alone, ceilings, the loader at work, and the model of remedies
    paced: PipelineRun | None  # the loader at the pace of training; None if that is unknown
    bottleneck: Limit
    remedies: list[Remedy]  # the best first

    @property
    def runs(self) -> dict[str, PipelineRun]:
        """The loader at work, by the pace at which batches were taken."""
        runs = {"at full speed": self.forecast.run}
        return runs if self.paced is None else runs | {"at training's pace": self.paced}

    @property
    def batch(self) -> float:
        """Samples of a batch, on average."""
        reading = self.forecast.run.reading
        return reading.samples / max(reading.batches, 1)

    @property
    def rate(self) -> float:
        """Samples per second, batches taken as fast as they come."""
        return self.forecast.run.rate

    @property
    def needed(self) -> float | None:
        """Samples per second that training takes; None if its pace is unknown."""
        if self.paced is None or not self.paced.step_time:
            return None
        return self.batch / self.paced.step_time

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold; times in seconds, rates in samples per second."""
        alone = self.forecast.alone
        return {
            "shards": self.shards,
            "loader": self.loader,
            "verdict": str(self.bottleneck),
            "bottleneck": self.bottleneck.to_dict(),
            "rate": self.rate,
            "needed": self.needed,
            "images_per_sample": alone.images,
            "alone": {
                name: plain(cost) | {"rate": cost.rate} for name, cost in alone.stages.items()
            },
            "pipeline": self.forecast.run.to_dict(),
            "paced": None if self.paced is None else self.paced.to_dict(),
            "roofline": plain(self.forecast.roofline),
            "lock_held": self.forecast.held,
            "model_factor": self.forecast.factor,
            "remedies": [remedy.to_dict() for remedy in self.remedies],
        }


@checked(PlanError)
def profile_loader(
    make: Make,
    *,
    shards: str,
    seconds: Seconds = 10.0,
    step_time: Seconds | None = None,
    say: Callable[[str], None] = lambda phase: None,
) -> Profile:
    """Measure a loader, and predict what would make it faster.

    Takes about twice `seconds`, and `seconds` more with `step_time`.

    Args:
        make: makes the loader; with `epochs=None`, so that it does not end.
        shards: the dataset, as commands should name it.
        seconds: seconds for which the loader is measured.
        step_time: seconds that training takes for a batch; None if unknown.
        say: called with the name of each phase.

    Raises:
        PlanError: the loader has no batches, or `seconds` or `step_time` is impossible.
        DatapipeError: any error of the loader.
    """
    loader = make()
    if not isinstance(loader, Loader):
        raise PlanError(f"make returned {shorten(loader)}: give a function that returns a loader")
    with closing(loader):
        options, context = loader.options, loader.components().context
        cores, workers = available_cpus(), options.num_workers
        say("each stage by itself")
        alone = measure_alone(loader, seconds=min(_LONGEST_ALONE, _SHARE_ALONE * seconds))
        say("what this machine could do")
        ceiling = min(_LONGEST_CEILING, _SHARE_ALONE * seconds)
        roofline = measure_roofline(alone, cores=cores, readers=max(workers, 1), seconds=ceiling)
        say("the loader at work")
        # Each in an epoch of its own, so that it does not find its samples in the page cache.
        loader.set_epoch(1)
        run = run_pipeline(loader, seconds=seconds, events=True)
        paced = None
        if step_time is not None:
            say("the loader at the pace of training")
            loader.set_epoch(2)
            paced = run_pipeline(loader, seconds=seconds, step_time=step_time)
        say("what would make it faster")
        in_processes = options.in_processes
        forecast = Forecast(run=run, alone=alone, roofline=roofline, processes=in_processes)
        remedies = predict_remedies(loader, forecast, shards=shards)
        remedies += other_decoder(loader, make, rate=run.rate, seconds=_OTHER_DECODER * seconds)
        threaded = library_stage(context)
        if threaded == "tokenize" and context.images is not None:
            threaded = None  # images take most of the time, in the loader's own threads
        kind = ("process", "processes") if in_processes else ("thread", "threads")
        return Profile(
            shards=shards,
            loader=repr(loader),
            workers=counted(workers, *kind) if workers else "no workers",
            samples=loader.components().schedule.origin.source.count,
            forecast=forecast,
            paced=paced,
            bottleneck=find_bottleneck(
                run,
                paced,
                processes=in_processes,
                threaded=threaded,
                scaling=roofline.scaling.get(cores),
            ),
            remedies=rank(remedies),
        )
