"""Eviction by the next use of each sample, which the plans of the epochs to come know."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from datapipe.array_types import Int32, Int64
from datapipe.cache.tier import Policy
from datapipe.plan.steps import Blocks

NEVER = 2**62
"""Next use of a sample that is not used again as far as is known."""

AHEAD = 6
"""Epochs that are planned ahead. If each of eight ranks holds an eighth of the data, the cache
serves 0.12 of the reads with one epoch, 0.23 with two, 0.41 with four, 0.42 with six or more."""

MOST_RANKS = 128
"""Most ranks for which the trial of a policy is worth its time."""

_READS = 256  # of a rank per epoch of the trial
_EPOCHS, _COUNTED = 20, 8  # of the trial, and those at its end that count
_SEED = 1


class NextUse:
    """Policy that keeps the samples that are used next, within a budget of bytes.

    A sample that is used later than all kept ones is not cached, so a single pass does not flush
    the cache. Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage
    computer", IBM Systems Journal 5(2), 1966; with bypass.
    """

    keeps = "samples that are used next"
    plans_ahead = True

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._kept: dict[int, tuple[int, int]] = {}  # next use and bytes, by sample
        self._heap: list[tuple[int, int]] = []  # latest use first; some are out of date

    def __contains__(self, sample: int) -> bool:
        return sample in self._kept

    def use(self, sample: int, next_use: int) -> None:
        _, size = self._drop(sample)
        if next_use < NEVER:
            self._keep(sample, next_use, size)

    def offer(self, sample: int, size: int, next_use: int) -> tuple[bool, list[int]]:
        if not self.would_keep(sample, size, next_use):
            return False, []
        going: dict[int, tuple[int, int]] = {}
        while self.bytes + size > self.budget:
            latest = self._latest()
            if latest is None or latest[0] <= next_use:
                for other, entry in going.items():  # not cached: nothing is evicted
                    self._keep(other, *entry)
                return False, []
            going[latest[1]] = self._drop(latest[1])
        self._keep(sample, next_use, size)
        return True, list(going)

    def would_keep(self, sample: int, size: int, next_use: int) -> bool:
        if next_use >= NEVER or size > self.budget or sample in self._kept:
            return False
        if self.bytes + size <= self.budget:
            return True
        latest = self._latest()
        return latest is not None and latest[0] > next_use

    def _keep(self, sample: int, next_use: int, size: int) -> None:
        self._kept[sample] = next_use, size
        self.bytes += size
        heapq.heappush(self._heap, (-next_use, sample))
        # Outdated items are dropped only at the top of the heap, which they may never reach.
        if len(self._heap) > 64 + 4 * len(self._kept):
            self._heap = [(-use, kept) for kept, (use, _) in self._kept.items()]
            heapq.heapify(self._heap)

    def _drop(self, sample: int) -> tuple[int, int]:
        entry = self._kept.pop(sample)
        self.bytes -= entry[1]
        return entry

    def _latest(self) -> tuple[int, int] | None:
        """Return next use and number of the sample whose next use is the latest."""
        while self._heap:
            use, sample = -self._heap[0][0], self._heap[0][1]
            if sample in self._kept and self._kept[sample][0] == use:
                return use, sample
            heapq.heappop(self._heap)
        return None


@lru_cache
def expected_hits(policy: Callable[[int], Policy], part: float, ranks: int) -> float | None:
    """Return the share of a rank's reads that a policy serves once the cache is full, 0 to 1.

    It is measured on a small dataset; None for more than `MOST_RANKS` ranks. The share depends only
    on the part of the dataset that fits, and on the number of ranks that share an epoch, each with
    a cache of its own.
    """
    if ranks > MOST_RANKS:
        return None
    samples = _READS * ranks
    rng = np.random.default_rng(_SEED)
    orders = [rng.permutation(samples)[:_READS] for _ in range(_EPOCHS + AHEAD)]
    uses = np.full((_EPOCHS + AHEAD, samples), NEVER - 1)
    for epoch, order in enumerate(orders):
        uses[epoch, order] = epoch * _READS + np.arange(_READS)
    cache = policy(round(part * samples))
    served = 0
    for epoch, order in enumerate(orders[:_EPOCHS]):
        following = uses[epoch + 1 : epoch + 1 + AHEAD, order].min(axis=0)
        for sample, then in zip(order.tolist(), following.tolist(), strict=True):
            if sample in cache:
                cache.use(sample, then)
                served += epoch >= _EPOCHS - _COUNTED
            else:
                cache.offer(sample, 1, then)
    return served / (_COUNTED * _READS)


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
