"""`Loader`: iterates over the batches that a plan says, and knows where it stands."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from datapipe.errors import DatapipeError, PlanError
from datapipe.index.dataset import Dataset
from datapipe.loader.batch import BatchJob, BatchMaker
from datapipe.loader.device import DeviceFeeder
from datapipe.loader.exclude import SeenIn
from datapipe.loader.executor import Executor
from datapipe.loader.history import History
from datapipe.loader.images import ImageMaker
from datapipe.loader.iterator import FinishedJob, LoaderIterator, Steps
from datapipe.loader.keeper import Keeper, TierStats
from datapipe.loader.meter import Meter
from datapipe.loader.nextuses import NextUses
from datapipe.loader.options import LoaderOptions, as_int
from datapipe.loader.process_pool import WorkerPool
from datapipe.loader.processes import ProcessExecutor, RemoteJob
from datapipe.loader.ranks import check_ranks_hold
from datapipe.loader.readahead import Planned, read_ahead
from datapipe.loader.sampler import EpochSampler
from datapipe.loader.schedule import Schedule
from datapipe.loader.skips import Skips
from datapipe.loader.source import Origin
from datapipe.loader.stageclock import ClockOptions
from datapipe.loader.state import Run, dump_state, parse_state, saved_group
from datapipe.loader.tokens import TokenMaker
from datapipe.loader.usertransform import UserTransform
from datapipe.loader.view import PlanView
from datapipe.plan.options import PlanOptions
from datapipe.plan.steps import NOTHING, Exclusion, Position
from datapipe.store.open import open_store

logger = logging.getLogger(__name__)

J = TypeVar("J")


class Loader:
    """Iterates over the batches of an epoch or of a longer run; made by `make_loader`.

    Attributes:
        dataset: what is being read.
        options: how, with defaults filled in: `num_workers`, `rank`, `world_size`, ...
        meter: times what the workers do, once `start_metering` was called.
    """

    def __init__(
        self,
        dataset: Dataset,
        origin: Origin,
        *,
        plan: PlanOptions,
        images: ImageMaker | None,
        transform: UserTransform | None,
        tokens: TokenMaker | None,
        feeder: DeviceFeeder | None,
        keeper: Keeper | None,
        options: LoaderOptions,
        exclusion: Exclusion = NOTHING,
        excluded_plans: Sequence[SeenIn] = (),
        group_given: bool = True,
        ranks_found: bool = False,
        plan_cache: str | PathLike[str] | None = None,
        find_key: Callable[[], str] | None = None,
    ) -> None:
        self.dataset = dataset
        self.options = options
        self._skips = Skips(options.max_skipped)
        self._find_key = find_key
        self._feeder = feeder
        self._excluded_plans = excluded_plans
        self._group_given = group_given
        self._ranks_found = ranks_found  # in the process group, or for want of one
        self._schedule = Schedule(
            fingerprint=dataset.manifest.fingerprint,
            origin=origin,
            plan=plan,
            options=options,
            exclusion=exclusion,
            plan_cache=Path(plan_cache) if plan_cache is not None else None,
        )
        self._store = open_store(dataset)
        self._maker = BatchMaker(
            dataset=dataset,
            store=self._store,
            images=images,
            transform=transform,
            tokens=tokens,
            meta=options.meta,
            seed=plan.seed,
            verify=options.verify,
            keeper=keeper,
            on_error=options.on_error,
            workers=0 if self._in_processes else options.num_workers,
            ahead=options.prefetch_factor,
        )
        self._pool = self._worker_pool() if self._in_processes else None
        self._next_uses: NextUses | None = None
        if keeper is not None and keeper.policy == "next-use":
            self._next_uses = NextUses(
                self._schedule.blocks,
                samples=len(dataset),
                rank=options.rank,
                world_size=options.world_size,
                share=options.share,
            )
        self.meter: Meter | None = None
        self._run = Run.at(Position(0))
        self._final = self._run  # once the newest iterator has come to its end
        self._history = History(self._run)  # of the newest iterator
        self._looked = False  # at what the first batch lacks
        self._resumes = False  # whether a state was just loaded
        self._finished = False  # whether the newest iterator has come to its end
        self._trainer_epoch: int | None = None
        self._iterator: weakref.ref[LoaderIterator] | None = None

    def __len__(self) -> int:
        """Steps of a whole run, the same for every rank: an epoch, if nothing else was asked for.

        Where units are packs or batches, the first call plans the whole epoch. `max_steps` makes
        that unnecessary.

        Raises:
            EndlessError: epochs follow each other without end. It is a `TypeError` too.
        """
        self._check_exclusion()
        # Where the run of the next iteration begins: after `max_steps`, within an epoch.
        return self._schedule.count(self._run.position if self._finished else self._run.start)

    def __iter__(self) -> LoaderIterator:
        """Start the run over, or go on where a state that was just loaded says.

        An earlier iterator of this loader is closed.

        Raises:
            PlanError: the ranks of the process group are not those that the loader was made with,
                or `exclude=` has steps of another plan.
        """
        if self._ranks_found:
            check_ranks_hold(self.options.rank, self.options.world_size)
        self._check_exclusion()
        self._end_iterator()
        resumes = self._resumes
        if self._finished:
            run = Run.at(self._run.position)
        else:
            run = self._run if self._resumes else Run.at(self._run.start)
        iterator = LoaderIterator(self, self._executor(run), self._feeder, self.meter)
        self._iterator = weakref.ref(iterator)
        self._start_at(run)
        # Until a batch is taken: frameworks ask for an iterator only to see whether there is one.
        self._resumes = resumes
        return iterator

    @property
    def origin(self) -> Origin:
        """Which samples take part, and how large they are."""
        return self._schedule.origin

    @property
    def plan_options(self) -> PlanOptions:
        """What the global order depends on."""
        return self._schedule.plan

    @property
    def skipped(self) -> int:
        """Samples that failed and were yielded as empty slots, over all epochs."""
        return self._skips.count

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._run.position.epoch

    @property
    def tuning_key(self) -> str | None:
        """Under which `tune_workers` keeps the workers that were best for work of this kind."""
        return self._find_key() if self._find_key is not None else None

    @property
    def batch_sampler(self) -> EpochSampler:
        """Where Lightning looks for what it tells the beginning of an epoch."""
        return EpochSampler(self._follow)

    @property
    def accumulation_steps(self) -> int:
        """Steps that make one of `global_batch_size` units; 1 where none was given."""
        return self.options.accumulation_steps

    @property
    def plan(self) -> PlanView:
        """What every rank sees at any step."""
        return PlanView(self.dataset, self._schedule, self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one to iterate over.

        The current one keeps its position; another one starts at its beginning. An iterator that
        has yielded batches is closed, one that has not begins there.

        Raises:
            PlanError: `epoch` is negative or no integer.
        """
        epoch = as_int("epoch", epoch)
        if epoch < 0:
            raise PlanError(f"epoch {epoch} is negative")
        if epoch != self.epoch:
            run = Run.at(Position(epoch))
            iterator = self._iterator() if self._iterator else None
            waits = iterator is not None and not iterator.closed and not self._history.yielded
            self._end_iterator()
            if iterator is not None and waits:
                iterator.reopen(self._executor(run))
            self._start_at(run)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Where the loader stands: a small dict that JSON can hold.

        It counts batches that were yielded, whatever has been prefetched, and is the same on every
        rank.

        Args:
            step: state after that many batches of the newest iterator, for wrappers that fetch
                ahead of the training loop; None for all that were yielded.

        Raises:
            PlanError: the newest iterator has not yielded `step` batches, or over a thousand more.
        """
        run = self._run if step is None else self._history.after(step)
        return dump_state(run, self._schedule.fingerprint, self._schedule.identity())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next `iter(loader)` go on where `state` was taken.

        Rank, world size, workers and a fixed batch size may differ from those it was taken with.

        Raises:
            StateMismatch: it belongs to another dataset, other plan options or a newer version.
        """
        options = self.plan_options
        group = saved_group(state)
        if group is not None and not self._group_given:
            options = replace(options, group=group)
        run = parse_state(
            state,
            self._schedule.fingerprint,
            self._schedule.identity(options),
            self.origin.source.count,
        )
        if options.group > 1 and options.group % self.options.share:
            logger.warning(
                "the run was planned for steps of %d units, and one takes %d here, which does not "
                "divide them: ranks have less equal work, order and resume are as they were; world "
                "sizes that avoid it are those for which world_size times batch_size divides %d",
                *(options.group, self.options.share, options.group),
            )
        self._schedule = replace(self._schedule, plan=options)
        self._end_iterator()
        self._start_at(run)
        self._resumes = True

    def start_metering(self, *, events: bool = False, ranges: bool = False) -> Meter:
        """Time the stages of every iteration that begins from now on; it costs some 0.2 %.

        Args:
            events: remember when each stage began and ended, for a timeline.
            ranges: show stages as `datapipe.<stage>` to `torch.profiler`, and to NVTX on a GPU.

        Returns:
            A new meter, which is `loader.meter` too; its `reading()` may be taken at any time.
        """
        options = ClockOptions(events=events, ranges=ranges)
        self.meter = Meter(self.options.num_workers, options)
        return self.meter

    def stats(self) -> dict[str, TierStats]:
        """Where samples came from so far: tiers of the cache, and "source"; empty without one."""
        return {} if self._maker.keeper is None else self._maker.keeper.stats()

    def __reduce__(self) -> Any:
        raise DatapipeError(
            "a loader holds threads and open files, so it cannot be copied or sent to another "
            "process; call make_loader there, and carry the state over with state_dict"
        )

    def __repr__(self) -> str:
        options, plan = self.options, self.plan_options
        return (
            f"<Loader of {self.dataset.folder}: {self.origin.source.count:,} samples, "
            f"{options.units_per_rank} {'unit' if plan.unit == 'sample' else plan.unit}(s) a step "
            f"on rank {options.rank} of {options.world_size}, epoch {self.epoch}>"
        )

    def close(self) -> None:
        """Stop the workers and close the files; iterating again opens them again."""
        self._end_iterator()
        if self._pool is not None:
            self._pool.close()

    def _end_iterator(self) -> None:
        iterator = self._iterator() if self._iterator else None
        if iterator is not None:
            iterator.close()

    def _follow(self, epoch: int) -> None:
        """A trainer begins its epoch of that number, which need not be the plan's."""
        last, self._trainer_epoch = self._trainer_epoch, epoch
        if self._resumes or not self.plan_options.shuffle:
            return
        if last is None:
            # Lightning loads no state from a checkpoint of an epoch's end.
            if self._run == Run.at(Position(0)):
                self.set_epoch(epoch)
        elif epoch > last and self._run.steps and not self._finished:
            # The trainer cut its epoch short: what is left of the plan's comes next.
            self._resumes = True

    def _check_exclusion(self) -> None:
        for plan in self._excluded_plans:
            plan.check(self._schedule.order())

    def _start_at(self, run: Run) -> None:
        """Count from here on."""
        self._run = run
        self._history.start_at(run)
        self._resumes = self._finished = False

    @property
    def _in_processes(self) -> bool:
        return self.options.workers == "processes" and self.options.num_workers > 0

    def _worker_pool(self) -> WorkerPool:
        return WorkerPool(
            self._maker,
            num_workers=self.options.num_workers,
            prefetch_factor=self.options.prefetch_factor,
            persistent_workers=self.options.persistent_workers,
            pin_memory=self._maker.images is not None and self._maker.images.pool.pin,
        )

    def _executor(self, run: Run) -> Steps:
        if self.meter is not None:
            self.meter.retire()
        if self._pool is not None:
            return ProcessExecutor(
                self._jobs(run, partial(RemoteJob, self._maker)),
                pool=self._pool if self.options.persistent_workers else self._worker_pool(),
                stall_warning=self.options.stall_warning,
                meter=self.meter,
            )
        return Executor(
            self._jobs(run, partial(BatchJob, self._maker)),
            num_workers=self.options.num_workers,
            ahead=self.options.prefetch_factor,
            stall_warning=self.options.stall_warning,
            on_end=self._store.close,
            meter=self.meter,
        )

    def _jobs(self, run: Run, make: Callable[..., J]) -> Iterator[J]:
        shares = self._shares(run)
        if self._pool is None:
            shares = read_ahead(shares, self._maker, self.options.read_ahead)
        if self.meter is not None:
            shares = self.meter.caller.through("plan", shares)
            make = self.meter.caller.timed("collate", make)
        for share, details in shares:
            yield make(share, **details)

    def _shares(self, run: Run) -> Iterator[Planned]:
        """What this rank takes in each step, and what else a job is made of."""
        options = self.options
        for step, after, over in self._schedule.steps(run):
            run = self._schedule.end(after) if over else after
            if over:
                self._final = run
            share = step.share(
                units_per_rank=options.units_per_rank,
                rank=options.rank,
                world_size=options.world_size,
            )
            epoch = step.start.epoch
            details: dict[str, Any] = {
                "epoch": epoch,
                "labels": step.labels,
                "run_after": run,
                "last": over,
            }
            if self._next_uses is not None:
                details["next_use"] = self._next_uses.of(share.units.samples, epoch)
            yield share, details
            if over:
                return
        self._final = self._schedule.end(run)

    def count(self, job: FinishedJob) -> None:
        """Count a batch that is given out.

        Raises:
            DatapipeError: more samples were skipped than `max_skipped`.
        """
        if not self._looked:
            self._looked = True
            job.warn_of_absent_fields()
        # Repeats in the last step are samples that other slots or ranks count.
        self._skips.note(job.errors[slot] for slot in sorted(job.errors) if job.share.valid[slot])
        self._run = job.run_after
        self._history.add(self._run)
        self._resumes = False
        # Who knows the length asks for no batch after the last.
        self._finished = self._run is self._final

    def finish(self) -> None:
        """The iterator has come to its end: the next one goes on from there."""
        self._run = self._final
        self._finished = True
