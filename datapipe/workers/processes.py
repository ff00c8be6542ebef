"""Pool of processes, for work that holds the GIL.

Each worker has a socket for messages. Jobs are pickled; what is large is better written to memory
that both sides map, which a `Descriptor` in a factory, a job or a result gives to the other side.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from datapipe.errors import WorkerError
from datapipe.workers.job_feed import CLOSED, WindowedResults
from datapipe.workers.messages import Message, Reducers, message, receive, send
from datapipe.workers.process_worker import DONE, DROP, FAILED, JOB, PRINTED, READY, RESULT, SET_UP
from datapipe.workers.standard_error import printed
from datapipe.workers.template import end_workers
from datapipe.workers.worker_handle import WorkerHandle, dump_factory, set_up

J = TypeVar("J")
R = TypeVar("R")


class ProcessPool(Generic[J, R]):
    """Pool of processes, which start with the first job and stay for the next runs.

    The function that a factory returns may be a generator. Then each value that it yields is a
    result, and comes as soon as it is yielded. Raises `WorkerError` if the factory cannot be sent
    to other processes.
    """

    def __init__(
        self,
        factory: Callable[[], Callable[[J], R | Iterator[R]]],  # called in each worker
        workers: int,
        *,
        ahead: int = 2,  # jobs per worker that are begun or queued
        modules: Sequence[str] = (),  # that workers need, imported once for all of them
        describe: Callable[[J], str] = str,  # names a job in messages
        remedy: str = "use fewer workers",  # of a worker that was killed: how to need less memory
        reducers: Reducers | None = None,  # of values in the factory
    ) -> None:
        self.window = ahead * workers
        self.describe = describe
        self._count = workers
        self._modules = modules
        self._remedy = remedy
        self._factory, self._script = dump_factory(factory, reducers or {})
        self._workers: list[WorkerHandle[J]] = []
        self._poll = select.poll()
        self._jobs = 0  # sent so far
        self._results: Callable[[], ProcessResults[J, R] | None] = lambda: None  # a weak reference
        _POOLS.add(self)

    @property
    def processes(self) -> list[int]:
        """IDs of the workers that have started to work."""
        return [worker.process for worker in self._workers if worker.process]

    def run(self, jobs: Iterable[J]) -> ProcessResults[J, R]:
        """Return the results of jobs; the workers start with the first one."""
        self._close_results()
        if any(worker.has_ended() for worker in self._workers):
            self.close()
        self.drop()
        results = ProcessResults(self, jobs)
        self._results = weakref.ref(results)
        return results

    def close(self) -> None:
        """End the workers at once; another thread that awaits a result gets a `WorkerError`."""
        results = self._results()
        if results is not None:
            results.cut()
        self._end()
        if results is not None:
            results.close()

    def send(self, job: J) -> int:
        """Send a job to the worker with the fewest; return its number, or raise `WorkerError`."""
        if not self._workers:
            self._start()
        worker = min(self._workers, key=lambda worker: len(worker.jobs), default=None)
        if worker is None:
            raise WorkerError(CLOSED)
        number = self._jobs
        content = message(JOB, number, job)
        self._jobs += 1
        worker.jobs.append((number, job))
        self._guarded(worker, send, content)
        return number

    def drop(self) -> None:
        for worker in self._workers:
            if worker.jobs:
                with suppress(WorkerError):
                    self._guarded(worker, send, Message(DROP, self._jobs))

    def receive(self, seconds: float | None) -> list[Message] | None:
        """Wait for messages; return those about jobs, None if time is over, or `WorkerError`."""
        poll = self._poll  # first: that of workers that another thread ends wakes, a new one never
        workers = {worker.connection.fileno(): worker for worker in self._workers}
        if not workers or poll is not self._poll:  # sockets that are closed have no descriptors
            raise WorkerError(CLOSED)
        ready = poll.poll(None if seconds is None else seconds * 1000)
        messages = []
        for descriptor, _ in ready:
            worker = workers[descriptor]
            received = self._guarded(worker, receive)
            if received.kind == READY:
                worker.process = received.number
            elif received.kind == PRINTED:
                self._pass_on(worker, received)
            elif received.number < 0:
                self._end()
                error, trace = received.value()
                raise error from _InWorkerError(trace)
            else:
                if received.kind != RESULT:
                    worker.jobs.popleft()
                messages.append(received)
        return messages if ready else None

    def forget(self) -> None:
        """Leave the workers alone, in a child that was forked from their parent."""
        for worker in self._workers:
            worker.close()
        self._workers, self._poll = [], select.poll()

    def _start(self) -> None:
        try:
            for _ in range(self._count):
                worker: WorkerHandle[J] = WorkerHandle(self._modules)
                # In this order: another thread closes the sockets of workers that are listed.
                self._poll.register(worker.connection, select.POLLIN)
                self._workers.append(worker)
                self._guarded(worker, send, message(SET_UP, 0, set_up(self._script)))
                self._guarded(worker, send, self._factory)
        except OSError as error:
            self._end()
            raise WorkerError(f"a worker process cannot be started: {error.strerror}") from error
        except BaseException:
            self._end()
            raise

    def _guarded(self, worker: WorkerHandle[J], function: Callable[..., Any], *args: Any) -> Any:
        """Send or receive; after an interrupt in the middle of a message the workers are ended."""
        try:
            return function(worker.connection, *args)
        except (EOFError, OSError):
            raise self._died(worker) from None
        except BaseException:
            self._end()
            raise

    def _died(self, worker: WorkerHandle[J]) -> WorkerError:
        """End the workers after one has exited or was killed; return the error."""
        if worker not in self._workers:
            return WorkerError(CLOSED)
        said = printed(worker.standard_error).strip()
        status = self._end()
        at = f" at {self.describe(worker.jobs[0][1])}" if worker.jobs else ""
        process, code = status.get(worker.number, (worker.process, 0))
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            told = (
                f"worker process {process} was ended by {names.get(-code, -code)}{at}, perhaps for "
                f"lack of memory; {self._remedy}"
            )
        elif not process:  # it has not begun to work
            told = "a worker process could not be started, or ended at once"
        else:
            told = f"worker process {process} ended with {code}{at}"
            if self._script is not None:
                told += (
                    "; a script whose own functions workers import must start its work under "
                    "`if __name__ == '__main__':`"
                )
        return WorkerError(f"{told}\n{said}" if said else told)

    def _end(self) -> dict[int, tuple[int, int]]:
        workers, self._workers, self._poll = self._workers, [], select.poll()
        for worker in workers:
            # A thread that waits for this socket is woken.
            with suppress(OSError):
                worker.connection.shutdown(socket.SHUT_RDWR)
            worker.close()
        numbers = [worker.number for worker in workers]
        return end_workers(numbers, started=any(w.process for w in workers)) if workers else {}

    def _pass_on(self, worker: WorkerHandle[J], received: Message) -> None:
        """Print what a worker printed to its standard error, and say at which job."""
        at = f", {self.describe(worker.jobs[0][1])}" if worker.jobs else ""
        for line in received.content.decode().splitlines():
            print(f"[worker {worker.process}{at}] {line}", file=sys.stderr)

    def _close_results(self) -> None:
        if (results := self._results()) is not None:
            results.close()


class ProcessResults(WindowedResults[J, R]):
    """Results of jobs that a pool's processes do."""

    def __init__(self, pool: ProcessPool[J, R], jobs: Iterable[J]) -> None:
        super().__init__(pool, jobs)
        self._window: dict[int, deque[Message]] = {}  # messages about each job, oldest first

    def __next__(self) -> R:
        try:
            received = self._next()
            while received.kind == DONE:
                received = self._next()
            if received.kind == FAILED:
                error, trace = received.value()
                raise error from _InWorkerError(trace)
            result: R = received.value()
            self._fill()  # before the caller turns to this result
        except BaseException:
            self.close()
            raise
        return result

    def close(self) -> None:
        super().close()
        window, self._window = self._window, {}
        if window:
            self._pool.drop()
        for messages in list(window.values()):
            for received in list(messages):
                received.discard()

    def _next(self) -> Message:
        """Return the next message about the oldest job."""
        window = self._ended()
        received = _oldest(window).popleft()
        if received.kind != RESULT:
            del window[received.number]
        return received

    def _fill(self) -> None:
        try:
            super()._fill()
        except WorkerError:
            self._pool.close()  # if another thread did so, `send` may have started workers anew
            raise

    def _begin(self, job: J) -> None:
        self._window[self._pool.send(job)] = deque()

    def _has_ended(self, window: dict[int, deque[Message]]) -> bool:
        return bool(_oldest(window))

    def _receive(self, window: dict[int, deque[Message]], seconds: float | None) -> bool:
        came = self._pool.receive(seconds)
        wanted = self._window  # read anew: another thread may have closed the run meanwhile
        for received in came or ():
            if received.number in wanted:
                wanted[received.number].append(received)
            else:
                received.discard()  # of a run that was closed
        return came is not None


def _oldest(window: dict[int, deque[Message]]) -> deque[Message]:
    return next(iter(window.values()))


class _InWorkerError(Exception):
    def __init__(self, trace: str) -> None:
        super().__init__(f"in a worker process:\n{trace}")


_POOLS: weakref.WeakSet[ProcessPool[Any, Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _forget_all() -> None:
    for pool in list(_POOLS):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
