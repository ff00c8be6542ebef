"""Preparation of samples, in this process or a worker: inputs in, laid-out parts out."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import NamedTuple

from datapipe.index.rows import Row, Rows
from datapipe.pack.input.raw_sample import Input, Reject
from datapipe.pack.workers.library_messages import listening
from datapipe.pack.workers.prepare import Outcome, PrepareOptions, prepare
from datapipe.pack.workers.write_buffer import WriteBuffer

SEGMENT = 4 << 20
SEGMENTS = 4
"""Bytes of a segment, and how many a worker has: enough to work on while others are written."""


class PreparedPart(NamedTuple):
    """Consecutive inputs, prepared.

    Attributes:
        data: the accepted samples, concatenated; valid until the next part is asked for.
        outcomes: of every input, in order.
        rows: of the accepted ones, with offsets counted from the start of `data`.
    """

    data: memoryview
    outcomes: list[Outcome | Reject]
    rows: Rows


class Preparer:
    """Preparation of chunks of inputs; what is ready is sent whenever a segment is full.

    Args:
        options: what becomes of a sample.
        take: returns a segment to fill.
        send: receives a part, and whether its data is outside of the segments.
    """

    def __init__(
        self,
        options: PrepareOptions,
        take: Callable[[], memoryview],
        send: Callable[[PreparedPart, bool], None],
    ) -> None:
        self._options = options
        self._send = send
        self._buffer = WriteBuffer(take, self._send_part)
        self._outcomes: list[Outcome | Reject] = []
        self._rows = Rows()

    def work(self, inputs: Sequence[Input], ordinal: int) -> None:
        """Prepare a chunk; everything has been sent when this returns."""
        for number, sample in enumerate(inputs, ordinal):
            result: Reject | tuple[Row, int, Outcome]
            if isinstance(sample, Reject):
                result = sample
            else:
                result = prepare(sample, number, self._options, self._buffer)
            if isinstance(result, Reject):
                self._outcomes.append(result)
            else:
                row, start, outcome = result
                self._rows.append(row, start)
                self._outcomes.append(outcome)
        self._buffer.flush()
        if self._outcomes:
            self._send_part(memoryview(b""), False)

    def _send_part(self, data: memoryview, own: bool) -> None:
        part = PreparedPart(data, self._outcomes, self._rows)
        self._outcomes, self._rows = [], Rows()
        self._send(part, own)


def main() -> None:
    """Prepare what a parent sends: `python -c ... SOCKET MEMORY`, two inherited descriptors."""
    connection = Connection(int(sys.argv[1]))
    memory = memoryview(mmap.mmap(int(sys.argv[2]), SEGMENT * SEGMENTS))
    chunks: SimpleQueue[tuple[list[Input], int]] = SimpleQueue()
    free: SimpleQueue[int] = SimpleQueue()
    for number in range(SEGMENTS):
        free.put(number)
    current = -1

    def take() -> memoryview:
        nonlocal current
        current = free.get()
        return memory[current * SEGMENT : (current + 1) * SEGMENT]

    def send(part: PreparedPart, own: bool) -> None:
        segment = -1 if own or not part.data else current
        connection.send((segment, len(part.data), part.outcomes, part.rows))
        if own:
            connection.send_bytes(part.data)

    try:
        preparer = Preparer(connection.recv(), take, send)
        threading.Thread(target=_listen, args=(connection, chunks, free), daemon=True).start()
        connection.send("ready")
        with listening():
            while True:
                preparer.work(*chunks.get())
    except (EOFError, ConnectionError):
        pass  # the parent has gone
    except BaseException:
        with suppress(OSError):
            connection.send(traceback.format_exc())


def _listen(
    connection: Connection, chunks: SimpleQueue[tuple[list[Input], int]], free: SimpleQueue[int]
) -> None:
    """Queue what the parent sends, so that it never waits for a busy worker.

    End the process when the parent has ended.
    """
    try:
        while True:
            message = connection.recv()
            if isinstance(message, int):
                free.put(message)
            else:
                chunks.put(message)
    except (EOFError, OSError):
        os._exit(0)
