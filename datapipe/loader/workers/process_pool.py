"""Worker processes of a loader, fed with tasks by torch's `DataLoader`."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from datapipe.errors import DatapipeError, PlanError
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.metrics.stage_clock import ClockOptions
from datapipe.loader.schedule.run_options import LoaderOptions
from datapipe.loader.workers.forkserver import StartContext, has_script, warm_up
from datapipe.loader.workers.ipc import REGIONS, Report, Task, dump_recipe
from datapipe.loader.workers.process_worker import WorkerDataset, begin_worker
from datapipe.loader.workers.shared_memory import Regions, SharedFile

if TYPE_CHECKING:
    from datapipe.loader.workers.process_executor import ProcessExecutor

logger = logging.getLogger(__name__)

_TICK = 1.0  # seconds after which waiting is interrupted, to check for a stall or an end
_PATIENCE = 5.0  # seconds that the tasks of a former owner may still take
_NAMES = itertools.count()


class WorkerPool:
    """Worker processes of a loader: started when needed, used by one executor after another.

    Each worker has a copy of the context, and at most `prefetch_factor` batches begun or queued.

    Raises:
        PlanError: the context cannot be sent to other processes.
    """

    def __init__(self, context: BatchContext, options: LoaderOptions) -> None:
        self._recipe = dump_recipe(context)
        if self._recipe.needs_script and not has_script():
            raise PlanError(
                "workers='processes' needs functions that other processes can import, and one is "
                "defined in no file (standard input, `python -c`, a notebook or an interactive "
                "session); put it into a module, or use workers='threads'"
            )
        self._options = options
        self._pin = context.images is not None and context.images.pool.pin
        self._feed = _TaskFeed()
        self._name = next(_NAMES)
        self._tasks = 0
        self._loader: DataLoader[Report] | None = None
        self._reports: Iterator[Report] | None = None
        self._starter: StartContext | None = None
        self._file: SharedFile | None = None
        self._regions: Regions | None = None
        self._end: weakref.finalize[..., WorkerPool] | None = None
        warm_up()

    def begin(self, owner: ProcessExecutor) -> None:
        """Take tasks of another executor from now on, and drop those of the last one.

        Raises:
            DatapipeError: no process can be started.
        """
        if self._reports is not None and not self._drain():
            self.close()
        self._feed.owner = weakref.ref(owner)
        try:
            self._begin()
        except RuntimeError as error:
            if not _is_timeout(error):
                raise
            logger.warning("worker processes do not answer; they are started again")
            self._feed.owner = weakref.ref(owner)
            self._begin()

    def _begin(self) -> None:
        if self._loader is None:
            self._open()
        assert self._loader is not None
        try:
            # It draws a seed on torch's default device, which need not be the generator's.
            with torch.device("cpu"):
                self._reports = iter(self._loader)
            self._end_with_the_pool()
        except (OSError, EOFError) as error:
            self.close()
            raise DatapipeError(
                f"worker processes cannot be started: {error}; use fewer num_workers, make sure "
                "that /dev/shm has some room, or use workers='threads'"
            ) from error
        except RuntimeError as error:
            died = error if _is_timeout(error) else self._explain()
            self.close()
            raise died from error
        except BaseException:
            self.close()
            raise

    def next(self) -> Report | None:
        """Return the next report in the order of the tasks; None if there is none yet.

        Raises:
            StopIteration: the executor had no more tasks.
            DatapipeError: a worker died.
        """
        assert self._reports is not None
        try:
            return next(self._reports)
        except StopIteration:
            raise
        except RuntimeError as error:
            if _is_timeout(error) or self._reports is None:  # None: closed by another thread
                return None
            died = self._explain()
            self.close()
            raise died from error
        except BaseException:
            # An interrupt may have come in the middle of a message.
            self.close()
            raise

    @property
    def regions(self) -> Regions:
        """Memory of the batches."""
        assert self._regions is not None
        return self._regions

    def prepare(self, step: StepJob, clock: ClockOptions | None = None) -> Task:
        """Return the next task, which makes the batch of a step."""
        self._tasks += 1
        return Task(self._name, self._tasks, self.regions.allocate(), step, clock)

    def leave(self, owner: ProcessExecutor) -> None:
        """Drop the tasks of an executor, unless another one has begun."""
        if self._feed.owner is not None and self._feed.owner() is owner:
            self._drop_tasks()
            if not self._options.persistent_workers:
                self.close()

    def watched(self, task: int) -> list[tuple[int, str, float]]:
        """Return slot, stage and its duration of each worker that is at a task."""
        assert self._file is not None
        rows = self._file.board[self._file.board["task"] == task]
        return [
            (int(row["slot"]), row["stage"].decode(), time.monotonic() - float(row["since"]))
            for row in rows
        ]

    def close(self) -> None:
        """End the processes. Batches in use stay as they are."""
        self._drop_tasks()
        self._reports = self._loader = self._file = self._regions = None
        _POOLS.discard(self)
        end, self._end = self._end, None
        if end is not None:
            end()
        elif self._starter is not None:
            self._starter.end()

    def forget(self) -> None:
        """Forget the processes, in a child that was forked from their parent.

        Else torch's iterator and multiprocessing would end them when the child ends.
        """
        if self._reports is not None:
            self._reports._shutdown = True  # type: ignore[attr-defined]
        if self._end is not None:
            self._end.detach()
        if self._starter is not None:
            self._starter.forget()
        self._reports = self._loader = self._starter = self._file = self._regions = None
        self._end = None

    def _open(self) -> None:
        workers, ahead = self._options.num_workers, self._options.prefetch_factor
        self._file = SharedFile(workers)
        # Prepared batches, the one in use and the one before it.
        self._regions = Regions(self._file, workers * ahead + 2)
        REGIONS[self._name] = self._regions
        self._starter = StartContext(self._recipe.needs_script)
        level = logging.getLogger("datapipe").getEffectiveLevel()
        self._loader = DataLoader(
            WorkerDataset(self._recipe, self._file, level),
            batch_size=None,
            sampler=self._feed,
            num_workers=workers,
            prefetch_factor=ahead,
            pin_memory=self._pin,
            timeout=_TICK,
            worker_init_fn=begin_worker,
            multiprocessing_context=self._starter,
            # Else it draws from torch's global one, and training would depend on how it is fed.
            generator=torch.Generator(),
            # `leave` ends those that are not to stay. Interrupted while it starts others, torch's
            # iterator would print an error of its own when it is collected.
            persistent_workers=True,
        )
        _POOLS.add(self)

    def _end_with_the_pool(self) -> None:
        """End the workers when the pool is collected.

        `DataLoader` does so too. But if it is collected together with the queues, their finalizers
        run first, its message to stop is never sent, and it waits 5 s for each worker.
        """
        if self._end is not None:
            self._end.detach()  # of the same workers, or of those that have ended
        self._end = weakref.finalize(self, _end_workers, self._reports, self._starter, self._file)
        self._end.atexit = False  # `_close_all` does that

    def _explain(self) -> DatapipeError:
        assert self._starter is not None
        return self._starter.explain()

    def _drop_tasks(self) -> None:
        """Make the workers skip their tasks, and stop within the current batch."""
        self._feed.owner = None
        if self._file is not None:
            self._file.oldest[0] = self._tasks + 1

    def _drain(self) -> bool:
        """Wait for the end of the last executor's tasks. Return whether it came in time."""
        self._drop_tasks()
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            try:
                self.next()
            except StopIteration:
                self.regions.release_all()
                return True
            except DatapipeError as error:
                logger.warning("%s; workers are started again", error)
                return False
        logger.warning("a worker process does not stop; workers are started again")
        return False


class _TaskFeed:
    """Tasks of the executor that uses the pool just now, which may be dropped meanwhile."""

    def __init__(self) -> None:
        self.owner: weakref.ref[ProcessExecutor] | None = None

    def __iter__(self) -> Iterator[Task]:
        mine = self.owner
        while mine is not None and self.owner is mine and (owner := mine()) is not None:
            task = owner.next_task()
            del owner
            if task is None:
                return
            yield task


def _end_workers(reports: Any, starter: StartContext, file: SharedFile) -> None:
    """End workers whose batches are not needed any more."""
    file.oldest[0] = np.iinfo(file.oldest.dtype).max  # they stop within the current batch
    reports._shutdown_workers()
    starter.end()


def _is_timeout(error: RuntimeError) -> bool:
    # DataLoader raises no class of its own.
    return str(error).startswith("DataLoader timed out")


_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()  # those with processes


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _forget_all() -> None:
    for pool in list(_POOLS):
        pool.forget()
    _POOLS.clear()


os.register_at_fork(after_in_child=_forget_all)
