"""The parent's side of a worker process, and what is sent to it first."""

from __future__ import annotations

import io
import os
import pickle
import select
import socket
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from datapipe.errors import WorkerError
from datapipe.workers import process_worker
from datapipe.workers.messages import Message, Reducers, dump
from datapipe.workers.process_worker import FACTORY, MainScript, SetUp
from datapipe.workers.template import fork_worker, search_path

J = TypeVar("J")


class WorkerHandle(Generic[J]):
    """Socket and standard error of a worker process, and its jobs."""

    def __init__(self, modules: Sequence[str]) -> None:
        process_worker.refuse_unguarded_script()
        self.process = 0  # its ID, 0 until it has begun to work
        self.jobs: deque[tuple[int, J]] = deque()  # that were sent and are not done, by number
        self.standard_error = os.memfd_create("datapipe-standard-error")  # a descriptor
        self._end = weakref.finalize(self, os.close, self.standard_error)
        self._end.atexit = False
        self.connection, theirs = socket.socketpair()
        output = -1
        try:
            output = _standard_output()
            self.number = fork_worker(theirs, self.standard_error, output, modules)
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()
            if output >= 0:
                os.close(output)

    def has_ended(self) -> bool:
        """Return whether the process is known to have ended."""
        if not self.process:
            return False
        try:
            descriptor = os.pidfd_open(self.process)
        except OSError as error:
            return isinstance(error, ProcessLookupError)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = bool(poll.poll(0))
        os.close(descriptor)
        return ended

    def close(self) -> None:
        self.connection.close()
        self._end()


class _FactoryPickler(pickle.Pickler):
    """Pickler that sees whether the main script defines something in a value."""

    needs_script = False

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__":
            self.needs_script = True
        return NotImplemented


def dump_factory(factory: object, reducers: Reducers) -> tuple[Message, MainScript | None]:
    """Pickle a worker's factory, with the script it needs; `WorkerError` if it cannot be sent."""
    buffer = io.BytesIO()
    pickler = _FactoryPickler(buffer, protocol=5)
    try:
        descriptors = dump(pickler, factory, reducers)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise WorkerError(
            f"functions are sent to worker processes by name: {error}; define it at the top of a "
            "module, or use threads"
        ) from error
    script = process_worker.main_script() if pickler.needs_script else None
    return Message(FACTORY, 0, buffer.getvalue(), descriptors), script


def set_up(script: MainScript | None) -> SetUp:
    """Return the state of this process that a worker takes over."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = None
    return SetUp(folder, search_path(), sys.argv, dict(os.environ), script)


def _standard_output() -> int:
    try:
        return os.dup(1)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
