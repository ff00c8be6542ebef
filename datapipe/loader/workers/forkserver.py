"""Start of worker processes, whatever threads and devices the training process holds.

Workers are forked from a server that only imports their modules. A fork of the training process
itself would copy the locks of its threads and its CUDA context, and a worker that were a new
interpreter would import torch anew.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.process
import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker, spawn
from multiprocessing.popen_forkserver import Popen
from typing import Any

from datapipe.errors import DatapipeError

_PRELOADED = ["datapipe.loader.workers.process_worker", "datapipe.loader.workers.process_ready"]
_STARTING = threading.Lock()
_PATIENCE = 1.0  # seconds that a thread without work may take to end
_DESCRIBE = spawn.get_preparation_data


class _Process(multiprocessing.context.ForkServerProcess):
    needs_script = True

    def _bootstrap(self, *args: Any) -> int:
        # Called first in the new process: the parent handles Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code: int = super()._bootstrap(*args)  # type: ignore[misc]
        return code

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802
        return _start(process_obj)


class StartContext(multiprocessing.context.ForkServerContext):
    """Context of multiprocessing that knows its processes and their queues."""

    def __init__(self, needs_script: bool) -> None:
        super().__init__()
        self._needs_script = needs_script
        self.started: list[_Process] = []
        self._queues: list[Any] = []

    def Queue(self, maxsize: int = 0) -> Any:  # noqa: N802
        queue = super().Queue(maxsize)
        self._queues.append(queue)
        return queue

    def Process(self, *args: Any, **kwargs: Any) -> _Process:  # type: ignore[override]  # noqa: N802
        process = _Process(*args, **kwargs)
        process.needs_script = self._needs_script
        self.started.append(process)
        return process

    def forget(self) -> None:
        """Forget the processes, in a child that was forked from their parent."""
        # multiprocessing ends all of its list when the interpreter exits. It has no public name.
        multiprocessing.process._children.difference_update(  # type: ignore[attr-defined]
            self.started
        )
        self._queues.clear()
        self.started.clear()

    def end(self) -> None:
        """Kill processes that are left, such as after an interrupt while they were started."""
        left = [process for process in self.started if process.pid and process.is_alive()]
        for process in left:
            process.kill()
        for process in left:
            process.join()
        if any(process.pid is None for process in self.started):
            _drop_request()
        # The thread that feeds a queue ends by itself, and frees the queue's semaphores if it is
        # the last to hold them. If the interpreter exits in the middle of that, multiprocessing
        # warns of a leak. It has no public name.
        for queue in self._queues:
            feeder = getattr(queue, "_thread", None)
            if feeder is not None:
                feeder.join(_PATIENCE)
        self._queues.clear()

    def explain(self) -> DatapipeError:
        """Return an error that says why a process ended."""
        names = {number.value: number.name for number in signal.Signals}
        for process in self.started:
            code = process.exitcode
            if code is not None and code < 0:
                return DatapipeError(
                    f"worker process {process.pid} was ended by {names.get(-code, -code)}, perhaps "
                    "for lack of memory; use fewer num_workers, or a smaller prefetch_factor or "
                    "batch_size"
                )
            if code:
                return DatapipeError(
                    f"worker process {process.pid} ended with {code}; what it said stands above. A "
                    "script whose own functions workers import must start training under "
                    "`if __name__ == '__main__':`"
                )
        return DatapipeError("a worker process ended by itself; what it said stands above")


def _start(process: _Process) -> Popen:
    if process.needs_script:
        return Popen(process)
    # multiprocessing imports the script of its parent anew, which trains unless it says
    # `if __name__ == "__main__"`. Here nothing of the script is needed.
    thread = threading.get_ident()

    def describe_without_script(name: str) -> dict[str, Any]:
        described: dict[str, Any] = _DESCRIBE(name)
        if threading.get_ident() == thread:
            described.pop("init_main_from_name", None)
            described.pop("init_main_from_path", None)
        return described

    with _STARTING:
        spawn.get_preparation_data = describe_without_script
        try:
            return Popen(process)
        finally:
            spawn.get_preparation_data = _DESCRIBE


def warm_up() -> None:
    """Start the server, which imports the workers' modules in the background."""
    # By default it imports the script; a list that the user gave stays.
    if getattr(forkserver._forkserver, "_preload_modules", None) == ["__main__"]:
        multiprocessing.context.ForkServerContext().set_forkserver_preload(_PRELOADED)
    own = getattr(forkserver._forkserver, "_preload_modules", None) == _PRELOADED
    try:
        resource_tracker.ensure_running()  # which unblocks SIGINT when it is started
        # It stays blocked in the server until `process_ready` is imported there.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT} if own else ())
        try:
            _run_server()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    except OSError as error:
        raise DatapipeError(
            f"no process can be started: {error.strerror}; use workers='threads'"
        ) from error


def _drop_request() -> None:
    """Kill the server before it starts a process that was requested when an interrupt came.

    The process would miss its arguments, and end in a traceback. The server is started again when
    it is needed. It stays if it has other processes, whose ends it reports.
    """
    server = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if server is not None and not multiprocessing.active_children():
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


def _run_server() -> None:
    try:
        forkserver.ensure_running()
    except ChildProcessError:
        # It is a child of the process that this one was forked from. There is no public way.
        server: Any = forkserver._forkserver
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = server._forkserver_address = server._forkserver_pid = None
        forkserver.ensure_running()


def has_script() -> bool:
    """Return whether another process can import what `__main__` defines."""
    main = sys.modules["__main__"]
    # The file of a program on standard input is called `<stdin>`.
    start: str | None = multiprocessing.process.ORIGINAL_DIR  # type: ignore[attr-defined]
    path = os.path.join(start or "", getattr(main, "__file__", None) or "")
    return main.__spec__ is not None or os.path.isfile(path)
