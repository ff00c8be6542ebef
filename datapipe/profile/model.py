"""Model of a loader's rate from the cost of a sample, calibrated by one measurement.

Workers are a closed system: each uses a core for a sample and then waits, for storage say. The
number at work follows from the queue with a finite population (Kleinrock, "Queueing Systems",
vol. 1, 1975, chapter 3), with a rate of service that grows with the cores in use as measured. Work
of one thread, or under one lock, bounds the rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from datapipe.report.table import ratio


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
