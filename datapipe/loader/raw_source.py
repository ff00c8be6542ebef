"""Raw samples of a rank or worker in the order of a plan, with a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import astuple
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from datapipe.declared import Natural, checked
from datapipe.errors import PlanError, StateMismatch
from datapipe.loader.distributed import check_ranks_hold
from datapipe.loader.raw_samples import RawSamples
from datapipe.loader.schedule.rank_progress import count_left, position_after
from datapipe.loader.schedule.resume import resume
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.loader.schedule.state import Run
from datapipe.plan.steps import Position

T = TypeVar("T")


class WebDatasetSource(IterableDataset[dict[str, Any]]):
    """Raw samples in the order of a plan, with a state; made by `webdataset_source`.

    An iteration is an epoch, or the rest of one behind a state. In the workers of a `DataLoader`,
    each reads every n-th batch, so that batches come in the same order as without workers.

    Stages and workers take samples ahead of the training loop: `wds.batched` takes one. So the
    training loop iterates over `track(loader)`, which counts the batches that it has taken. Without
    it there is no state, and `set_epoch` begins the next epoch.

    Examples:
        >>> source = datapipe.webdataset_source("shards/", batch_size=1)
        >>> samples = source.track(source)  # no stages
        >>> first, second = next(samples), next(samples)
        >>> resumed = datapipe.webdataset_source("shards/", batch_size=1)
        >>> resumed.load_state_dict(source.state_dict())
        >>> next(iter(resumed))["__key__"] == next(samples)["__key__"]
        True
    """

    def __init__(
        self,
        schedule: Schedule,
        samples: RawSamples,
        *,
        ranks_found: bool,
        make_again: Callable[[], WebDatasetSource],
    ) -> None:
        self._schedule = schedule
        self._samples = samples
        self._ranks_found = ranks_found  # and not given
        self._make_again = make_again  # in another process
        self._loaded: dict[str, Any] | None = None
        # Shared with workers, also with persistent ones: where an iteration begins (a position),
        # the number of iterations that have begun, and whether none may begin any more.
        self._shared = _make_memory()
        self._counted = 0  # of these iterations, those that `track` has seen
        self._at = Position(0), 0  # where the newest began, and samples taken since
        self.share(self._shared)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Read an epoch, or the rest of one: all of this rank, or the share of a worker.

        Raises:
            SampleError: a sample is not the one that was indexed.
            PlanError: the ranks of the process group are others than when this was made.
        """
        options, info = self._schedule.options, get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self._ranks_found:
            check_ranks_hold(options.rank, options.world_size)
        if self._shared[5]:
            raise PlanError(
                "a state of another mixture was loaded after this DataLoader had started its "
                "workers; make a new DataLoader"
            )
        if worker == 0:  # `+= 0` by another worker could undo this one
            self._shared[4] += 1
        with closing(self._samples):
            for number, (step, _, _) in enumerate(self._schedule.steps(Run.at(self._begin()))):
                if number % workers == worker:
                    share = options.deal(step)
                    yield from self._samples.read(share.units.numbers[share.valid])

    @checked(PlanError)
    def track(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches of a loader over this source, and count them for `state_dict`.

        After the last one, the next iteration is the next epoch. An iteration that is left early
        starts over where it began. `loader.compose(source.track)` is the same as a stage.

        Args:
            batches: a `DataLoader`, `WebLoader` or pipeline, from its first batch on.

        Raises:
            PlanError: batches are more or fewer than those of `batch_size` samples, or come from
                another source.
        """
        begin, steps, size = self._begin(), 0, self._schedule.options.units_per_rank
        expected = -(-count_left(self._schedule, begin) // size)
        for batch in batches:
            if not steps and self._counted == self._shared[4]:
                raise PlanError(
                    "these batches were not made of samples of this source; track a loader whose "
                    "pipeline begins with the source itself, not with a copy"
                )
            steps, self._counted = steps + 1, int(self._shared[4])
            if steps > expected:
                break
            self._at = begin, steps * size
            yield batch
        if steps != expected:
            made = "more" if steps > expected else f"{steps:,}"
            raise PlanError(
                f"batch_size={size} makes {expected:,} batches of the rest of epoch {begin.epoch}, "
                f"and the loader made {made}; give the number of samples that a batch has, and "
                "have no stage leave samples out or repeat them"
            )
        self._begin_at(Position(begin.epoch + 1))

    @checked(PlanError)
    def set_epoch(self, epoch: Natural) -> None:
        """Make `epoch` the next to be read; the current one keeps the position of a state."""
        if epoch != self._begin().epoch:
            self._begin_at(Position(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return the position behind the last batch that `track` yielded: a small dict for JSON.

        It is the same on every rank that has taken as many.

        Raises:
            PlanError: samples were read, and `track` did not count them.
        """
        if get_worker_info() is not None or self._counted != self._shared[4]:
            raise PlanError(
                "samples were read, and stages or workers may hold some that the training loop has "
                "not taken yet; iterate over source.track(loader), and take the state there"
            )
        position = position_after(self._schedule, *self._at)
        steps = position.consumed // self._schedule.options.share
        return self._schedule.state(Run(position, Position(position.epoch), steps=steps))

    @checked(StateMismatch)
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration begin where `state` was taken, on any number of ranks.

        Raises:
            StateMismatch: the state belongs to another dataset, other options or a newer version.
        """
        run, schedule = resume(self._schedule, state)
        if schedule.origin is not self._schedule.origin:
            self._shared[5] = 1
            self.share(_make_memory())
        self._schedule, self._loaded = schedule, state
        self._begin_at(run.position)

    def share(self, memory: torch.Tensor) -> None:
        """Take the memory that is shared with the workers. Internal: another process calls it."""
        to_share: Any = memory
        self._shared = to_share.share_memory_()
        self._counted, self._at = int(memory[4]), (self._begin(), 0)

    def __reduce__(self) -> Any:
        return _rebuild, (self._make_again, self._loaded, self._shared)

    def _begin(self) -> Position:
        return Position(*self._shared[:4].tolist())

    def _begin_at(self, position: Position) -> None:
        self._shared[:4] = torch.tensor(astuple(position), device="cpu")
        self._counted = int(self._shared[4])
        self._at = position, 0


def _make_memory() -> torch.Tensor:
    with torch.inference_mode(False):  # it is changed outside of the caller's inference mode
        return torch.zeros(6, dtype=torch.int64, device="cpu")


def _rebuild(
    make: Callable[[], WebDatasetSource], state: dict[str, Any] | None, shared: torch.Tensor
) -> WebDatasetSource:
    source = make()
    if state is not None:
        source.load_state_dict(state)
    source.share(shared)
    return source
