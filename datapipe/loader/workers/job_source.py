"""Jobs of a run, and the workers that execute them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from datapipe.cache.next_use import NextUses
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.device.device_cache import DeviceCache
from datapipe.loader.metrics.meter import Meter
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.loader.schedule.state import Run
from datapipe.loader.workers.executor import StepExecutor, StepWorkers
from datapipe.loader.workers.prefetch import read_ahead, with_rows
from datapipe.loader.workers.process_steps import ProcessSteps, RemoteJob
from datapipe.loader.workers.ray_steps import RaySteps, running_cluster
from datapipe.loader.workers.thread_steps import InlineSteps, PlannedSteps, ThreadSteps
from datapipe.plan.units import RandomKeys

J = TypeVar("J")

FinishedJob = BatchBuilder | RemoteJob
"""Step whose batch is made."""

Executor = StepExecutor[BatchBuilder] | StepExecutor[RemoteJob]
"""Iterator over the finished steps of a run."""


class JobSource:
    """Source of the jobs of a loader."""

    def __init__(
        self,
        context: BatchContext,
        *,
        device_cache: DeviceCache | None,
        loads: bool,  # False if batches come from another rank
    ) -> None:
        self._context = context
        self._options = options = context.options
        self._device_cache = device_cache
        self._loads = loads
        self._cluster = running_cluster() if options.on_cluster and loads else None
        here = options.in_processes and self._cluster is None and loads
        self._processes = ProcessSteps(context) if here else None
        self._runs = 0  # begun so far
        self._begun = False  # whether the first step was made
        self._lock = threading.Lock()  # of the count and of what ends with a run
        self._planned: tuple[Schedule, NextUses] | None = None

    def begin(self, run: Run, schedule: Schedule, meter: Meter | None) -> Executor:
        """Start workers on the steps of a run."""
        options, context = self._options, self._context
        steps = self.steps(run, schedule)
        remote: StepWorkers[RemoteJob] | None = None
        if not self._loads:
            remote = PlannedSteps()
        elif self._cluster is not None:
            remote = RaySteps(self._cluster, context, meter)
        elif self._processes is not None:
            processes = self._processes
            if not options.workers.persistent:
                processes = ProcessSteps(context)
            processes.meter, remote = meter, processes
        if remote is not None:
            remote_jobs = self._jobs(steps, partial(RemoteJob, context), meter)
            return StepExecutor(remote_jobs, remote, options.workers.stall_warning)
        if self._device_cache is None:  # else a step is made from what the ones before it keep
            steps = with_rows(steps, context)
        steps = read_ahead(steps, context, options.read_ahead)
        with self._lock:
            self._runs += 1
            context.store.close()  # cancels the reads of a run that was left
        workers: StepWorkers[BatchBuilder]
        count, on_end = options.num_workers, partial(self._end, self._runs)
        if count:
            workers = ThreadSteps(count, ahead=options.prefetch_factor, on_end=on_end, meter=meter)
        else:
            workers = InlineSteps(on_end=on_end, meter=meter)
        jobs = self._jobs(steps, partial(BatchBuilder, context), meter)
        return StepExecutor(jobs, workers, options.workers.stall_warning)

    def close(self) -> None:
        """End worker processes."""
        if self._processes is not None:
            self._processes.close()

    def _end(self, run: int) -> None:
        """Close the store once the workers of a run have ended, unless another one uses it."""
        with self._lock:
            if run == self._runs:
                self._context.store.close()

    def _jobs(
        self, steps: Iterator[StepJob], make: Callable[[StepJob], J], meter: Meter | None
    ) -> Iterator[J]:
        if meter is not None:
            steps = meter.caller.through("plan", steps)
            make = meter.caller.timed("collate", make)
        return map(make, steps)

    def steps(self, run: Run, schedule: Schedule) -> Iterator[StepJob]:
        """Yield this rank's part of each step of a run."""
        next_uses = self._plan_uses(schedule)
        for step, after, over in schedule.steps(run):
            share = self._options.deal(step)
            epoch, samples = step.start.epoch, share.units.numbers
            first, self._begun = not self._begun, True
            yield StepJob(
                share=share,
                epoch=epoch,
                run_after=after,
                keys=RandomKeys(share.units, schedule.origin.identities),
                labels=step.labels,
                first=first,
                last=over,
                next_use=None if next_uses is None else next_uses.of(samples, epoch),
                resident=self._device_cache.holds(samples) if self._device_cache else None,
            )

    def _plan_uses(self, schedule: Schedule) -> NextUses | None:
        """Return the next uses of samples, if a cache evicts by them; a state may change them."""
        options, context = self._options, self._context
        if context.cache is None or not context.cache.plans_ahead:
            return None
        if self._planned is None or self._planned[0] is not schedule:
            uses = NextUses(
                schedule.blocks,
                samples=len(context.dataset),
                rank=options.rank,
                world_size=options.world_size,
                share=options.share,
            )
            self._planned = schedule, uses
        return self._planned[1]
