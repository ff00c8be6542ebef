"""Tasks on a Ray cluster that prepare inputs; their parts stay in the object store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pickle import PickleBuffer
from typing import Any, NamedTuple

import numpy as np

from datapipe.errors import SampleError, WorkerError
from datapipe.index.rows import Rows
from datapipe.pack.input.raw_sample import (
    Blob,
    InputFacts,
    RawInput,
    RawSample,
    Reject,
    facts_of,
    sample_of,
)
from datapipe.pack.workers.library_messages import keep_messages
from datapipe.pack.workers.pool import run_chunks
from datapipe.pack.workers.prepare import Outcome, PrepareOptions
from datapipe.pack.workers.worker import InputChunk, PreparedPart, PreparedParts, Preparer
from datapipe.workers.ray_cluster import RETRIES, LostTask, RayCluster, node_name
from datapipe.workers.ray_tasks import RayPool, Stored

# Ray sends results of less than 100 KB to the driver. A sample has at least 1 KB in a tar, so the
# data of a whole chunk has more.
_CHUNK = 128
_PART = 64 << 20  # bytes after which a task leaves the rest of its chunk to another one
_MEMORY = 512 << 20  # bytes that a task asks for
_UNREADABLE = ("file is missing", "file cannot be", "file ends too early")


class PartAnswer(NamedTuple):
    """Outcomes and size of a part, for the driver."""

    outcomes: list[Outcome | Reject]  # of the first inputs of the chunk, in order
    facts: list[InputFacts]  # likewise
    size: int  # bytes
    node: str


@dataclass(frozen=True, slots=True)
class StoredData:
    """Bytes of a part in the object store; a slice of it is such a stretch too."""

    reference: Any  # to the pair of the part's bytes and its rows
    size: int  # bytes of the part
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, span: slice) -> StoredData:
        start, stop, _ = span.indices(len(self))
        return StoredData(self.reference, self.size, self.start + start, self.start + stop)


class RayWorkers:
    """Preparation of inputs on a cluster; `lost` counts those that the cluster could not do."""

    def __init__(self, options: PrepareOptions, cluster: RayCluster) -> None:
        self.lost = 0
        self._pool: RayPool[InputChunk, Stored[PartAnswer]] = RayPool(
            cluster,
            partial(part_worker, options, versions()),
            is_stored=True,
            split=_split,
            give_up=_give_up,
            rest=_rest,
            memory=_MEMORY,
        )

    def prepared(self, inputs: Iterable[RawInput], first: int) -> PreparedParts:
        for (answer, data), waiting in run_chunks(self._pool, inputs, first, _CHUNK):
            outcomes, facts, size, node = answer
            taken = [waiting.popleft() for _ in outcomes]
            if node:
                for number, (sample, outcome) in enumerate(zip(taken, outcomes, strict=True)):
                    if isinstance(outcome, Reject) and _is_here(sample, outcome):
                        reason = f"{outcome.reason} on the node {node}, and is read here"
                        outcomes[number] = outcome._replace(reason=reason)
                        self.lost += 1
            else:
                self.lost += len(outcomes)
            rows = Rows()  # the rest of the columns is with the data
            rows.images = [o.seen.images for o in outcomes if not isinstance(o, Reject)]
            yield taken, PreparedPart(StoredData(data, size, 0, size), outcomes, facts, rows, True)

    def close(self) -> None:
        self._pool.close()


def versions() -> dict[str, str]:
    """Return the versions of packages that decide on the bytes of shards."""
    others = {name: version(name) for name in ("pillow", "pyarrow", "simplejpeg")}
    return {"datapipe": sys.modules["datapipe"].__version__, **others}


def part_worker(
    options: PrepareOptions, expected: dict[str, str]
) -> Callable[[InputChunk], Stored[PartAnswer]]:
    """Return the function of a task: a chunk to the answer and the data of its first part.

    WorkerError if the node has other versions than are `expected`.
    """
    node = node_name()
    for name, there in versions().items():
        if there != expected[name]:
            raise WorkerError(
                f"the node {node} has {name} {there}, and the driver {expected[name]}: the bytes "
                "of shards could differ; install the same versions, or give a runtime_env"
            )
    keep_messages()

    def prepare(chunk: InputChunk) -> Stored[PartAnswer]:
        # Memory that is not written to takes none.
        preparer = Preparer(options, lambda: np.empty(_PART, np.uint8).data)
        part = next(preparer.parts(*chunk))
        answer = PartAnswer(part.outcomes, part.facts, len(part.data), node)
        return Stored(answer, (PickleBuffer(part.data), part.rows))

    return prepare


def _rest(chunk: InputChunk, part: Stored[PartAnswer]) -> InputChunk | None:
    done = len(part.answer.outcomes)
    left = chunk.inputs[done:]
    return InputChunk(left, chunk.ordinal + done) if left else None


def _split(chunk: InputChunk) -> list[InputChunk]:
    # One by one: a task costs a millisecond, and a process that dies costs seconds.
    return [InputChunk([sample], chunk.ordinal + n) for n, sample in enumerate(chunk.inputs)]


def _give_up(chunk: InputChunk, error: LostTask) -> Stored[PartAnswer]:
    (sample,) = chunk.inputs
    reason = f"{error.reason} in each of {RETRIES + 1} attempts"
    reject = Reject(sample.source, reason, error.kind)
    return Stored(PartAnswer([reject], [facts_of(sample_of(sample))], 0, ""), None)


def _is_here(found: RawInput, reject: Reject) -> bool:
    """Return whether the file that a node could not read can be read by this process."""
    if not reject.reason.startswith(_UNREADABLE):
        return False
    sample = sample_of(found).sample
    if not isinstance(sample, RawSample):
        return False
    for blob in (*sample.pictures, *sample.parts):
        if isinstance(blob, Blob) and blob.label in (reject.file, reject.source):
            with suppress(SampleError):
                blob.read()
                return True
    return False
