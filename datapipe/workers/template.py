"""Template process, from which worker processes are forked.

A fork of the caller's process would copy the locks of its threads and its CUDA context, and a new
interpreter takes long to import what workers need. So one new interpreter is started when the first
worker is needed. It imports modules, never starts a thread, and forks itself for each worker.

Its parent talks to it over a socket. When that closes, because the parent closes it or ends in any
way, the template kills the workers and ends.
"""

from __future__ import annotations

import atexit
import importlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from datapipe.errors import WorkerError
from datapipe.workers.messages import Message, message, receive, send
from datapipe.workers.process_worker import work

_IMPORT, _FORK, _END = range(3)  # kinds of messages

_COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import json, sys; "
    "sys.path[:] = json.loads(sys.argv[2]); "
    "from datapipe.workers.template import serve; serve(int(sys.argv[1]))"
)


class Template:
    """The parent's side of a template process; `WorkerError` if no process can be started."""

    def __init__(self) -> None:
        self.workers: set[int] = set()  # numbers of those in use
        self._numbers = itertools.count()
        self._modules: set[str] = set()
        ours, theirs = socket.socketpair()
        # A worker must find the same modules, and those of the package itself, not those beside it.
        folders = json.dumps([*search_path(), str(Path(__file__).parents[2])])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _COMMAND, str(theirs.fileno()), folders],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # NumPy would start a thread for every core.
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
                process_group=0,  # Ctrl-C is for the parent alone
            )
        except OSError as error:
            ours.close()
            raise WorkerError(f"a worker process cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        self._connection = ours

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def preload(self, modules: Sequence[str]) -> None:
        """Import modules for later workers, without waiting for it."""
        if not self._modules.issuperset(modules):
            self._modules.update(modules)
            send(self._connection, message(_IMPORT, 0, modules))

    def fork(self, connection: socket.socket, standard_error: int, standard_output: int) -> int:
        """Start a worker; return its number without waiting for it."""
        number = next(self._numbers)
        descriptors = connection.fileno(), standard_error, standard_output
        send(self._connection, Message(_FORK, number, descriptors=descriptors))
        self.workers.add(number)
        return number

    def end(self, workers: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Kill the workers that still run; return (process ID, exit status) by number."""
        self.workers.difference_update(workers)
        send(self._connection, message(_END, 0, workers))
        status: dict[int, tuple[int, int]] = receive(self._connection).value()
        return status

    def close(self) -> None:
        self._connection.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def forget(self) -> None:
        """Leave the process alone, in a child that was forked from its parent."""
        self._connection.close()
        self._process.returncode = 0  # it is no child of this process


_template: Template | None = None
_lock = threading.RLock()


def fork_worker(
    connection: socket.socket, standard_error: int, standard_output: int, modules: Sequence[str]
) -> int:
    """Start a worker process from this process's template; return its number.

    The socket and outputs are the worker's; `modules` are imported in the template first.
    """
    with _lock:
        try:
            template = _started(modules)
            return template.fork(connection, standard_error, standard_output)
        except OSError as error:
            raise WorkerError(f"the template of worker processes ended: {error}") from error


def end_workers(workers: Sequence[int], *, started: bool) -> dict[int, tuple[int, int]]:
    """Kill the workers that still run; return (process ID, exit status) by number.

    If none of them has `started` to work, their template may still be importing modules, and ends
    with them if it has no others. Then the result is empty. A signal is a negative status.
    """
    global _template
    with _lock:
        template, _template = _template, None
        if template is None:
            return {}
        if not started and template.workers.issubset(workers):
            template.close()
            return {}
        try:
            status = template.end(workers)
        except (EOFError, OSError):
            template.close()
            return {}
        except BaseException:  # its answer was not read
            template.close()
            raise
        _template = template
        return status


def warm_up(modules: Sequence[str]) -> None:
    """Start the template, and let it import modules while this process does something else."""
    with _lock, suppress(OSError, WorkerError):  # raised when a worker is needed
        _started(modules)


def _started(modules: Sequence[str]) -> Template:
    global _template
    if _template is not None and not _template.is_alive:
        _template.close()
        _template = None
    if _template is None:
        _template = Template()
    _template.preload(modules)
    return _template


def search_path() -> list[str]:
    """Return the folders in which this process finds modules."""
    entries = (os.fsdecode(entry) for entry in sys.path if isinstance(entry, str | Path))
    return [os.path.abspath(entry) for entry in entries]


@atexit.register
def _close() -> None:
    global _template
    template, _template = _template, None
    if template is not None:
        template.close()


def _forget() -> None:
    global _template, _lock
    _lock = threading.RLock()
    template, _template = _template, None
    if template is not None:
        template.forget()


os.register_at_fork(after_in_child=_forget)


def serve(descriptor: int) -> None:
    """Do what the parent asks for until it ends. Entry of the template process."""
    connection = socket.socket(fileno=descriptor)
    workers: dict[int, int] = {}  # process ID by number
    ended: dict[int, tuple[int, int]] = {}  # process ID and exit status by number
    # The loop reaps, since nothing asks for the workers of a pool that was dropped. A handler that
    # reaped could be interrupted by itself.
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(connection, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if woken.fileno() in ready:
            woken.recv(4096)
            _reap(workers, ended, os.WNOHANG)
        if connection.fileno() not in ready:
            continue
        try:
            request = receive(connection)
        except EOFError:
            _kill(workers.values())
            os._exit(0)
        if request.kind == _IMPORT:
            for module in request.value():
                with suppress(ImportError):  # a worker that needs it says so
                    importlib.import_module(module)
        elif request.kind == _FORK:
            with suppress(OSError):  # the parent sees that the worker's socket is closed
                # Python 3.12 warns of threads. Those here are jemalloc's and OpenBLAS's, which
                # handle forks.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process = os.fork()
                if not process:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for ours in (connection, woken, waker):
                        ours.close()
                    work(*request.descriptors)
                workers[request.number] = process
            request.discard()
        else:
            wanted = request.value()
            running = {number: workers.pop(number, 0) for number in wanted}
            killed = {number: process for number, process in running.items() if process}
            _kill(killed.values())
            _reap(killed, ended, 0)
            status = {number: ended.pop(number) for number in wanted if number in ended}
            with suppress(BrokenPipeError):  # the parent has ended, as the next turn sees
                send(connection, message(_END, 0, status))


def _reap(workers: dict[int, int], ended: dict[int, tuple[int, int]], options: int) -> None:
    """Move workers that have ended to `ended`; `options` are those of `waitpid`."""
    for number, process in list(workers.items()):
        found, status = os.waitpid(process, options)
        if found:
            del workers[number]
            ended[number] = process, os.waitstatus_to_exitcode(status)


def _kill(processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
