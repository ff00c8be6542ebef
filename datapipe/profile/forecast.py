"""Measurements of a loader, the cost of its samples, and the forecast of remedies' rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from datapipe.loader.loader import Loader
from datapipe.profile.measure.alone import Alone
from datapipe.profile.measure.roofline import DEEP, Ceiling, Roofline
from datapipe.profile.measure.samples import COLD
from datapipe.profile.model import Machine, SampleCost, WorkerSetup, predict
from datapipe.profile.pipeline import PipelineRun
from datapipe.report.table import ratio

WORTH = 1.03
"""Gain below which a remedy is not worth its effort: the difference of two equal runs."""
_ROOM = 1.3  # times the rate of training, that a loader should have
_NOTICED = 2e-5  # seconds; a shorter wait of a stage is the clock's own noise
# Share of its time that a thread waits for the interpreter's lock where Python code always runs:
# after 2 ms of sleep the holder keeps the lock for 5 ms once it is asked for it.
_ALWAYS = 0.7


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All measurements of a loader."""

    run: PipelineRun  # the loader at work, batches taken as fast as they came
    alone: Alone  # its stages by themselves
    roofline: Roofline  # ceilings of the machine

    @property
    def held(self) -> float:
        """Share of the time, 0 to 1, that code with a transform holds the interpreter's lock."""
        if "transform" not in self.run.reading.all_stages:
            return 0.0
        return min(1.0, (self.run.usage.gil or 0.0) / _ALWAYS)

    @property
    def cold(self) -> float:
        """Share of what the loader read, 0 to 1, that came from storage."""
        read, asked = self.run.usage.read, self.run.reading.stages.get("read")
        if not read or asked is None or not asked.bytes:
            return 0.0
        return min(1.0, read / asked.bytes)

    @property
    def storage(self) -> Ceiling | None:
        """Fastest cold reads; None if they could not be measured."""
        ceilings = self.roofline.ceilings
        return ceilings.get(DEEP) or ceilings.get("storage, cold")

    @property
    def machine(self) -> Machine:
        """Machine that the loader runs on."""
        bounded = self.storage is not None and self.cold > 0.05
        return Machine(
            cores=self.roofline.cores,
            scaling=self.roofline.scaling,
            storage=self.storage.rate / self.cold if self.storage and bounded else None,
        )

    def cost(self, *, cold: float | None = None) -> SampleCost:
        """Compute the cost of a sample while nothing else runs.

        CPU time is that of the loader at work, corrected for cores that slow each other down;
        waiting is that of the stages alone, since at work it includes waiting for processors.

        Args:
            cold: share that is read from storage; None for that of the run.
        """
        reading, usage = self.run.reading, self.run.usage
        samples, share = max(reading.samples, 1), self.cold if cold is None else cold
        busy = ratio(usage.cpu, usage.seconds)
        slower = samples * max(1.0, ratio(busy, self.machine.speed(busy)))
        cpu = {name: stage.cpu / slower for name, stage in reading.stages.items()}
        caller = {name: stage.cpu / slower for name, stage in reading.caller.items()}
        waits = {name: self._wait(name) for name in {*cpu, *caller}}
        if "read" in waits:
            waits["read"] = (1 - share) * self._wait("read") + share * self._wait(COLD)
        return SampleCost(
            cpu=cpu,
            wait={name: waits[name] for name in cpu if waits[name]},
            caller_cpu=caller,
            caller_wait={name: waits[name] for name in caller if waits[name]},
            overhead=max(0.0, usage.cpu / slower - sum(cpu.values()) - sum(caller.values())),
            locked=ratio(self.held, self.run.rate),
        )

    def _wait(self, stage: str) -> float:
        found = self.alone.stages.get(stage)
        return found.wait if found is not None and found.wait > _NOTICED else 0.0


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change, and its gain."""

    name: str  # short, for machines
    title: str  # the change, for readers
    how: str  # the command, or the option of `make_loader`
    rate: float  # samples per second with it
    gain: float  # rate over that of today
    source: Literal["predicted", "measured"] = "predicted"
    bound: str = ""  # the limit with it
    note: str = ""  # a condition or a drawback
    # arguments of `make_loader` that apply it; None if it takes more than that
    changes: Mapping[str, Any] | None = field(default=None, compare=False)
    max_side: int | None = None  # argument of `datapipe pack` that applies it

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold."""
        return {
            "name": self.name,
            "title": self.title,
            "how": self.how,
            "samples_per_second": self.rate,
            "gain": self.gain,
            "source": self.source,
            "bound": self.bound or None,
            "note": self.note or None,
        }


class Forecast:
    """Predicts rates of a loader from its measurements.

    The model is calibrated: its rates are multiplied by `factor`, the measured rate of the loader
    over the predicted one.
    """

    def __init__(self, loader: Loader, measured: Measured) -> None:
        options = loader.options
        self.measured = measured
        self.setting = WorkerSetup(
            workers=options.num_workers, processes=options.workers == "processes"
        )
        self.cost = measured.cost()
        self.machine = measured.machine
        self.rate = measured.run.rate
        self._model = predict(self.cost, self.machine, self.setting)
        self.factor = ratio(self.rate, self._model.rate)

    @property
    def left(self) -> float:
        """Share of the cores' time, 0 to 1, that other processes left during the measurement."""
        return max(0.0, 1 - self.measured.run.usage.others_share)

    @property
    def bound(self) -> str:
        """Bound of the loader, by the model."""
        return self._model.bound

    def with_workers(self, workers: int) -> float:
        """Predict the rate with another number of workers, without the factor."""
        return predict(self.cost, self.machine, replace(self.setting, workers=workers)).rate

    def enough(self, needed: float) -> int | None:
        """Return the fewest workers that make `needed` samples per second with room to spare.

        None if not even all workers of the loader do.
        """
        return next(
            (
                workers
                for workers in range(1, self.setting.workers + 1)
                if self.factor * self.with_workers(workers) >= _ROOM * needed
            ),
            None,
        )

    def remedy(
        self,
        name: str,
        title: str,
        how: str,
        *,
        cost: SampleCost | None = None,
        setting: WorkerSetup | None = None,
        machine: Machine | None = None,
        factor: float | None = None,
        **more: Any,
    ) -> Remedy:
        """Make a remedy that changes cost, setting, machine or factor."""
        found = predict(cost or self.cost, machine or self.machine, setting or self.setting)
        rate = (self.factor if factor is None else factor) * found.rate
        return Remedy(
            name=name,
            title=title,
            how=how,
            rate=rate,
            gain=ratio(rate, self.rate),
            bound=found.bound,
            **more,
        )


def rank(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Sort remedies by gain, the largest first."""
    return sorted(remedies, key=lambda remedy: -round(remedy.gain, 2))
