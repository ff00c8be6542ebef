"""Connection to a Ray cluster: tasks in, references to their results out.

Ray is imported when a cluster is asked for, as it takes half a second.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from datapipe.errors import WorkerError
from datapipe.extras import install_command
from datapipe.workers.standard_error import capture, take_printed

RETRIES = 2
"""Times that Ray runs a task again whose worker or node died, or whose result was lost."""

_LOOK_AGAIN = 2.0  # seconds after which the nodes are counted again
_REACH = 10.0  # seconds to reach the address of a cluster
_RETRIED = [MemoryError, OSError]  # exceptions of a node and its moment, more than of the task
_printed_to = -1  # standard error as Ray made it, in a worker


class LostTask(WorkerError):
    """A task whose worker or node died in every attempt; `kind` is the class of Ray's error."""

    def __init__(self, kind: str, reason: str) -> None:
        self.kind = kind
        self.reason = reason
        super().__init__(f"{reason} ({kind})")


_REASONS = {
    "WorkerCrashedError": "the process of its task died",
    "OutOfMemoryError": "its task was killed for lack of memory on its node",
    "NodeDiedError": "the node of its task died",
    "LocalRayletDiedError": "the node of its task died",
}


class Resources(NamedTuple):
    """Resources of a cluster."""

    nodes: int
    cpus: int  # of all nodes
    memory: float  # bytes of the object stores of all nodes


class RayCluster:
    """Cluster at an address, that of `RAY_ADDRESS`, or one that is started here.

    A cluster to which the program is connected already is used as it is. WorkerError if Ray is not
    installed, or no cluster answers.
    """

    def __init__(
        self, address: str | None, cpus: int | None, runtime_env: Mapping[str, Any] | None
    ) -> None:
        # Ray would run a task again for ever whose worker is killed for lack of memory.
        os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))
        # References to what a lost task would have made are dropped, and their errors are known.
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        try:
            import ray
        except ImportError as error:
            raise WorkerError(
                f"the engine ray needs a package that is missing ({error}): "
                f"{install_command('ray')}"
            ) from None
        self._ray: Any = ray
        self._connected = not ray.is_initialized()
        if self._connected:
            self._connect(address, cpus, dict(runtime_env or {}))
        elif address or runtime_env or cpus:
            raise WorkerError(
                "this program is connected to Ray already; give the address, the runtime_env and "
                "the number of CPUs to `ray.init`, and leave them out here"
            )
        self._run = ray.remote(_run)
        self._looked = -inf

    def _connect(self, address: str | None, cpus: int | None, runtime_env: dict[str, Any]) -> None:
        where = address or os.environ.get("RAY_ADDRESS")
        if where and cpus:
            raise WorkerError(
                f"the number of workers ({cpus}) only applies to a cluster that is started here, "
                f"but {where} is running; leave it out: tasks use the CPUs that are free"
            )
        if where and where.startswith("ray://"):
            raise WorkerError(
                f"{where}: Ray Client is not supported; run the command on a node of the "
                "cluster, with `ray job submit` from elsewhere"
            )
        given: dict[str, Any] = {"address": where or ("local" if cpus else None)}
        if not where:
            given["include_dashboard"] = False
        if cpus:
            given["num_cpus"] = cpus
        if runtime_env:
            given["runtime_env"] = runtime_env
        try:
            _reach(where)
            self._ray.init(**given, logging_level=logging.WARNING)
        except (OSError, RuntimeError, ValueError) as error:
            raise WorkerError(
                f"no Ray cluster can be used{f' at {where}' if where else ''}: {error}; start one "
                "with `ray start --head`, set RAY_AUTH_TOKEN if it asks for a token, or leave the "
                "address out to have one started here"
            ) from error

    def close(self) -> None:
        """End the connection, and the cluster if it was started here."""
        if self._connected:
            self._ray.shutdown()

    def put(self, value: Any) -> Any:
        """Put a value that many tasks take into the object store; return the reference to it."""
        return self._ray.put(value)

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Begin a task; return the reference to its result, or a list of as many as it returns.

        `options` are those of a Ray task.
        """
        given = {"max_retries": RETRIES, "retry_exceptions": _RETRIED, "name": function.__name__}
        return self._run.options(**given | options).remote(function, *args)

    def ready(self, references: Sequence[Any], seconds: float | None) -> list[Any]:
        """Wait for a result; return the references to all that there are."""
        if not references:
            return []
        first, _ = self._ray.wait(references, num_returns=1, timeout=seconds)
        if not first:
            return []
        every, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return list(every or first)

    def result(self, reference: Any) -> Any:
        """Wait for a result, or raise what the task raised.

        LostTask if the cluster lost it in every attempt, WorkerError if it cannot be run.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.ObjectLostError):
                raise _lost(error.cause) from None
            if isinstance(error.cause, tuple(_RETRIED)):
                raise LostTask(type(error.cause).__name__, str(error.cause)) from error
            raise error.cause from error
        except (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.LocalRayletDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
        ) as error:
            raise _lost(error) from None
        except errors.RayError as error:
            raise WorkerError(f"Ray cannot run a task: {error}") from error

    @property
    def resources(self) -> Resources:
        if time.monotonic() - self._looked > _LOOK_AGAIN:
            found = self._ray.cluster_resources()
            self._resources = Resources(
                nodes=sum(node["Alive"] for node in self._ray.nodes()),
                cpus=max(int(found.get("CPU", 0)), 1),
                memory=found.get("object_store_memory", 0.0),
            )
            self._looked = time.monotonic()
        return self._resources

    @property
    def free_cpus(self) -> int:
        """CPUs that no task or actor has now."""
        return int(self._ray.available_resources().get("CPU", 0))


def node_name() -> str:
    """Return the address of the node that this task runs on."""
    import ray

    util: Any = ray.util
    return str(util.get_node_ip_address())


def _reach(address: str | None) -> None:
    """Raise `OSError` if nothing listens there: Ray would try for ever."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH).close()


def _lost(error: Exception) -> LostTask:
    kind = type(error).__name__
    return LostTask(kind, _REASONS.get(kind, "the result of its task was lost with its node"))


def _run(function: Callable[..., Any], *args: Any) -> Any:
    """Run a task, then pass on what it printed. Entry of a task.

    Both outputs of a worker go to a file first, as those of other worker processes do.
    """
    global _printed_to
    if _printed_to < 0:
        _printed_to = os.dup(2)
        capture(os.memfd_create("datapipe-standard-error"))
        os.dup2(2, 1)
    try:
        return function(*args)
    finally:
        if text := take_printed():
            os.write(_printed_to, text.encode())
