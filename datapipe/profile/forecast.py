"""Cost of a loader's samples as it was measured, and the forecast of remedies' rates.

The model is calibrated by one measurement. Workers are a closed system: each uses a core for a
sample and then waits, for storage say. The number at work follows from the queue with a finite
population (Kleinrock, "Queueing Systems", vol. 1, 1975, chapter 3), with a rate of service that
grows with the cores in use as measured. Work of one thread, or under one lock, bounds the rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from datapipe.profile.measure.alone import StageCosts
from datapipe.profile.measure.roofline import COLD_STORAGE, Ceiling, Roofline
from datapipe.profile.measure.samples import COLD
from datapipe.profile.pipeline import PipelineRun
from datapipe.report.table import ratio

WORTH = 1.03
"""Gain below which a remedy is not worth its effort: the difference of two equal runs."""

_NOTICED = 2e-5  # seconds; a shorter wait of a stage is the clock's own noise
_BOUNDED = 0.05  # share of reads from storage, from which on it may be the limit
# Share of its time that a thread waits for the interpreter's lock where Python code always runs:
# after 2 ms of sleep the holder keeps the lock for 5 ms once it is asked for it.
_ALWAYS = 0.7


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A loader's workers, and the machine that they run on."""

    workers: int
    processes: bool = False
    cores: int  # that it may use
    scaling: Mapping[int, float]  # by number of threads: how many times the work of one
    # samples per second that storage delivers at most; None if that is no limit
    storage: float | None = None

    def speed(self, threads: float) -> float:
        """Return how many times the work of one thread this many do, at most all cores."""
        numbers, speeds = zip(*sorted({0: 0.0, 1: 1.0, **self.scaling}.items()), strict=True)
        return float(np.interp(threads, numbers, speeds))


