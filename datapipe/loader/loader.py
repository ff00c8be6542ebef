"""`make_loader`: feeds a training loop from a packed dataset."""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

import torch

from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import ImageTransform
from datapipe.errors import DatapipeError, PlanError, SampleError
from datapipe.index.dataset import Dataset, open_dataset
from datapipe.loader.batch import Batch, BatchJob, BatchMaker, OnError
from datapipe.loader.buffers import BufferPool
from datapipe.loader.executor import Executor
from datapipe.loader.options import LoaderOptions, as_int
from datapipe.loader.ranks import check_agreement, default_workers, resolve_ranks
from datapipe.loader.state import Position, dump_state, parse_state
from datapipe.plan.plan import EpochPlan, PlanOptions
from datapipe.store.shards import ShardStore

logger = logging.getLogger(__name__)

_LOGGED_SKIPS = 10


def make_loader(
    path: str | PathLike[str],
    *,
    batch_size: int,
    image: ImageSpec | None = ImageSpec(),  # noqa: B008  (frozen)
    meta: str | Sequence[str] = (),
    shuffle: bool = True,
    seed: int = 0,
    verify: bool = True,
    num_workers: int | None = None,
    prefetch_factor: int = 2,
    drop_last: bool = False,
    on_error: OnError = "raise",
    max_skipped: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    stall_warning: float = 30.0,
) -> Loader:
    """Open a packed dataset, or a folder of WebDataset tars, as an iterable of batches.

    Args:
        path: folder that `datapipe pack` wrote, or that holds `.tar` shards of someone else; those
            are indexed once, on first use.
        batch_size: samples a rank takes in a step.
        image: what becomes of images; None leaves them out.
        meta: what else each batch carries as lists: "source", where a sample came from, and fields
            of the samples' JSON members.
        shuffle: a new global order every epoch; False keeps the order of the dataset.
        seed: of the order. Epoch, seed and dataset fix it; workers and ranks do not enter.
        verify: compare every member with the checksum that was taken when it was packed, so that
            damage which still decodes is noticed too. Costs about 20 µs for 80 KB. Shards that
            someone else wrote have no checksums.
        num_workers: threads that read and decode. 0 works in the caller's thread, without
            prefetch. None takes this rank's share of the machine's CPUs.
        prefetch_factor: steps that are prepared ahead.
        drop_last: leave out the last step if its units do not suffice for all ranks. Otherwise it
            repeats some of them, marked `valid=False`.
        on_error: "raise", or "skip" to leave a sample that cannot be decoded as an empty slot
            (zeros, no text, `valid=False`); order and shapes do not change.
        max_skipped: raise once more samples than this were skipped.
        rank, world_size: which share of each step to take; from `torch.distributed` or torchrun's
            environment where None. Ranks of a process group then make sure that they agree on
            dataset and plan, so all of them must make the loader.
        stall_warning: seconds after which the log names what a late batch is waiting for.

    Returns:
        A `Loader`. Each batch is a dict of `pixel_values` (`image.out_dtype`, [images, 3, height,
        width]; the images of all samples one behind the other), `images_per_sample` (int64 [B]),
        `text` (list of str), `key` (list of str), `valid` (bool [B]), and one list for each name
        in `meta`.

    Raises:
        PlanError: options are impossible or contradict each other.
        IndexMismatch: there is no finished dataset at `path`, or its shards changed.
    """
    plan = PlanOptions(shuffle=bool(shuffle), seed=as_int("seed", seed), drop_last=bool(drop_last))
    common = rank is None
    rank, world_size = resolve_ranks(rank, world_size)
    options = LoaderOptions(
        batch_size=batch_size,
        meta=(meta,) if isinstance(meta, str) else tuple(meta),
        verify=verify,
        num_workers=default_workers() if num_workers is None else num_workers,
        prefetch_factor=prefetch_factor,
        on_error=on_error,
        max_skipped=max_skipped,
        rank=rank,
        world_size=world_size,
        stall_warning=stall_warning,
    )
    if image is not None and not isinstance(image, ImageSpec):
        raise PlanError(f"image {image!r} is no ImageSpec; give datapipe.ImageSpec(...) or None")
    dataset = open_dataset(path)
    if len(dataset) == 0:
        raise PlanError(f"{path} holds no samples")
    if drop_last and len(dataset) < options.share:
        raise PlanError(
            f"drop_last leaves no step: {len(dataset)} samples are fewer than batch_size "
            f"{batch_size} times world_size {world_size}"
        )
    if common:
        together = f"{dataset.manifest.fingerprint} {plan} {batch_size}"
        check_agreement(hashlib.sha256(together.encode()).hexdigest())
    return Loader(dataset, plan=plan, image=image, options=options)


