"""Code of a worker process: jobs in, results out.

A script is imported in a worker only if functions or classes that it defines are sent there. So a
script that does not guard its start by `if __name__ == "__main__":` can use worker processes, as
long as their work is defined in modules.
"""

from __future__ import annotations

import os
import pickle
import queue
import runpy
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from inspect import isgenerator
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from datapipe.errors import WorkerError
from datapipe.workers.messages import Message, message, receive, send
from datapipe.workers.standard_error import capture, take_printed

SET_UP, FACTORY, JOB, DROP = range(4)
"""Kinds of messages to a worker. `DROP` has the number of the first job that is still wanted."""

READY, PRINTED, RESULT, LAST, DONE, FAILED = range(6)
"""Kinds of messages from a worker. `LAST` is a job's last result, `DONE` its end without one."""

_AS = "__mp_main__"  # the name that scripts know from multiprocessing
_is_importing = False


class MainScript(NamedTuple):
    """Script of a program: a module that `python -m` runs, or a file."""

    module: str | None
    path: str | None


class SetUp(NamedTuple):
    """State of the parent that a worker takes over."""

    folder: str | None  # working directory; None if it is gone
    path: list[str]  # folders of modules
    arguments: list[str]  # of the command
    environment: dict[str, str]
    script: MainScript | None  # to import; None if nothing of it is needed


def work(connection: int, standard_error: int, standard_output: int) -> NoReturn:
    """Do the jobs of a pool until it ends. Entry of a worker process."""
    try:
        capture(standard_error)
        os.dup2(standard_output, 1)
        os.close(standard_output)
        _Worker(socket.socket(fileno=connection)).work()
    except (EOFError, OSError):
        os._exit(0)  # the parent has gone
    except BaseException:
        traceback.print_exc()
    os._exit(1)


class _Worker:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._jobs: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._first = 0  # number of the first job that is wanted

    def work(self) -> NoReturn:
        try:
            _set_up(receive(self._connection).value())
            work = receive(self._connection).value()()
        except BaseException as error:
            self._send(_failure(-1, error))
            raise
        self._send(Message(READY, os.getpid()))
        threading.Thread(target=self._listen, name="datapipe-listener", daemon=True).start()
        while True:
            self._do(self._jobs.get(), work)

    def _listen(self) -> None:
        """Queue the parent's messages, so that it never waits for a busy worker."""
        try:
            while True:
                received = receive(self._connection)
                if received.kind == DROP:
                    self._first = received.number
                else:
                    self._jobs.put(received)
        except EOFError:
            os._exit(0)

    def _do(self, job: Message, work: Callable[[Any], Any]) -> None:
        number = job.number
        if number < self._first:
            job.discard()
            self._send(Message(DONE, number))
            return
        try:
            made = work(job.value())
            if isgenerator(made):
                for result in made:
                    self._send(message(RESULT, number, result))
                    if number < self._first:
                        break
                answer = Message(DONE, number)
            else:
                answer = message(LAST, number, made)
        except BaseException as error:  # raised again where results are asked for
            answer = _failure(number, error)
        self._send(answer)

    def _send(self, answer: Message) -> None:
        """Send a message, after what the worker printed since the last one."""
        if sys.stdout is not None:
            sys.stdout.flush()
        try:
            if text := take_printed():
                send(self._connection, Message(PRINTED, answer.number, text.encode()))
            send(self._connection, answer)
        except OSError:
            os._exit(0)  # the parent has gone


def _set_up(state: SetUp) -> None:
    os.environ.clear()
    os.environ.update(state.environment)
    if state.folder is not None:
        os.chdir(state.folder)
    sys.path[:] = state.path
    sys.argv[:] = state.arguments
    # Workers are copies of one process. Python itself draws other numbers after a fork.
    for module, seed in ("numpy.random", "seed"), ("torch", "seed"):
        if module in sys.modules:
            getattr(sys.modules[module], seed)()
    if state.script is not None:
        _import_script(state.script)


def _import_script(script: MainScript) -> None:
    """Import the script of the program that this process works for as its `__main__`."""
    global _is_importing
    _is_importing = True
    if script.module is not None:
        content = runpy.run_module(script.module, run_name=_AS, alter_sys=True)
    else:
        content = runpy.run_path(script.path or "", run_name=_AS)
    _is_importing = False
    module = ModuleType(_AS)
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[_AS] = module


def _failure(number: int, error: BaseException) -> Message:
    trace = "".join(traceback.format_exception(error))
    try:
        failure = message(FAILED, number, (error, trace))
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return failure
    except Exception:  # whatever a user's class raises when it is pickled
        pass
    told = WorkerError(f"a worker process failed: {type(error).__name__}: {error}")
    return message(FAILED, number, (told, trace))


def main_script() -> MainScript:
    """Return the script of this program; `WorkerError` if another process cannot import from it."""
    main = sys.modules["__main__"]
    # What the script defines comes back with that name.
    sys.modules.setdefault(_AS, main)
    if main.__spec__ is not None:
        return MainScript(main.__spec__.name, None)
    path = getattr(main, "__file__", None)
    if not path or not os.path.isfile(path):
        raise WorkerError(
            "worker processes need functions that other processes can import, but one is not "
            "defined in a file (standard input, `python -c`, a notebook, an interactive session); "
            "put it into a module, or use threads"
        )
    return MainScript(None, os.path.abspath(path))


def refuse_unguarded_script() -> None:
    """Raise `WorkerError` if a worker is just importing the program's script."""
    if _is_importing:
        raise WorkerError(
            "the script uses worker processes when it is imported, and its functions are sent to "
            "worker processes, which import it; start its work under "
            "`if __name__ == '__main__':`, or put the functions into a module"
        )
