"""Workers of a pack: chunks of inputs go out, parts come back in the order of the inputs.

Workers are processes, since reading and checking a header takes too little time to release the GIL
in between. Prepared data comes back through memory that both sides map. Each worker is a new
interpreter: a fork would copy the locks of the caller's threads, and multiprocessing's own start
would import the caller's script anew.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Input, inline_bytes
from datapipe.pack.workers.library_messages import listening
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.workers.worker import SEGMENT, SEGMENTS, PreparedPart, Preparer

# Inputs that a worker takes at once. Small, so that a slow image delays few others.
CHUNK = 64
_INLINE = 4 << 20  # bytes that the inputs of a chunk hold themselves, from which on it ends
_AHEAD = 3  # chunks that a worker has or will find
_FEW = 8  # inputs that are prepared together where there are no workers
_COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from datapipe.pack.workers.worker import main; main()"
)


class PackWorkers:
    """Worker processes, started at once; with one worker this process prepares everything.

    Args:
        options: what becomes of a sample.
        workers: number of processes.
    """

    def __init__(self, options: PrepareOptions, workers: int) -> None:
        self._own = _InProcess(options)
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers if workers > 1 else 0):
                self._workers.append(_Worker(options))
        except BaseException:
            self.close()
            raise

    def prepared(
        self, inputs: Iterable[Input], first: int
    ) -> Iterator[tuple[list[Input], PreparedPart]]:
        """Prepare all inputs.

        Args:
            inputs: in order.
            first: ordinal of the first input.

        Yields:
            The inputs of a part with the part, whose data is valid until the next is asked for.
        """
        chunks = _chunks(inputs, first)
        while not (self._workers and all(worker.is_ready() for worker in self._workers)):
            chunk, ordinal = next(chunks, ([], 0))
            if not chunk:
                return
            for start in range(0, len(chunk), _FEW):
                few = chunk[start : start + _FEW]
                yield from _with_inputs(few, self._own.parts(few, ordinal + start))
        waiting: deque[tuple[list[Input], _Worker]] = deque()

        def send_chunk(worker: _Worker) -> None:
            for chunk, ordinal in itertools.islice(chunks, 1):
                worker.send((chunk, ordinal))
                waiting.append((chunk, worker))

        for worker in self._workers * _AHEAD:
            send_chunk(worker)
        while waiting:
            chunk, worker = waiting.popleft()
            yield from _with_inputs(chunk, worker.parts(len(chunk)))
            send_chunk(worker)

    def close(self) -> None:
        """End the processes at once."""
        for worker in self._workers:
            worker.close()


def _chunks(inputs: Iterable[Input], first: int) -> Iterator[tuple[list[Input], int]]:
    chunk: list[Input] = []
    held = 0
    for sample in inputs:
        chunk.append(sample)
        held += inline_bytes(sample)
        if len(chunk) == CHUNK or held >= _INLINE:
            yield chunk, first
            first += len(chunk)
            chunk, held = [], 0
    if chunk:
        yield chunk, first


def _with_inputs(
    inputs: list[Input], parts: Iterable[PreparedPart]
) -> Iterator[tuple[list[Input], PreparedPart]]:
    done = 0
    for part in parts:
        yield inputs[done : done + len(part.outcomes)], part
        done += len(part.outcomes)


class _InProcess:
    """Preparation in this process."""

    def __init__(self, options: PrepareOptions) -> None:
        self._preparer = Preparer(options, self._take, self._send)
        self._free: list[memoryview] = []
        self._current = memoryview(b"")
        self._parts: list[PreparedPart] = []
        self._used: list[memoryview] = []  # segments of these parts

    def _take(self) -> memoryview:
        self._current = self._free.pop() if self._free else memoryview(bytearray(SEGMENT))
        return self._current

    def _send(self, part: PreparedPart, own: bool) -> None:
        self._parts.append(part)
        if part.data and not own:
            self._used.append(self._current)

    def parts(self, inputs: list[Input], ordinal: int) -> Iterator[PreparedPart]:
        """Prepare a few inputs, all of which are in memory then."""
        with listening():
            self._preparer.work(inputs, ordinal)
        yield from self._parts
        self._free += self._used
        self._parts, self._used = [], []


def _search_path() -> str:
    """Return the folders of modules as JSON: a worker must find the same, not those beside it."""
    entries = [os.fsdecode(entry) for entry in sys.path if isinstance(entry, str | Path)]
    home = Path(__file__).parents[2]  # of the package itself
    return json.dumps([*map(os.path.abspath, entries), str(home)])


class _Worker:
    """Parent's end of one worker process."""

    def __init__(self, options: PrepareOptions) -> None:
        ours = theirs = memory = None
        try:
            ours, theirs = socket.socketpair()
            memory = os.memfd_create("datapipe-pack")
            os.ftruncate(memory, SEGMENT * SEGMENTS)
            self._memory = memoryview(mmap.mmap(memory, SEGMENT * SEGMENTS))
            # NumPy would start a thread for every core.
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
            descriptors = (theirs.fileno(), memory)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _COMMAND, *map(str, descriptors), _search_path()],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints does not belong among our own lines
                env=environment,
                process_group=0,  # the parent deals with Ctrl-C
            )
        except OSError as error:
            if ours:
                ours.close()
            raise PackError(f"a worker process cannot be started: {error.strerror}") from error
        finally:
            if theirs:
                theirs.close()
            if memory is not None:
                os.close(memory)
        self._connection = Connection(ours.detach())
        self._ready = False
        self.send(options)

    def is_ready(self) -> bool:
        """Return whether it has started, without waiting."""
        if not self._ready and self._connection.poll():
            if (said := self._receive()) != "ready":
                raise _failed(said)
            self._ready = True
        return self._ready

    def send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._died() from error

    def parts(self, inputs: int) -> Iterator[PreparedPart]:
        """Yield the parts of the next chunk, which has so many inputs."""
        while inputs:
            message = self._receive()
            if isinstance(message, str):
                raise _failed(message)
            segment, size, outcomes, rows = message
            if segment >= 0:
                data = self._memory[segment * SEGMENT : segment * SEGMENT + size]
            else:
                data = memoryview(self._connection.recv_bytes() if size else b"")
            yield PreparedPart(data, outcomes, rows)
            if segment >= 0:
                self.send(segment)
            inputs -= len(outcomes)

    def close(self) -> None:
        """End the process at once."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error

    def _died(self) -> Exception:
        with suppress(EOFError, OSError):
            while True:  # its last message is behind parts that are no longer read
                content, said = self._connection.recv_bytes(), None
                with suppress(Exception):  # data of a part, which is no message
                    said = pickle.loads(content)
                if isinstance(said, str) and said != "ready":
                    return _failed(said)
        code = self._process.wait()
        names = {number.value: number.name for number in signal.Signals}
        how = f"was ended by signal {names.get(-code, -code)}" if code < 0 else f"ended with {code}"
        return PackError(
            f"a worker process {how}, perhaps for lack of memory; use fewer --workers and run the "
            "same command again, finished shards are kept"
        )


def _failed(said: object) -> Exception:
    return RuntimeError(f"a worker of the pack failed:\n{said}")
