"""Iterator over one pass of a loader's run, and what a torch `DataLoader` around it takes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from datapipe.errors import DatapipeError
from datapipe.loader.batch.builder import Batch
from datapipe.loader.device.device_cache import DeviceCache
from datapipe.loader.device.prefetcher import NESTED, PIXELS, DevicePrefetcher, Sent
from datapipe.loader.metrics.meter import Meter
from datapipe.loader.peers import Peers
from datapipe.loader.schedule.options import IMAGE_KEYS
from datapipe.loader.workers.job_source import Executor, FinishedJob

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False)
class LoaderIterator(Iterator[Batch]):
    """Iterator over the batches of a run, or over the rest of it."""

    executor: Executor
    _: KW_ONLY
    check_process: Callable[[], None]  # before each batch; raises in a child that was forked
    on_batch: Callable[[FinishedJob], None]  # called before each is yielded
    on_end: Callable[[], None]  # called once there are no more batches
    prefetcher: DevicePrefetcher | None  # None if batches stay on the host
    device_cache: DeviceCache | None
    peers: Peers | None  # ranks that take the same samples, if one of them loads for all
    meter: Meter | None
    pairs: bool  # samples are preference pairs, whose images come twice
    has_workers: bool  # an interrupt only ends waiting for them, so inner frames tell nothing

    def __post_init__(self) -> None:
        # Batches that are being copied to the device; the last may be what ended them.
        self._sent: deque[tuple[FinishedJob, Sent] | Exception] = deque()
        self.closed = False  # it yields nothing any more
        self._exhausted = False
        self._busy = threading.Lock()

    def __next__(self) -> Batch:
        self.check_process()
        if not self._busy.acquire(blocking=False):
            raise DatapipeError(
                "two threads ask one iterator for batches; give each its own loader"
            )
        try:
            # Memory is reused, and workers write to it outside of the caller's inference mode.
            with torch.inference_mode(False):
                return self._next()
        except KeyboardInterrupt as error:
            if not self.has_workers:  # it may be the user's transform that is interrupted
                raise
            raise error.with_traceback(None) from None
        finally:
            self._busy.release()

    def _next(self) -> Batch:
        if self._exhausted:
            raise StopIteration
        if self.closed:
            raise DatapipeError(
                "this iterator was closed: another one was started on the same loader, or an error "
                "ended it; call iter(loader) again"
            )
        try:
            return self._take()
        except StopIteration:
            self._exhausted = True
            self.on_end()
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def _take(self) -> Batch:
        asked = time.perf_counter_ns()
        job, batch = self._load() if self.peers is None else self._share(self.peers)
        if self.pairs:
            batch = self._timed("collate", _repeat_images, batch)
        self.on_batch(job)
        if self.meter is not None:
            # Training uses neither repeats in the last step nor skipped samples.
            valid = job.step.share.valid
            samples = int(valid.sum()) - sum(bool(valid[slot]) for slot in job.errors)
            self.meter.give(asked=asked, finished=job.finished, samples=samples)
        return batch

    def _load(self) -> tuple[FinishedJob, Batch]:
        if self.prefetcher is None:
            job = self.executor.next()
            return job, self._timed("collate", job.result)
        if not self._sent:
            self._send(self.prefetcher)
        first = self._sent.popleft()
        if isinstance(first, Exception):
            raise first
        if not self._sent and self.executor.ready():
            self._send(self.prefetcher)  # copied during the work on this one
        job, sent = first
        return job, self._timed("transfer", self.prefetcher.receive, sent)

    def _share(self, peers: Peers) -> tuple[FinishedJob, Batch]:
        if not peers.first:
            job = self.executor.next()  # of the plan alone
            batch, job.errors = self._timed("transfer", peers.receive)
            job.finished = time.perf_counter_ns()
            return job, batch
        try:
            job, batch = self._load()
        except StopIteration:  # the others know the plan
            raise
        except Exception as error:
            peers.send(error)
            raise
        self._timed("transfer", peers.send, (batch, job.errors))
        return job, batch

    def _send(self, prefetcher: DevicePrefetcher) -> None:
        """Begin to copy the next batch. Exceptions are kept until the batches before it are out."""
        try:
            job = self.executor.next()
            batch, blank = self._timed("collate", job.result), job.blank
            cache, complete = self.device_cache, None
            if cache is not None:
                complete = cache.begin(job.step, batch, job.errors, blank)
            sent = self._timed("transfer", prefetcher.send, batch, blank=blank, complete=complete)
            self._sent.append((job, sent))
        except Exception as error:
            self._sent.append(error)

    def _timed(self, stage: str, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        if self.meter is not None:
            function = self.meter.caller.timed(stage, function)
        return function(*args, **options)

    def reopen(self, executor: Executor) -> None:
        """Yield batches of another executor in place of those that were prefetched."""
        self.executor = executor
        self._sent.clear()
        self.closed = False

    def close(self) -> None:
        """Stop the workers; the loader's state stays as it is."""
        self.closed = True
        self._sent.clear()
        self.executor.close()


def _repeat_images(batch: Batch) -> Batch:
    """Return a batch with the images of all chosen rows, and again for all rejected ones.

    They are decoded, and copied to a device, once.
    """
    repeated = {}
    for name in IMAGE_KEYS:
        values = batch.get(name)
        if isinstance(values, Tensor):
            axis = 1 if name == PIXELS and values.ndim == NESTED else 0
            both = torch.cat([values, values], axis)
            repeated[name] = both.pin_memory() if values.is_pinned() else both
    return batch | repeated


class BatchesByIndex:
    """Batches that a `DataLoader(loader, batch_size=None)` takes one after the other.

    Index 0 begins an iteration. `StopIteration` ends that of the `DataLoader`, if the loader was
    resumed and has fewer batches left than its length: `at_end` says if the last batch was yielded.
    """

    def __init__(self, loader: Iterable[Any], at_end: Callable[[], bool]) -> None:
        self._loader = loader
        self._at_end = at_end
        self._iterator: Iterator[dict[str, Any]] | None = None
        self._next = 0

    def take(self, index: object) -> dict[str, Any]:
        """Return the next batch; raise `DatapipeError` for another, or in a worker process."""
        worker = get_worker_info()
        if worker is not None:
            raise DatapipeError(
                f"a DataLoader with num_workers={worker.num_workers} would make every batch of "
                "this loader in each of its workers; leave num_workers out of the DataLoader, and "
                "give it to make_loader"
            )
        if isinstance(index, int) and index == 0:
            self._iterator, self._next = iter(self._loader), 0
        elif not self._next or index != self._next:
            raise DatapipeError(
                f"loader[{index!r}]: batches come in the loader's own order, and the next one is "
                f"{self._next}; iterate over the loader, and give shuffle= and seed= to "
                "make_loader, not to a DataLoader around it"
            )
        if (iterator := self._iterator) is None:
            raise StopIteration
        self._next += 1
        try:
            return next(iterator)
        finally:
            if self._at_end():  # a sampler that knows the length asks for no more
                self._iterator = None
                next(iterator, None)


def short_interrupts(function: Callable[P, T]) -> Callable[P, T]:
    """Let a `KeyboardInterrupt` inside a function begin at the function itself.

    The frames below wait for workers, and say nothing about the caller's code. A second Ctrl-C
    while workers are stopped is not chained to the first.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt as error:
            raise error.with_traceback(None) from None

    return call
