"""Steps on threads, which make the pieces of a batch together, or in the caller's thread.

Pieces go into one queue, nearest step first, so that all threads together make the first batch.
"""

from __future__ import annotations

import itertools
import logging
import operator
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.metrics.meter import Meter
from datapipe.loader.metrics.stage_clock import Watch
from datapipe.loader.workers.executor import StepWorkers
from datapipe.torch_threads import alone, default_kept, work_alone
from datapipe.workers.inline import InlinePool
from datapipe.workers.protocol import Results
from datapipe.workers.threads import ThreadPool

logger = logging.getLogger(__name__)


class ThreadSteps(StepWorkers[BatchBuilder]):
    """Threads of one run, each limited to one thread inside torch's kernels.

    They prepare `ahead` batches at a time. `on_end` is called once all have ended, in any thread.
    """

    def __init__(
        self, workers: int, *, ahead: int, on_end: Callable[[], None], meter: Meter | None
    ) -> None:
        self._work = _PieceWork(meter)
        self._pool: ThreadPool[BatchBuilder, None] = ThreadPool(
            self._work.run,
            workers,
            ahead=ahead,
            initializer=self._work.begin,
            parts=operator.attrgetter("pieces"),
            on_end=on_end,
        )

    def run(self, jobs: Iterator[BatchBuilder]) -> Results[None]:
        with default_kept():
            return self._pool.run(jobs)

    def describe(self, job: BatchBuilder) -> list[str]:
        return [report for watch in self._work.watches if (report := watch.report(job))]

    def end(self) -> None:
        """End the threads; each finishes the sample that it is decoding."""
        self._pool.close()
        for watch in self._work.watches:
            if report := watch.report():
                logger.warning("a worker does not stop: %s", report)


class _PieceWork:
    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter
        self._numbers = itertools.count()
        self._own = threading.local()
        self.watches: list[Watch] = []

    def begin(self) -> None:
        work_alone()
        row = f"worker {next(self._numbers)}"
        self._own.watch = Watch(None if self._meter is None else self._meter.clock(row))
        self.watches.append(self._own.watch)

    def run(self, job: BatchBuilder, piece: int) -> None:
        try:
            job.run(piece, self._own.watch)
        finally:
            self._own.watch.idle()


class InlineSteps(StepWorkers[BatchBuilder]):
    """The caller's thread, which makes a batch when it is asked for."""

    def __init__(self, *, on_end: Callable[[], None], meter: Meter | None) -> None:
        self._watch = Watch(None if meter is None else meter.clock("caller"))
        self._end = weakref.finalize(self, on_end)

    def run(self, jobs: Iterator[BatchBuilder]) -> Results[None]:
        return InlinePool(self._make).run(jobs)

    def end(self) -> None:
        self._end()

    def _make(self, job: BatchBuilder) -> None:
        with alone():
            for piece in range(job.pieces):
                job.run(piece, self._watch)
        self._watch.idle()


class PlannedSteps(StepWorkers[Any]):
    """Steps without work: their batches come from another rank."""

    def run(self, jobs: Iterator[Any]) -> Results[None]:
        return InlinePool[Any, None](lambda job: None).run(jobs)
