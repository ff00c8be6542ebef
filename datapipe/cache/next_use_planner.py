"""Next use of each sample on this rank, from the plans of the epochs to come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from datapipe.array_types import Int32, Int64
from datapipe.cache.policy import AHEAD, NEVER
from datapipe.plan.units import Units

MOST_SAMPLES = 50_000_000
"""Largest dataset whose uses are kept: 4 bytes a sample for each of `AHEAD` epochs."""

_EPOCH = 1 << 40  # steps, so that uses of different epochs compare


class EpochBlocks(Protocol):
    """Blocks of one epoch."""

    count: int

    def __call__(self, block: int, before: int) -> Units: ...


class NextUses:
    """Next uses of samples, known as soon as a background thread has planned the epochs.

    `blocks` returns those of an epoch; all ranks take `share` units in a step.
    """

    def __init__(
        self,
        blocks: Callable[[int], EpochBlocks],
        *,
        samples: int,
        rank: int,
        world_size: int,
        share: int,
    ) -> None:
        self._blocks = blocks
        self._samples = samples
        self._rank, self._world_size, self._share = rank, world_size, share
        self._lock = threading.Lock()
        self._uses: dict[int, Int32] = {}  # step by sample, -1 for none, by epoch
        self._epoch = -1
        self._thread: threading.Thread | None = None  # None if nothing is left to plan

    def of(self, samples: Int64, epoch: int) -> Int64:
        """Return the next use of each of some samples that are used in an epoch: int64 [n].

        A use that no finished plan has is later than all known ones.
        """
        if epoch != self._epoch:
            self._begin(epoch)
        found = np.full(len(samples), NEVER - 1, np.int64)
        for ahead in range(AHEAD, 0, -1):
            uses = self._uses.get(epoch + ahead)
            if uses is not None:
                steps = uses[samples].astype(np.int64)
                found = np.where(steps >= 0, (epoch + ahead) * _EPOCH + steps, found)
        return found

    def wait(self) -> None:
        """Wait until the thread has planned all epochs ahead."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _begin(self, epoch: int) -> None:
        with self._lock:
            self._epoch = epoch
            self._uses = {k: uses for k, uses in self._uses.items() if k in self._ahead()}
            if self._thread is None or not self._thread.is_alive():  # dead after an error
                self._thread = threading.Thread(
                    target=self._plan, name="datapipe-next-uses", daemon=True
                )
                self._thread.start()

    def _ahead(self) -> range:
        return range(self._epoch + 1, self._epoch + 1 + AHEAD)

    def _plan(self) -> None:
        while (epoch := self._next_missing()) is not None:
            uses = self._of_epoch(epoch)
            with self._lock:
                if epoch in self._ahead():
                    self._uses[epoch] = uses

    def _next_missing(self) -> int | None:
        """Return the next epoch to plan; if there is none, the thread ends."""
        with self._lock:
            missing = next((k for k in self._ahead() if k not in self._uses), None)
            if missing is None:
                # Under the same lock: an epoch that begins from here on starts another thread.
                self._thread = None
            return missing

    def _of_epoch(self, epoch: int) -> Int32:
        uses = np.full(self._samples, -1, np.int32)
        blocks, before = self._blocks(epoch), 0
        for block in range(blocks.count):
            units = blocks(block, before)
            numbers = before + np.arange(len(units))
            mine = np.flatnonzero(numbers % self._share % self._world_size == self._rank)
            taken = units.take(mine)
            steps = np.repeat(numbers[mine] // self._share, np.diff(taken.offsets))
            uses[taken.numbers] = steps
            before += len(units)
        return uses
