"""Steps as tasks of a Ray cluster, for machines whose GPUs outrun their cores.

A task makes a whole batch by the code of a worker process, so it has the same bits. Ray runs a task
again elsewhere if its node dies.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from datapipe.errors import PlanError, WorkerError
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.batch.context import BatchContext
from datapipe.loader.metrics.meter import Meter
from datapipe.loader.workers.executor import PinnedResults, StepWorkers
from datapipe.loader.workers.ipc import BatchTask, Report, load_batch
from datapipe.loader.workers.process_steps import RemoteJob
from datapipe.loader.workers.process_worker import BatchWorkerFactory
from datapipe.loader.workers.ray_worker import RayWorkerFactory, SentBatch, dump_factory
from datapipe.loader.workers.shared_memory import Region, SharedFile
from datapipe.workers.protocol import Results
from datapipe.workers.ray_cluster import RETRIES, LostTask, RayCluster
from datapipe.workers.ray_tasks import RayFutures, do_job, pickle_factory

_KEPT = 3  # buffers: of the batch in use, the one before it and the next


def running_cluster() -> RayCluster:
    """Return the cluster that this program is connected to, or the one of `RAY_ADDRESS`.

    None is started: on this machine alone it would do what worker processes do. `PlanError` if
    there is none, or it does not answer.
    """
    ray: Any = sys.modules.get("ray")
    if not os.environ.get("RAY_ADDRESS") and not (ray and ray.is_initialized()):
        raise PlanError(
            "workers='ray' found no Ray cluster; set RAY_ADDRESS to the address of one, or call "
            "ray.init before make_loader; on one machine, use workers='processes'"
        )
    try:
        return RayCluster(None, None, None)
    except WorkerError as error:
        raise PlanError(f"workers='ray': {error}") from error


def cluster_workers(world_size: int) -> int:
    """Return the CPUs of the running cluster for one of so many ranks, at least 1."""
    return max(1, running_cluster().resources.cpus // world_size)


class RaySteps(StepWorkers[RemoteJob]):
    """Tasks of a cluster in one run, of which `most` are begun or wait to be taken."""

    def __init__(
        self, cluster: RayCluster, context: BatchContext, *, most: int, meter: Meter | None
    ) -> None:
        self._cluster = cluster
        self._context = context
        self._most = most
        self._meter = meter
        self._numbers = itertools.count()
        self._pin = context.pinned
        self._memory = BufferPool(_KEPT)
        self._factory = _dump(context)

    def run(self, jobs: Iterator[RemoteJob]) -> Results[Any]:
        factory = self._cluster.put(self._factory)
        clock = None if self._meter is None else self._meter.options

        def submit(job: RemoteJob) -> Any:
            job.task = BatchTask(next(self._numbers), Region(0), job.step, clock)
            # Never inside of the placement group of a trainer, whose CPUs are taken.
            return self._cluster.submit(do_job, factory, job.task, scheduling_strategy="SPREAD")

        futures = RayFutures(self._cluster, jobs, submit, most=self._most)
        return PinnedResults(futures, partial(self._fetch, futures))

    def finish(self, job: RemoteJob, result: tuple[Report, Any, str]) -> None:
        report, (batch, blank, errors), node = result
        for slot, error in errors.items():
            reason = f"{error.reason} (on the node {node})"
            named = {"key": error.key, "shard": error.shard, "member": error.member}
            errors[slot] = type(error)(reason, **named)
        job.finish(report, (batch, blank, errors), self._meter)

    def describe(self, job: RemoteJob) -> list[str]:
        free, cpus = self._cluster.free_cpus, self._cluster.resources.cpus
        batch = self._context.describe_step(job.step)
        return [f"{batch} is not done, and {free} of the {cpus} CPUs of the cluster are free"]

    def _fetch(
        self, futures: RayFutures[RemoteJob], begun: tuple[RemoteJob, Any]
    ) -> tuple[Report, Any, str]:
        """Wait for a batch, and copy it to memory that the training loop may write to."""
        job, reference = begun
        try:
            sent: SentBatch = futures.result(reference)
        except LostTask as error:
            raise WorkerError(
                f"{self._context.describe_step(job.step)} failed in each of {RETRIES + 1} "
                f"attempts: {error}"
            ) from error
        buffer = self._memory.allocate(sent.content.shape, torch.uint8).numpy()
        np.copyto(buffer, sent.content)
        # Clocks of other machines say nothing here.
        report = replace(sent.report, finished=time.perf_counter_ns())
        return report, load_batch(buffer[report.content].data, buffer, self._pin), sent.node


def _dump(context: BatchContext) -> bytes:
    """Pickle the factory of a cluster's workers; `PlanError` if it cannot be sent there."""
    level = logging.getLogger("datapipe").getEffectiveLevel()
    factory = BatchWorkerFactory(context=context, file=SharedFile(1), level=level)
    try:
        content = dump_factory(factory)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PlanError(f"workers='ray': objects of a batch cannot be sent: {error}") from error
    return pickle_factory(
        RayWorkerFactory(content=content, dataset=context.dataset.title, folder=os.getcwd())
    )
