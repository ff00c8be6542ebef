"""`Loader`: iterable over the batches of a plan, with a state."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

from datapipe.cache.sample_cache import HitLog, TierStats
from datapipe.declared import Natural, checked
from datapipe.errors import DatapipeError, PlanError, StateMismatch
from datapipe.index.dataset import Dataset
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.device.device_cache import DeviceCache
from datapipe.loader.device.prefetcher import DevicePrefetcher
from datapipe.loader.distributed import check_ranks_hold
from datapipe.loader.iterator import BatchesByIndex, LoaderIterator, short_interrupts
from datapipe.loader.metrics.meter import Meter
from datapipe.loader.metrics.stage_clock import ClockOptions
from datapipe.loader.peers import Peers
from datapipe.loader.schedule.plan_view import PlanView
from datapipe.loader.schedule.resume import resume, warn_of_uneven_steps
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.loader.schedule.state import History, Run, Skips
from datapipe.loader.workers.job_source import Executor, FinishedJob, JobSource
from datapipe.plan.steps import Position


@dataclass(frozen=True, kw_only=True)
class LoaderComponents:
    """Parts of a loader, for measurements that run them by themselves."""

    context: BatchContext
    prefetcher: DevicePrefetcher | None  # copies batches to a device; None if they stay
    schedule: Schedule
    steps: Callable[[], Iterator[StepJob]]  # yields the steps of the next run
    find_tuning_key: Callable[[], str]  # names the settings that `tune_workers` keeps


class Loader:
    """Iterable over the batches of an epoch or of a longer run; made by `make_loader`.

    Attributes:
        dataset: the opened dataset.
        options: options with defaults filled in: `num_workers`, `rank`, `world_size`, ...
        meter: times of the workers' stages, once `start_metering` was called.

    Examples:
        >>> loader = datapipe.make_loader("shards/", batch_size=2, epochs=3)
        >>> len(loader)
        12
        >>> batches = iter(loader)
        >>> batch = next(batches)
        >>> state = loader.state_dict()  # into the checkpoint, beside the model
        >>> resumed = datapipe.make_loader("shards/", batch_size=2, epochs=3)
        >>> resumed.load_state_dict(state)
        >>> next(iter(resumed))["key"] == next(batches)["key"]
        True
    """

    def __init__(
        self,
        dataset: Dataset,
        schedule: Schedule,
        *,
        context: BatchContext,
        prefetcher: DevicePrefetcher | None,
        device_cache: DeviceCache | None,
        peers: Peers | None,
        ranks_found: bool,
        find_tuning_key: Callable[[], str],
    ) -> None:
        self.dataset = dataset
        self.options = options = schedule.options
        self._skips = Skips(options.run.max_skipped)
        self._find_tuning_key = find_tuning_key
        self._prefetcher = prefetcher
        self._device_cache = device_cache
        self._ranks_found = ranks_found  # in the process group if there is one, and not given
        self._schedule = schedule
        self._context = context
        self._peers = peers
        self._jobs = JobSource(
            context,
            device_cache=device_cache,
            loads=peers is None or peers.first,
        )
        self._hits = HitLog(self.stats)
        self.meter: Meter | None = None
        self._run = Run.at(Position(0))
        self._history = History(self._run)  # of the newest iterator
        self._resumes = False  # whether a state was just loaded
        self._checked_group = 0  # that a warning was considered for
        self._finished = False  # whether the newest iterator has come to its end
        self._trainer_epoch: int | None = None
        self._iterator: weakref.ref[LoaderIterator] | None = None
        self._process = os.getpid()
        self._by_index = BatchesByIndex(self, lambda: self._finished)

    def __len__(self) -> int:
        """Return the steps of a whole run, the same for every rank: by default one epoch.

        If units are packs or batches, the first call plans the epochs; with `max_steps`, as much of
        them as has so many steps.

        Raises:
            EndlessError: epochs follow each other without end. It is a `TypeError` too.
        """
        self._schedule.check_exclusion()
        # The next run begins there: after `max_steps`, within an epoch.
        return self._schedule.count(Run.at(self._run.position) if self._finished else self._run)

    @short_interrupts
    def __iter__(self) -> LoaderIterator:
        """Start the run over, or resume at a state that was just loaded.

        An earlier iterator of this loader is closed.

        Raises:
            PlanError: the ranks of the process group are not those that the loader was made with,
                or `exclude=` has steps of another plan.
            DatapipeError: the loader was made in the process that this one was forked from.
        """
        self._check_process()
        if self._ranks_found:
            check_ranks_hold(self.options.rank, self.options.world_size)
        self._schedule.check_exclusion()
        self._end_iterator()
        resumes, run = self._resumes, self._run
        if self._finished or not resumes:
            run = Run.at(run.position if self._finished else run.start)
        iterator = LoaderIterator(
            self._begin(run),
            check_process=self._check_process,
            on_batch=self._count,
            on_end=self._finish,
            prefetcher=self._prefetcher,
            device_cache=self._device_cache,
            peers=self._peers,
            meter=self.meter,
            pairs=self._context.tokens is not None and self._context.tokens.pairs,
            has_workers=self.options.num_workers > 0,
        )
        self._iterator = weakref.ref(iterator)
        self._start_at(run)
        # Until a batch is taken: some frameworks make an iterator without using it.
        self._resumes = resumes
        return iterator

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the next batch to `DataLoader(loader, batch_size=None)`; not for other use.

        Raises:
            DatapipeError: another batch is asked for, or from a worker of a `DataLoader`.
        """
        return self._by_index.take(index)

    def __getitems__(self, indices: Sequence[int]) -> None:
        """Refuse a `DataLoader` with a batch size, and thus `Trainer(train_dataset=loader)`.

        Raises:
            DatapipeError: always.
        """
        raise DatapipeError(
            "this loader makes whole batches, and a DataLoader with a batch_size would put batches "
            "into batches; iterate over the loader itself, give DataLoader(loader, "
            "batch_size=None), or, with the Trainer of transformers, return iter(loader) from its "
            "method get_train_dataloader"
        )

    @property
    def skipped(self) -> int:
        """Samples that failed and were yielded as empty slots, over all epochs."""
        return self._skips.count

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._run.position.epoch

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """Object whose `sampler.set_epoch` Lightning calls at the beginning of an epoch.

        Lightning calls nothing else of a loader that is no `DataLoader`.
        """
        return SimpleNamespace(sampler=SimpleNamespace(set_epoch=self._follow))

    @property
    def accumulation_steps(self) -> int:
        """Steps that make one of `global_batch_size` units; 1 by default."""
        return self.options.accumulation_steps

    @property
    def plan(self) -> PlanView:
        """Plan of the loader: the samples of every rank at any step."""
        return PlanView(self.dataset, self._schedule, self.epoch)

    @checked(PlanError)
    def set_epoch(self, epoch: Natural) -> None:
        """Make `epoch` the current one.

        The current epoch keeps its position; another one starts at its beginning. An iterator that
        has yielded batches is closed; one that has not begins there.

        Raises:
            PlanError: `epoch` is negative or no integer.
        """
        if epoch != self.epoch:
            run = Run.at(Position(epoch))
            iterator = self._iterator() if self._iterator else None
            waits = iterator is not None and not iterator.closed and not self._history.yielded
            self._end_iterator()
            if iterator is not None and waits:
                iterator.reopen(self._begin(run))
            self._start_at(run)

    @checked(PlanError)
    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return the position of the loader: a small dict for JSON.

        It counts batches that were yielded, not those that were prefetched, and is the same on
        every rank. With a mixture it says the epoch and position of each dataset in its own order,
        under `datasets`; with packs and batches where the current block of 65,536 draws began.

        Args:
            step: position after that many batches of the newest iterator, for wrappers that fetch
                ahead of the training loop; None for all that were yielded.

        Raises:
            PlanError: the newest iterator has not yielded `step` batches, or over a thousand more.
        """
        return self._schedule.state(self._run if step is None else self._history.after(step))

    @checked(StateMismatch)
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next `iter(loader)` resume where `state` was taken.

        Rank, world size, workers and a fixed batch size may differ from those it was taken with.
        A mixture may be another one: the rest of the run is drawn from it, and the log says what
        has changed.

        Raises:
            StateMismatch: the state belongs to another dataset, other plan options or a newer
                version.
        """
        run, self._schedule = resume(self._schedule, state)
        self._end_iterator()
        self._start_at(run)
        self._resumes = True

    @checked(PlanError)
    def components(self, at: Position | None = None) -> LoaderComponents:
        """Return the parts that batches are made with, and the steps from `at` on.

        Internal: they change with the loader.
        """
        start = Run.at(at or self._run.start)
        return LoaderComponents(
            context=self._context,
            prefetcher=self._prefetcher,
            schedule=self._schedule,
            steps=partial(self._jobs.steps, start, self._schedule),
            find_tuning_key=self._find_tuning_key,
        )

    @checked(PlanError)
    def start_metering(self, *, events: bool = False, ranges: bool = False) -> Meter:
        """Time the stages of every iteration that begins from now on; it costs some 0.2 %.

        Args:
            events: keep the begin and end of each stage, for a timeline.
            ranges: show stages as `datapipe.<stage>` to `torch.profiler`, and to NVTX on a GPU.

        Returns:
            A new meter, also in `loader.meter`. Call its `reading()` at any time.
        """
        options = ClockOptions(events=events, ranges=ranges)
        self.meter = Meter(self.options.num_workers, options)
        return self.meter

    def stats(self) -> dict[str, TierStats]:
        """Return figures of each tier of the cache and of "source"; empty without a cache."""
        device = {} if self._device_cache is None else {"device": self._device_cache.stats()}
        return device | ({} if self._context.cache is None else self._context.cache.stats())

    def __reduce__(self) -> Any:
        raise DatapipeError(
            "a loader holds threads and open files, so it cannot be copied or sent to another "
            "process; call make_loader there, and carry the state over with state_dict"
        )

    def __repr__(self) -> str:
        options, plan = self.options, self._schedule.plan
        return (
            f"<Loader of {self.dataset.title}: {self._schedule.origin.source.count:,} samples, "
            f"{options.units_per_rank} {'unit' if plan.unit == 'sample' else plan.unit}(s) a step "
            f"on rank {options.rank} of {options.world_size}, epoch {self.epoch}>"
        )

    def close(self) -> None:
        """Stop the workers and close the files; iterating again opens them again."""
        self._end_iterator()
        self._jobs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_iterator(self) -> None:
        iterator = self._iterator() if self._iterator else None
        if iterator is not None:
            iterator.close()

    def _follow(self, epoch: int) -> None:
        """Follow a trainer that begins its epoch of that number, which need not be the plan's."""
        last, self._trainer_epoch = self._trainer_epoch, epoch
        if self._resumes or not self._schedule.plan.shuffle:
            return
        if last is None:
            # Lightning loads no state from a checkpoint of an epoch's end.
            if self._run == Run.at(Position(0)):
                self.set_epoch(epoch)
        elif epoch > last and self._run.steps and not self._finished:
            # The trainer cut its epoch short: the rest of the plan's epoch comes next.
            self._resumes = True

    def _begin(self, run: Run) -> Executor:
        if self.meter is not None:
            self.meter.retire()
        if self._checked_group != self._schedule.plan.group:
            self._checked_group = self._schedule.plan.group
            warn_of_uneven_steps(self._schedule.plan, self.options)
        return self._jobs.begin(run, self._schedule, self.meter)

    def _start_at(self, run: Run) -> None:
        self._run, self._history = run, History(run)
        self._resumes = self._finished = False

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise DatapipeError(
                f"this loader was made before a fork, in process {self._process}, which has its "
                "workers; call make_loader in this one, and carry the state over with state_dict"
            )

    def _count(self, job: FinishedJob) -> None:
        """Count a batch that is about to be yielded; refuse more skips than `max_skipped`."""
        # Repeats in the last step are samples that other slots or ranks count.
        valid = job.step.share.valid
        self._skips.note(job.errors[slot] for slot in sorted(job.errors) if valid[slot])
        self._run = job.step.run_after
        self._history.add(self._run)
        self._hits.note(job.step.epoch)
        self._resumes = False
        # A loop that knows the length asks for no batch after the last.
        self._finished = job.step.last

    def _finish(self) -> None:
        if not self._finished:  # all that was left is excluded
            self._run, self._finished = self._schedule.end(self._run), True
        self._hits.note(None)
