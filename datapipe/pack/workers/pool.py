"""Worker processes of a pack: inputs go out in chunks, parts come back in the order of the inputs.

Workers are processes, since reading and checking a header takes too little time to release the GIL
in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TypeVar

from datapipe.errors import PackError, WorkerError
from datapipe.pack.input.raw_sample import RawInput, has_video, inline_bytes
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.workers.segments import Segments
from datapipe.pack.workers.worker import InputChunk, PreparedParts, SentPart, chunk_worker
from datapipe.workers.processes import ProcessPool
from datapipe.workers.protocol import WorkerPool

R = TypeVar("R")

# Inputs that a worker takes at once. Small, so that a slow image delays few others.
CHUNK = 64
MODULES = ("datapipe.pack.workers.worker",)
"""Modules that workers need."""

_INLINE = 4 << 20  # bytes that the inputs of a chunk hold themselves, from which on it ends
_AHEAD = 3  # chunks that a worker has or will find


class PackWorkers:
    """Worker processes, which start with the first inputs."""

    def __init__(self, options: PrepareOptions, workers: int) -> None:
        self._pool: ProcessPool[InputChunk, SentPart] = ProcessPool(
            partial(chunk_worker, options),
            workers,
            ahead=_AHEAD,
            modules=MODULES,
            describe=_describe,
            remedy=("use fewer --workers and run the same command again, finished shards are kept"),
        )
        self._segments: dict[int, Segments] = {}  # by process ID

    def prepared(self, inputs: Iterable[RawInput], first: int) -> PreparedParts:
        """Prepare inputs in order; the first has the ordinal `first`.

        Yield the inputs of a part with the part, whose data is valid until the next is asked for.
        """
        for sent, waiting in run_chunks(self._pool, inputs, first):
            part, size = sent.part, sent.size
            if sent.segments is not None:
                self._segments[sent.worker] = Segments(sent.segments)
            segments = self._segments[sent.worker]
            data = segments.next_part(size) if size else memoryview(part.data)
            yield [waiting.popleft() for _ in part.outcomes], part._replace(data=data)
            if size:
                segments.give_back()

    def close(self) -> None:
        self._pool.close()
        for segments in self._segments.values():
            segments.close()
        self._segments.clear()


def run_chunks(
    pool: WorkerPool[InputChunk, R], inputs: Iterable[RawInput], first: int, most: int = CHUNK
) -> Iterator[tuple[R, deque[RawInput]]]:
    """Run inputs in chunks; yield each result with the queue of inputs, its own first.

    The caller takes its own from the queue. PackError if a worker ended, or none can start.
    """
    waiting: deque[RawInput] = deque()

    def chunks() -> Iterator[InputChunk]:
        for chunk in chunks_of(inputs, first, most):
            waiting.extend(chunk.inputs)
            yield chunk

    try:
        for result in pool.run(chunks()):
            yield result, waiting
    except WorkerError as error:
        raise PackError(str(error)) from error


def chunks_of(inputs: Iterable[RawInput], first: int, most: int = CHUNK) -> Iterator[InputChunk]:
    """Yield inputs in chunks of at most `most`; the first has the ordinal `first`.

    A video takes as long as many images, so it ends a chunk.
    """
    chunk: list[RawInput] = []
    held = 0
    for sample in inputs:
        chunk.append(sample)
        held += inline_bytes(sample)
        if len(chunk) == most or held >= _INLINE or has_video(sample):
            yield InputChunk(chunk, first)
            first += len(chunk)
            chunk, held = [], 0
    if chunk:
        yield InputChunk(chunk, first)


def _describe(chunk: InputChunk) -> str:
    further = len(chunk.inputs) - 1
    after = "the input" if further == 1 else f"one of the {further:,} inputs"
    return f"{chunk.inputs[0].source} or {after} after it"
