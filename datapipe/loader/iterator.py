"""One pass over a loader's run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

import torch

from datapipe.errors import DatapipeError
from datapipe.loader.batch import Batch, BatchJob
from datapipe.loader.executor import Executor


class Owner(Protocol):
    """The loader that an iterator belongs to."""

    def take(self, job: BatchJob) -> Batch:
        """Hand a finished job out, counting it."""
        ...

    def finish(self) -> None:
        """The iterator has come to its end."""
        ...


class LoaderIterator(Iterator[Batch]):
    """One pass over a run, or over what is left of it."""

    def __init__(self, loader: Owner, executor: Executor[BatchJob]) -> None:
        self._loader = loader
        self._executor = executor
        self._closed = False
        self._exhausted = False
        self._busy = threading.Lock()

    def __next__(self) -> Batch:
        if not self._busy.acquire(blocking=False):
            raise DatapipeError(
                "two threads ask one iterator for batches; give each its own loader"
            )
        try:
            # Memory is reused, and workers write to it outside of the caller's inference mode.
            with torch.inference_mode(False):
                return self._next()
        finally:
            self._busy.release()

    def _next(self) -> Batch:
        if self._exhausted:
            raise StopIteration
        if self._closed:
            raise DatapipeError(
                "this iterator was closed: another one was started on the same loader, or an error "
                "ended it; call iter(loader) again"
            )
        try:
            return self._loader.take(self._executor.next())
        except StopIteration:
            self._exhausted = True
            self._loader.finish()
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether it yields nothing any more."""
        return self._closed

    def reopen(self, executor: Executor[BatchJob]) -> None:
        """Yield other batches than those that were prefetched, none of which was yielded."""
        self._executor = executor
        self._closed = False

    def close(self) -> None:
        """Stop the workers; the loader's state stays where it is."""
        self._closed = True
        self._executor.close()
