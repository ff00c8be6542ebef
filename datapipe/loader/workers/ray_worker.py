"""Code of a task on a Ray cluster: the steps of a loader in, batches out."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from datapipe.array_types import UInt8
from datapipe.errors import DatapipeError, WorkerError
from datapipe.index.columns import Columns
from datapipe.index.dataset import Dataset
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.workers.ipc import BatchTask, Report, reduce_array
from datapipe.loader.workers.process_worker import BatchWorker, BatchWorkerFactory, RegionPool
from datapipe.loader.workers.shared_memory import SharedFile
from datapipe.workers.ray_cluster import node_name


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


def dump_factory(factory: BatchWorkerFactory) -> bytes:
    """Pickle a factory for other nodes, with functions of scripts by their code.

    A node opens a dataset itself, and maps its own copy of the columns.
    """
    from ray import cloudpickle

    dataset = factory.context.dataset
    reducers: dict[type, Callable[[Any], Any]] = {
        np.ndarray: reduce_array,
        np.memmap: reduce_array,
        BufferPool: lambda pool: (RegionPool, (factory.file,)),
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
    pickler.dump(factory)
    return buffer.getvalue()


def _own_memory() -> SharedFile:
    """Return memory for one batch: a worker is at one task at a time."""
    file = SharedFile(1)
    file.add(0)
    return file
