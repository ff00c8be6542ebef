"""Engines of a pack: who prepares samples, and who writes their shards.

`open_engine` is the one choice. An engine has workers, whose parts come in the order of the inputs,
and a sink, which takes these parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from datapipe.cpus import available_cpus
from datapipe.errors import PackError
from datapipe.pack.journal import Journal
from datapipe.pack.sequence import ShardSink
from datapipe.pack.workers.pool import MODULES, PackWorkers
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.workers.engine import EngineName
from datapipe.workers.template import warm_up

if TYPE_CHECKING:
    from datapipe.pack.ray_engine import RayEngine


class LocalEngine:
    """Processes of this machine, and a thread that writes."""

    lost = 0
    """Inputs that became rejects because a node failed."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        warm_up(MODULES)

    def workers(self, options: PrepareOptions, *, few: bool) -> PackWorkers:
        """Return workers, for a `few` inputs or for many."""
        return PackWorkers(options, 1 if few else self._workers)

    def sink(self, journal: Journal) -> ShardSink:
        """Return the sink of the next shards."""
        assert journal.target is None
        return ShardSink(journal)

    def note(self) -> str:
        """Return what the line of progress says of the workers."""
        return ""

    def close(self) -> None:
        """End what the engine started."""


Engine: TypeAlias = "LocalEngine | RayEngine"
"""Workers and writers of a pack; each engine has what `LocalEngine` has."""


def open_engine(
    name: EngineName,
    workers: int | None,
    address: str | None,
    runtime_env: Mapping[str, Any] | None,
) -> Engine:
    """Return an engine by its name; `PackError` if an option means nothing to it."""
    if name == "ray":
        from datapipe.pack.ray_engine import RayEngine

        return RayEngine(address, workers, runtime_env)
    for option, value in (("--address", address), ("--runtime-env", runtime_env)):
        if value:
            raise PackError(f"{option} needs a Ray cluster; add --engine ray, or leave it out")
    return LocalEngine(workers or available_cpus())