@dataclass(frozen=True, kw_only=True)
class SampleCost:
    """Cost of a sample, in seconds, while nothing else runs."""

    # cpu, wait: of a core, and without one, by stage, in workers
    cpu: Mapping[str, float]
    wait: Mapping[str, float] = field(default_factory=dict)
    # caller_cpu, caller_wait: likewise, in the thread that takes batches
    caller_cpu: Mapping[str, float] = field(default_factory=dict)
    caller_wait: Mapping[str, float] = field(default_factory=dict)
    overhead: float = 0.0  # of a core, outside of stages and in threads of libraries
    locked: float = 0.0  # with the interpreter's lock held

    def scaled(self, factors: Mapping[str, float]) -> SampleCost:
        """Return the cost with the CPU time of some stages multiplied."""
        return replace(
            self,
            cpu={name: value * factors.get(name, 1.0) for name, value in self.cpu.items()},
            caller_cpu={n: value * factors.get(n, 1.0) for n, value in self.caller_cpu.items()},
        )

    def mixed(self, other: SampleCost, part: float) -> SampleCost:
        """Return the mean cost where `part` of the samples have this one, and the rest the other.

        What the thread that takes batches does is the other's.
        """

        def mean(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
            return {n: part * a.get(n, 0.0) + (1 - part) * b.get(n, 0.0) for n in {*a, *b}}

        return replace(other, cpu=mean(self.cpu, other.cpu), wait=mean(self.wait, other.wait))


def predict(cost: SampleCost, setup: Setup) -> float:
    work, wait = sum(cost.cpu.values()), sum(cost.wait.values())
    caller_work = sum(cost.caller_cpu.values())
    caller = caller_work + sum(cost.caller_wait.values())
    if not setup.workers:
        return ratio(1, work + wait + caller)  # one thread does all of it in turn
    bounds = [
        repairmen(setup, work, wait),
        ratio(setup.speed(setup.cores), work + cost.overhead + caller_work),
    ]
    if caller > 0:
        bounds.append(1 / caller)
    if cost.locked > 0 and not setup.processes:
        bounds.append(1 / cost.locked)
    if setup.storage is not None:
        bounds.append(setup.storage)
    return min(bounds)


def repairmen(setup: Setup, work: float, wait: float) -> float:
    """Predict samples per second of workers that use a core for `work` seconds, and wait `wait`.

    Both are taken as exponentially distributed: a birth-death process.
    """
    if work + wait <= 0:
        return 1e9
    if wait <= 0:
        return setup.speed(setup.workers) / work
    if work <= 0:
        return setup.workers / wait
    # Weights of 0 to `workers` at work, each from the one before; only their ratios count.
    weight, total, served = 1.0, 1.0, 0.0
    for busy in range(1, setup.workers + 1):
        service = setup.speed(busy) / work
        weight *= (setup.workers - busy + 1) / wait / service
        total += weight
        served += weight * service
    return served / total


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change, and its gain."""

    name: str  # short, for machines
    title: str  # the change, for readers
    how: str  # the command, or the option of `make_loader`
    rate: float  # samples per second with it
    gain: float  # rate over that of today
    source: Literal["predicted", "measured"] = "predicted"
    note: str = ""  # a condition or a drawback
    # arguments of `make_loader` that apply it; None if it takes more than that
    changes: Mapping[str, Any] | None = field(default=None, compare=False)
    max_side: int | None = None  # argument of `datapipe pack` that applies it

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "changes"}


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Measurements of a loader, and the rates that they predict.

    The model is calibrated: its rates are multiplied by `factor`, the measured rate of the loader
    over the predicted one.
    """

    run: PipelineRun  # the loader at work, batches taken as fast as they came
    alone: StageCosts  # its stages by themselves
    roofline: Roofline  # ceilings of the machine
    processes: bool  # whether its workers are processes

    @property
    def rate(self) -> float:
        """Samples per second, as measured."""
        return self.run.rate

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
        return self.roofline.ceilings.get(COLD_STORAGE)

    @cached_property
    def setup(self) -> Setup:
        bounded = self.storage is not None and self.cold > _BOUNDED
        return Setup(
            workers=self.run.reading.workers,
            processes=self.processes,
            cores=self.roofline.cores,
            scaling=self.roofline.scaling,
            storage=self.storage.rate / self.cold if self.storage and bounded else None,
        )

    @cached_property
    def cost(self) -> SampleCost:
        return self.cost_of_reads(self.cold)

    def cost_of_reads(self, cold: float) -> SampleCost:
        """Compute the cost of a sample while nothing else runs, with a share of cold reads.

        CPU time is that of the loader at work, corrected for cores that slow each other down;
        waiting is that of the stages alone, since at work it includes waiting for processors.
        """
        reading, usage = self.run.reading, self.run.usage
        busy = ratio(usage.cpu, usage.seconds)
        slower = max(reading.samples, 1) * max(1.0, ratio(busy, self.setup.speed(busy)))
        cpu = {name: stage.cpu / slower for name, stage in reading.stages.items()}
        caller = {name: stage.cpu / slower for name, stage in reading.caller.items()}
        waits = {name: self._wait(name) for name in {*cpu, *caller}}
        if "read" in waits:
            waits["read"] = (1 - cold) * self._wait("read") + cold * self._wait(COLD)
        return SampleCost(
            cpu=cpu,
            wait={name: waits[name] for name in cpu if waits[name]},
            caller_cpu=caller,
            caller_wait={name: waits[name] for name in caller if waits[name]},
            overhead=max(0.0, usage.cpu / slower - sum(cpu.values()) - sum(caller.values())),
            locked=ratio(self.held, self.rate),
        )

    def _wait(self, stage: str) -> float:
        found = self.alone.stages.get(stage)
        return found.wait if found is not None and found.wait > _NOTICED else 0.0

    @cached_property
    def factor(self) -> float:
        return ratio(self.rate, predict(self.cost, self.setup))

    def remedy(
        self,
        name: str,
        title: str,
        how: str,
        *,
        cost: SampleCost | None = None,
        setup: Setup | None = None,
        factor: float | None = None,
        **more: Any,
    ) -> Remedy:
        rate = predict(cost or self.cost, setup or self.setup)
        rate *= self.factor if factor is None else factor
        gain = ratio(rate, self.rate)
        return Remedy(name=name, title=title, how=how, rate=rate, gain=gain, **more)


def rank(remedies: Sequence[Remedy]) -> list[Remedy]:
    return sorted(remedies, key=lambda remedy: -round(remedy.gain, 2))
