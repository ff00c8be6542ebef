"""Steps as tasks of a Ray cluster, for machines whose GPUs outrun their cores.

A task makes a whole batch by the code of a worker process, so it has the same bits. Ray runs a task
again elsewhere if its node dies.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from datapipe.array_types import UInt8
from datapipe.errors import DatapipeError, PlanError, WorkerError
from datapipe.index.columns import Columns
from datapipe.index.dataset import Dataset
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.batch.context import BatchContext
from datapipe.loader.metrics.meter import Meter
from datapipe.loader.workers.executor import PinnedResults, StepWorkers
from datapipe.loader.workers.ipc import BatchTask, Report, load_batch
from datapipe.loader.workers.process_steps import (
    BatchWorker,
    BatchWorkerFactory,
    RemoteJob,
    context_reducers,
)
from datapipe.loader.workers.shared_memory import Region, SharedFile
from datapipe.workers.protocol import Results
from datapipe.workers.ray_cluster import RETRIES, LostTask, RayCluster, node_name
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


class SentBatch(NamedTuple):
    """Batch of a task: the report of its worker, the bytes of its region, and its node."""

    report: Report
    content: UInt8
    node: str


@dataclass(frozen=True, kw_only=True)
class RayWorkerFactory:
    """Factory for the worker of a Ray process, with the pickle of a `BatchWorkerFactory`."""

    content: bytes
    dataset: str  # title, for messages
    folder: str  # working directory of the loader's process, which relative paths start from

    def __call__(self) -> RayWorker:
        node = node_name()
        with suppress(OSError):
            os.chdir(self.folder)
        try:
            return RayWorker(pickle.loads(self.content)(), node)
        except (DatapipeError, OSError) as error:
            raise WorkerError(
                f"the node {node} cannot open {self.dataset}: {error}; give paths that all nodes "
                "share, or a URL"
            ) from error


@dataclass(frozen=True)
class RayWorker:
    """Maker of whole batches, in a process of a Ray cluster."""

    worker: BatchWorker
    node: str

    def __call__(self, task: BatchTask) -> SentBatch:
        """Make the batch of a task. Ray tries those again that fail with an `OSError`."""
        try:
            report = self.worker(task)
        except (MemoryError, OSError):
            raise
        except Exception as error:
            raise WorkerError(
                f"the node {self.node} failed at {self.worker.context.describe_step(task.step)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return SentBatch(report, self.worker.pool.written, self.node)


class RaySteps(StepWorkers[RemoteJob]):
    """Tasks of a cluster in one run. `prefetch_factor` for each worker are begun or wait."""

    def __init__(self, cluster: RayCluster, context: BatchContext, meter: Meter | None) -> None:
        self._cluster = cluster
        self._context = context
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

        most = self._context.options.num_workers * self._context.options.prefetch_factor
        futures = RayFutures(self._cluster, jobs, submit, most=most)
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
    """Pickle the factory of a cluster's workers; `PlanError` if it cannot be sent there.

    Functions of scripts are sent as their code. A node opens the dataset itself, and maps its own
    copy of the columns.
    """
    from ray import cloudpickle

    dataset, file = context.dataset, SharedFile(1)
    reducers = context_reducers(file) | {
        SharedFile: lambda file: (_own_memory, ()),
        Dataset: lambda dataset: (dataset.opener, ()),
        Columns: lambda columns: (
            (attrgetter("columns"), (dataset,)) if columns is dataset.columns else NotImplemented
        ),
    }

    base: Any = cloudpickle.CloudPickler

    class NodePickler(base):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            reduced = NotImplemented
            if (reduce := reducers.get(type(obj))) is not None:
                reduced = reduce(obj)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    buffer = io.BytesIO()
    pickler: Any = NodePickler(buffer, protocol=5)
    try:
        pickler.dump(BatchWorkerFactory(context=context, file=file))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PlanError(f"workers='ray': objects of a batch cannot be sent: {error}") from error
    return pickle_factory(
        RayWorkerFactory(content=buffer.getvalue(), dataset=dataset.title, folder=os.getcwd())
    )


def _own_memory() -> SharedFile:
    """Return memory for one batch: a worker is at one task at a time."""
    file = SharedFile(1)
    file.add(0)
    return file
