"""Preparation of chunks of inputs in a worker: inputs in, laid-out parts out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pickle import PickleBuffer
from typing import Any, NamedTuple

from datapipe.index.rows import Row, Rows
from datapipe.pack.input.raw_sample import InputFacts, RawInput, Reject, facts_of, sample_of
from datapipe.pack.workers.library_messages import keep_messages
from datapipe.pack.workers.prepare import Outcome, PrepareOptions, prepare
from datapipe.pack.workers.segments import Segments, SharedSegments, shared_segments
from datapipe.pack.workers.write_buffer import WriteBuffer


class InputChunk(NamedTuple):
    """Consecutive inputs, and the ordinal of the first."""

    inputs: list[RawInput]
    ordinal: int


class PreparedPart(NamedTuple):
    """Consecutive inputs, prepared."""

    # The accepted samples, concatenated: in memory, where it is valid until the next part is asked
    # for, or elsewhere, where it has a length and slices all the same
    data: Any
    outcomes: list[Outcome | Reject]  # of every input, in order
    facts: list[InputFacts]  # likewise
    rows: Rows  # of the accepted ones, with offsets counted from the start of `data`
    own: bool  # whether the data is outside of the segments


PreparedParts = Iterator[tuple[list[RawInput], PreparedPart]]
"""Parts with their inputs, in the order of the inputs."""


class SentPart(NamedTuple):
    """Part as a worker sends it."""

    worker: int  # process ID
    segments: SharedSegments | None  # of the worker, in its first part
    size: int  # bytes in its next segment; 0 if there are none
    part: PreparedPart  # with the data of a sample that is larger than a segment


class Preparer:
    """Preparation of chunks; a part is ready whenever a segment from `take` is full."""

    def __init__(self, options: PrepareOptions, take: Callable[[], memoryview]) -> None:
        self._options = options
        self._buffer = WriteBuffer(take, self._add_part)
        self._outcomes: list[Outcome | Reject] = []
        self._facts: list[InputFacts] = []
        self._rows = Rows()
        self._ready: list[PreparedPart] = []

    def parts(self, inputs: Sequence[RawInput], ordinal: int) -> Iterator[PreparedPart]:
        for number, given in enumerate(inputs, ordinal):
            found = sample_of(given)
            facts, sample = facts_of(found), found.sample
            result: Reject | tuple[Row, int, Outcome]
            if isinstance(sample, Reject):
                result = sample
            else:
                result = prepare(sample, number, self._options, self._buffer)
            if isinstance(result, Reject):
                outcome: Outcome | Reject = result
            else:
                row, start, outcome = result
                self._rows.append(row, start)
            yield from self._ready
            self._ready.clear()
            self._outcomes.append(outcome)
            self._facts.append(facts)
        self._buffer.flush()
        if self._outcomes:
            self._add_part(memoryview(b""), False)
        yield from self._ready
        self._ready.clear()

    def _add_part(self, data: memoryview, own: bool) -> None:
        self._ready.append(PreparedPart(data, self._outcomes, self._facts, self._rows, own))
        self._outcomes, self._facts, self._rows = [], [], Rows()


def chunk_worker(options: PrepareOptions) -> Callable[[InputChunk], Iterator[SentPart]]:
    os.dup2(2, 1)  # what a library prints does not belong among the lines of the pack
    keep_messages()
    shared = shared_segments()
    preparer = Preparer(options, Segments(shared).take)
    unsent: list[SharedSegments] = [shared]

    def parts(chunk: InputChunk) -> Iterator[SentPart]:
        for part in preparer.parts(*chunk):
            size = 0 if part.own else len(part.data)
            part = part._replace(data=PickleBuffer(part.data) if part.own else b"")
            yield SentPart(os.getpid(), unsent.pop() if unsent else None, size, part)

    return parts
