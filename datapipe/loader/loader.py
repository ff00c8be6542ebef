"""`Loader`: iterates over the batches that a plan says, and knows where it stands."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from datapipe.errors import DatapipeError, PlanError, SampleError
from datapipe.index.dataset import Dataset
from datapipe.loader.batch import BatchJob, BatchMaker
from datapipe.loader.device import DeviceFeeder
from datapipe.loader.exclude import SeenIn
from datapipe.loader.executor import Executor
from datapipe.loader.images import ImageMaker
from datapipe.loader.iterator import FinishedJob, LoaderIterator, Steps
from datapipe.loader.options import LoaderOptions, as_int
from datapipe.loader.process_pool import WorkerPool
from datapipe.loader.processes import ProcessExecutor, RemoteJob
from datapipe.loader.ranks import check_ranks_hold
from datapipe.loader.sampler import EpochSampler
from datapipe.loader.schedule import Schedule
from datapipe.loader.source import Origin
from datapipe.loader.state import Run, dump_state, parse_state, saved_group
from datapipe.loader.tokens import TokenMaker
from datapipe.loader.usertransform import UserTransform
from datapipe.loader.view import PlanView
from datapipe.plan.options import PlanOptions
from datapipe.plan.steps import NOTHING, Exclusion, Position
from datapipe.store.shards import ShardStore

logger = logging.getLogger(__name__)

J = TypeVar("J")

_LOGGED_SKIPS = 10
_REMEMBERED = 1024  # steps back that `state_dict(step=)` reaches


class Loader:
    """Iterates over the batches of an epoch or of a longer run; made by `make_loader`.

    Attributes:
        dataset: what is being read.
        options: how, with defaults filled in: `num_workers`, `rank`, `world_size`, ...
        skipped: samples that failed and were yielded as empty slots, over all epochs.
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
        options: LoaderOptions,
        exclusion: Exclusion = NOTHING,
        excluded_plans: Sequence[SeenIn] = (),
        group_given: bool = True,
        ranks_found: bool = False,
        plan_cache: str | PathLike[str] | None = None,
    ) -> None:
        self.dataset = dataset
        self.options = options
        self.skipped = 0
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
        self._store = ShardStore(dataset.folder, [shard.name for shard in dataset.manifest.shards])
        self._maker = BatchMaker(
            dataset=dataset,
            store=self._store,
            images=images,
            transform=transform,
            tokens=tokens,
            meta=options.meta,
            seed=plan.seed,
            verify=options.verify,
            on_error=options.on_error,
        )
        self._pool = self._worker_pool() if self._in_processes else None
        self._run = Run.at(Position(0))
        self._final = self._run  # once the newest iterator has come to its end
        self._recent: deque[Run] = deque([self._run], maxlen=_REMEMBERED)
        self._yielded = 0  # by the newest iterator
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
        iterator = LoaderIterator(self, self._executor(run), self._feeder)
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
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._run.position.epoch

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
            waits = iterator is not None and not iterator.closed and not self._yielded
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
        run = self._run
        if step is not None:
            step = as_int("step", step)
            if not 0 <= step <= self._yielded:
                raise PlanError(f"step {step}: the iterator has yielded {self._yielded} batches")
            back = self._yielded - step
            if back >= len(self._recent):
                raise PlanError(
                    f"step {step} lies {back} batches back, and {len(self._recent)} are remembered"
                )
            run = self._recent[-1 - back]
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
        self._recent.clear()
        self._recent.append(run)
        self._yielded = 0
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
        if self._pool is not None:
            return ProcessExecutor(
                self._jobs(run, partial(RemoteJob, self._maker)),
                pool=self._pool if self.options.persistent_workers else self._worker_pool(),
                stall_warning=self.options.stall_warning,
            )
        return Executor(
            self._jobs(run, partial(BatchJob, self._maker)),
            num_workers=self.options.num_workers,
            ahead=self.options.prefetch_factor,
            stall_warning=self.options.stall_warning,
            on_end=self._store.close,
        )

    def _jobs(self, run: Run, make: Callable[..., J]) -> Iterator[J]:
        options = self.options
        for step, after, over in self._schedule.steps(run):
            run = after
            if over:
                run = self._final = self._schedule.end(run)
            yield make(
                step.share(
                    units_per_rank=options.units_per_rank,
                    rank=options.rank,
                    world_size=options.world_size,
                ),
                epoch=step.start.epoch,
                labels=step.labels,
                run_after=run,
            )
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
        errors = [job.errors[slot] for slot in sorted(job.errors) if job.share.valid[slot]]
        self._note_skipped(errors)
        self._yielded += 1
        self._run = job.run_after
        self._recent.append(self._run)
        self._resumes = False
        # Who knows the length asks for no batch after the last.
        self._finished = self._run is self._final

    def finish(self) -> None:
        """The iterator has come to its end: the next one goes on from there."""
        self._run = self._final
        self._finished = True

    def _note_skipped(self, errors: list[SampleError]) -> None:
        for error in errors:
            self.skipped += 1
            if self.skipped <= _LOGGED_SKIPS:
                logger.warning("skipped %s", error)
            if self.skipped == _LOGGED_SKIPS:
                logger.warning("further skipped samples are only counted, in loader.skipped")
            limit = self.options.max_skipped
            if limit is not None and self.skipped > limit:
                raise DatapipeError(
                    f"{self.skipped} samples were skipped, more than max_skipped={limit}; the "
                    f"last: {error}"
                ) from error
