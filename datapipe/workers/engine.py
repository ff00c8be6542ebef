"""Engines: this machine or a Ray cluster does the jobs of a command.

A command says how a worker gets its function (`factory`), and which pool of this machine it takes.
`open_pool` returns that pool, or one of the same jobs on the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from datapipe.declared import Word, check_fields
from datapipe.errors import WorkerError
from datapipe.workers.protocol import WorkerPool
from datapipe.workers.ray_cluster import RayCluster
from datapipe.workers.ray_tasks import RayPool

J = TypeVar("J")
R = TypeVar("R")

EngineName = Literal["local", "ray"]


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """Choice of the engine of a command.

    Attributes:
        engine: "local" does the jobs on this machine, "ray" in tasks of a Ray cluster.
        address: address of the Ray cluster: auto, or host:port; by default that of RAY_ADDRESS. If
            no cluster runs, one is started here and stopped after the command.

    Raises:
        WorkerError: an address is given to the local engine.
    """

    engine: EngineName = "local"
    address: Word | None = None

    def __post_init__(self) -> None:
        check_fields(self, WorkerError)
        if self.address and self.engine != "ray":
            raise WorkerError("--address needs a Ray cluster; add --engine ray, or leave it out")

    @contextmanager
    def cluster(self, workers: int | None = None) -> Iterator[RayCluster | None]:
        """Connect to the cluster; None of the local engine.

        A cluster that is started here has `workers` CPUs. Raises `WorkerError` if there
        is no cluster.
        """
        if self.engine == "local":
            yield None
            return
        with closing(RayCluster(self.address, workers, None)) as cluster:
            yield cluster


def open_pool(
    cluster: RayCluster | None,
    factory: Callable[[], Callable[[J], R]],
    here: Callable[[], WorkerPool[J, R]],
    **options: Any,
) -> WorkerPool[J, R]:
    """Return a pool on the cluster, whose workers call `factory`, or the one of this machine.

    `options` are those of a `RayPool`.
    """
    return here() if cluster is None else RayPool(cluster, factory, **options)
