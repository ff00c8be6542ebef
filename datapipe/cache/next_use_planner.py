"""Next use of each sample on this rank, from the plans of the epochs to come."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from datapipe.array_types import Int32, Int64
from datapipe.cache.policy import AHEAD, NEVER
from datapipe.plan.steps import Blocks

MOST_SAMPLES = 50_000_000
"""Largest dataset whose uses are kept: 4 bytes a sample for each of `AHEAD` epochs."""

_EPOCH = 1 << 40  # steps, so that uses of different epochs compare


class NextUses:
    """Next uses of samples, known as soon as a background thread has planned the epochs.

    `blocks` returns those of an epoch; all ranks take `share` units in a step.
    """

    def __init__(
        self,
        blocks: Callable[[int], Blocks],
        *,
        samples: int,
        rank: int,
        world_size: int,
        share: int,
    ) -> None:
        self._blocks = blocks
        self._samples = samples
        self._rank, self._world_size, self._share = rank, world_size, share
        self._lock = threading.Lock()  # held by the thread that plans
        self._uses: dict[int, Int32] = {}  # step by sample, -1 for none, by epoch
        self._epoch = -1
        self._thread: threading.Thread | None = None

    def of(self, samples: Int64, epoch: int) -> Int64:
        """Return the next use of each of some samples that are used in an epoch: int64 [n].

        A use that no finished plan has is later than all known ones.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._thread = threading.Thread(
                target=self._plan, args=(epoch,), name="datapipe-next-uses", daemon=True
            )
            self._thread.start()
        found = np.full(len(samples), NEVER - 1, np.int64)
        for ahead in range(AHEAD, 0, -1):
            uses = self._uses.get(epoch + ahead)
            if uses is not None:
                steps = uses[samples].astype(np.int64)
                found = np.where(steps >= 0, (epoch + ahead) * _EPOCH + steps, found)
        return found

    def wait(self) -> None:
        """Wait until the thread has planned all epochs ahead."""
        if self._thread is not None:
            self._thread.join()

    def _plan(self, epoch: int) -> None:
        """Plan the epochs after one, as long as it is the current one."""
        ahead = range(epoch + 1, epoch + 1 + AHEAD)
        with self._lock:
            for past in self._uses.keys() - ahead:
                del self._uses[past]
            for number in ahead:
                if self._epoch != epoch:
                    return
                if number not in self._uses:
                    self._uses[number] = self._of_epoch(number)

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