class Loader:
    """Iterates over the batches of an epoch; made by `make_loader`.

    Attributes:
        dataset: what is being read.
        options: how, with defaults filled in: `num_workers`, `rank`, `world_size`, ...
        skipped: samples that failed and were yielded as empty slots, over all epochs.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        plan: PlanOptions,
        image: ImageSpec | None,
        options: LoaderOptions,
    ) -> None:
        self.dataset = dataset
        self.options = options
        self.skipped = 0
        self._plan_options = plan
        self._store = ShardStore(dataset.folder, [shard.name for shard in dataset.manifest.shards])
        self._maker = BatchMaker(
            dataset=dataset,
            store=self._store,
            transform=ImageTransform(image) if image else None,
            meta=options.meta,
            verify=options.verify,
            on_error=options.on_error,
            # Those being prepared, the one in use and the one before it.
            pool=BufferPool(keep=options.prefetch_factor + 2),
        )
        self._fingerprint = dataset.manifest.fingerprint
        self._position = Position(0, 0)
        self._origin = Position(0, 0)  # where the newest iterator began
        self._yielded = 0  # by the newest iterator
        self._resume = False
        self._iterator: weakref.ref[LoaderIterator] | None = None

    def __len__(self) -> int:
        """Steps in a whole epoch; the same for every rank."""
        return self._steps_left(Position(0, 0))

    def __iter__(self) -> LoaderIterator:
        """Start the epoch over, or go on where a state that was just loaded says.

        An earlier iterator of this loader is closed.
        """
        self.close()
        origin = self._position if self._resume else Position(self._position.epoch, 0)
        iterator = LoaderIterator(self, self._executor(origin))
        self._iterator = weakref.ref(iterator)
        self._start_at(origin)
        return iterator

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one to iterate over.

        The current one keeps its position; another one starts at its beginning, and an iterator
        that is still running is closed.

        Raises:
            PlanError: `epoch` is negative or no integer.
        """
        epoch = as_int("epoch", epoch)
        if epoch < 0:
            raise PlanError(f"epoch {epoch} is negative")
        if epoch != self._position.epoch:
            self.close()
            self._start_at(Position(epoch, 0))

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Where the loader stands: a small dict that JSON can hold.

        It counts batches that were yielded, whatever has been prefetched, and is the same on every
        rank.

        Args:
            step: state after that many batches of the newest iterator, for wrappers that fetch
                ahead of the training loop; None for all that were yielded.

        Raises:
            PlanError: the newest iterator has not yielded `step` batches.
        """
        position = self._position
        if step is not None:
            if not 0 <= step <= self._yielded:
                raise PlanError(f"step {step}: the iterator has yielded {self._yielded} batches")
            position = self._after(step)
        return dump_state(position, self._fingerprint, self._plan_options.to_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next `iter(loader)` go on where `state` was taken.

        Rank, world size, workers and batch size may differ from those it was taken with.

        Raises:
            StateMismatch: it belongs to another dataset, other plan options or a newer version.
        """
        position = parse_state(
            state, self._fingerprint, self._plan_options.to_dict(), len(self.dataset)
        )
        self.close()
        self._start_at(position)
        self._resume = True

    def __reduce__(self) -> Any:
        raise DatapipeError(
            "a loader holds threads and open files, so it cannot be copied or sent to another "
            "process; call make_loader there, and carry the state over with state_dict"
        )

    def close(self) -> None:
        """Stop the workers and close the files; iterating again opens them again."""
        iterator = self._iterator() if self._iterator else None
        if iterator is not None:
            iterator.close()

    def _start_at(self, position: Position) -> None:
        """Count from here on."""
        self._position = self._origin = position
        self._yielded = 0
        self._resume = False

    def _plan(self, epoch: int) -> EpochPlan:
        return EpochPlan(len(self.dataset), self._plan_options, epoch)

    def _steps_left(self, position: Position) -> int:
        return self._plan(position.epoch).steps_left(position.unit, share=self.options.share)

    def _after(self, step: int) -> Position:
        """Position once the newest iterator has yielded `step` batches."""
        if step >= self._steps_left(self._origin):
            return Position(self._origin.epoch + 1, 0)
        return Position(self._origin.epoch, self._origin.unit + step * self.options.share)

    def _executor(self, origin: Position) -> Executor[BatchJob]:
        plan, steps = self._plan(origin.epoch), self._steps_left(origin)
        return Executor(
            _jobs(self._maker, plan, origin.unit, steps, self.options),
            num_workers=self.options.num_workers,
            ahead=self.options.prefetch_factor,
            stall_warning=self.options.stall_warning,
            on_end=self._store.close,
        )

    def _take(self, job: BatchJob) -> Batch:
        """Hand a finished job out, counting it."""
        batch = job.result()
        # Repeats in the last step are samples that other slots or ranks count.
        errors = [job.errors[slot] for slot in sorted(job.errors) if job.step.valid[slot]]
        self._note_skipped(errors)
        self._yielded += 1
        self._position = self._after(self._yielded)
        return batch

    def _finish_epoch(self) -> None:
        """Go on to the next epoch, also where nothing was left to yield of this one."""
        self._position = Position(self._origin.epoch + 1, 0)

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


def _jobs(
    maker: BatchMaker, plan: EpochPlan, position: int, steps: int, options: LoaderOptions
) -> Iterator[BatchJob]:
    for _ in range(steps):
        step = plan.step(
            position,
            batch_size=options.batch_size,
            rank=options.rank,
            world_size=options.world_size,
        )
        position = step.stop
        yield BatchJob(maker, step)


class LoaderIterator(Iterator[Batch]):
    """One pass over an epoch, or over what is left of it."""

    def __init__(self, loader: Loader, executor: Executor[BatchJob]) -> None:
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
            return self._loader._take(self._executor.next())
        except StopIteration:
            self._exhausted = True
            self._loader._finish_epoch()
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the workers; the loader's state stays where it is."""
        self._closed = True
        self._executor.close()
