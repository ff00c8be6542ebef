"""Batches of a loader by index, for a torch `DataLoader` around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import get_worker_info

from datapipe.errors import DatapipeError


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
