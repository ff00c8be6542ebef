"""`webdataset_source`: raw samples in the order of a plan, as a first stage of webdataset."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple
from functools import partial
from operator import attrgetter
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from datapipe.array_types import Int64
from datapipe.declared import Count, Natural, checked
from datapipe.errors import DecodeError, PlanError, SampleError, StateMismatch
from datapipe.index.dataset import Dataset
from datapipe.index.files.crc32 import NOT_AS_INDEXED
from datapipe.index.rows import Member
from datapipe.index.tar.grouping import BEFORE, name_in_tar
from datapipe.loader.batch.sample_rows import read_rows
from datapipe.loader.distributed import check_ranks_hold
from datapipe.loader.make_loader import make_loader
from datapipe.loader.schedule.resume import resume
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.loader.schedule.state import Run
from datapipe.loader.specs import RemoteSpec
from datapipe.mixture.spec import Mixture
from datapipe.plan.options import Shuffle
from datapipe.plan.steps import Position
from datapipe.remote.folder import RemoteFolder
from datapipe.report.table import counted
from datapipe.store.mixture import MixtureStore
from datapipe.store.open import open_store

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

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
        self.share(_make_memory())

    def share(self, memory: torch.Tensor) -> None:
        """Take the memory that is shared with workers, also with persistent ones. Internal.

        It holds the position where an iteration begins, the number of iterations that have begun,
        and whether none may begin any more.
        """
        to_share: Any = memory
        self._shared: torch.Tensor = to_share.share_memory_()
        self._counted = int(memory[4])  # of these iterations, those that `track` has seen
        self._at = self._begin(), 0  # where the newest began, and samples taken since

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
        expected = -(-self._schedule.count_left(begin) // size)
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
                f"batch_size={size} makes {counted(expected, 'batch', 'batches')} of the rest of "
                f"epoch {begin.epoch}, and the loader made {made}; give the number of samples that "
                "a batch has, and have no stage leave samples out or repeat them"
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
        position = self._schedule.position_after(*self._at)
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

    def __reduce__(self) -> Any:
        return self._make_again, (), (self._loaded, self._shared)

    def __setstate__(self, state: tuple[dict[str, Any] | None, torch.Tensor]) -> None:
        loaded, memory = state
        if loaded is not None:
            self.load_state_dict(loaded)
        self.share(memory)

    def _begin(self) -> Position:
        return Position(*self._shared[:4].tolist())

    def _begin_at(self, position: Position) -> None:
        self._shared[:4] = torch.tensor(astuple(position), device="cpu")
        self._counted = int(self._shared[4])
        self._at = position, 0


def _make_memory() -> torch.Tensor:
    with torch.inference_mode(False):  # it is changed outside of the caller's inference mode
        return torch.zeros(6, dtype=torch.int64, device="cpu")


class RawSamples:
    """Reader of whole samples, for one thread in any process; `PlanError` for samples in arrays."""

    def __init__(self, dataset: Dataset, *, verify: bool) -> None:
        for part in dataset.parts:
            if part.arrays is not None:
                raise PlanError(
                    f"{part.prefix}{part.dataset().folder} holds arrays, whose samples have no "
                    "members; give the shards that they were converted from"
                )
        self._dataset, self._verify = dataset, verify
        self._store: MixtureStore | None = None
        self._process = os.getpid()

    def read(self, samples: Int64) -> Iterator[dict[str, Any]]:
        """Yield samples by number, int64 [n]; `DecodeError` or `StoreError` if one is damaged."""
        store, rows = self._open(), read_rows(self._dataset, samples)
        shards, parts = rows.shards.tolist(), [self._dataset.parts[part] for part in rows.parts]
        in_tar = attrgetter("offset")  # the index has images by their numbers
        members = [sorted(rows.of_sample(n), key=in_tar) for n in range(len(samples))]
        wanted = [
            (shard, [*own, *(_headers(own) if part.dataset().manifest.foreign else ())])
            for shard, own, part in zip(shards, members, parts, strict=True)
        ]
        fetch = store.begin(wanted)
        for number, key in enumerate(rows.keys):
            contents = [] if fetch is None else fetch.contents(number)
            if len(contents) != len(wanted[number][1]):  # it is not in a remote dataset
                contents = store.read(*wanted[number])
            place = {"key": key, "shard": store.name(shards[number])}
            if self._verify:
                for member, data in zip(members[number], contents, strict=False):
                    if not store.verify(member, data):
                        name = f"{key}.{member.ext}"
                        raise DecodeError(NOT_AS_INDEXED, **place, member=name)
            url = _url(parts[number].dataset(), place["shard"])
            yield _sample(key, url, members[number], contents, place)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _open(self) -> MixtureStore:
        if os.getpid() != self._process:
            # The thread and the connections of remote folders stay behind in a fork.
            self._process, self._store = os.getpid(), None
            if any(part.is_remote for part in self._dataset.parts):
                self._dataset = pickle.loads(pickle.dumps(self._dataset))
        if self._store is None:
            self._store = open_store(self._dataset)
        return self._store


def _headers(members: list[Member]) -> list[Member]:
    """Return the bytes before each member of a foreign shard, where its name is."""
    sizes = [min(member.offset, BEFORE) for member in members]
    pairs = zip(members, sizes, strict=True)
    return [Member("", member.offset - size, size, 0) for member, size in pairs]


def _url(dataset: Dataset, shard: str) -> str:
    folder = dataset.folder
    return folder.url_of(shard) if isinstance(folder, RemoteFolder) else str(folder / shard)


def _sample(
    key: str, url: str, members: list[Member], contents: list[memoryview], place: dict[str, str]
) -> dict[str, Any]:
    """Return a sample; the bytes before its members follow those of the members, if they tell."""
    names = [(key, member.ext) for member in members]
    if headers := contents[len(members) :]:
        names = [name_in_tar(before, *name) for before, name in zip(headers, names, strict=True)]
    sample: dict[str, Any] = {"__key__": names[0][0] if names else key, "__url__": url}
    for (_, ext), data in zip(names, contents, strict=False):
        if ext in sample:
            raise SampleError(
                f"two of its members are called {ext!r}, since webdataset writes extensions in "
                "lower case; rename one of them",
                **place,
            )
        sample[ext] = bytes(data)
    return sample


@checked(PlanError)
def webdataset_source(
    path: str | PathLike[str] | Mixture | Mapping[Any, Any] | Sequence[str | PathLike[str]],
    *,
    batch_size: Count,
    where: str | None = None,
    shuffle: Shuffle = True,
    shards_mixed: int = 16,
    seed: int = 0,
    drop_last: bool = False,
    verify: bool = True,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: DeviceMesh | None = None,
    remote: RemoteSpec | None = None,
) -> WebDatasetSource:
    """Return the first stage of a `wds.DataPipeline`: raw samples in the order of the plan.

    A sample is a dict of `__key__`, `__url__` and the bytes of all of its members by extension, as
    `wds.tarfile_to_samples()` makes it. Order, ranks and state are those of
    `make_loader(path, batch_size=..., ...)`: a state of one resumes the other.

    Args:
        path: dataset in shards, or a mixture of several, as `make_loader` takes it.
        batch_size: samples that later stages put together, as in `wds.batched(batch_size)` or
            `DataLoader(..., batch_size=batch_size)`; 1 if they do not. The workers of a
            `DataLoader` deal batches of that size between them.
        where: condition for samples to take part, such as `"width >= 336"`.
        shuffle: a new global order every epoch; "shards" mixes a few shards at a time, for remote
            storage; False keeps the order of the dataset.
        shards_mixed: number of shards that are mixed at once with `shuffle="shards"`.
        seed: seed of the order.
        drop_last: leave out the samples of a last step that is not full on all ranks. Otherwise
            its samples are dealt, each once, so that some ranks may have a batch less.
        verify: compare every member with the checksum from packing or indexing.
        rank, world_size: share of each step; None takes them from `mesh`, `torch.distributed` or
            torchrun's environment. Ranks of a process group then check that they agree.
        mesh: a `DeviceMesh`; ranks along its data-parallel axes take different shares.
        remote: options of reading a dataset behind a URL.

    Raises:
        PlanError: options are impossible or contradict each other, or the dataset is arrays.
        IndexMismatch: there is no finished dataset at `path`, or its shards changed.

    Examples:
        >>> import webdataset as wds
        >>> source = datapipe.webdataset_source("shards/", batch_size=4, shuffle=False)
        >>> pipeline = wds.DataPipeline(
        ...     source, wds.decode("pil"), wds.to_tuple("__key__", "jpg", "txt"), wds.batched(4)
        ... )
        >>> loader = wds.WebLoader(pipeline, batch_size=None, num_workers=2)
        >>> for keys, images, texts in source.track(loader):
        ...     state = source.state_dict()  # into the checkpoint, beside the model
        ...     print(keys[0], images[0].size, texts[0], state["unit"])
        000000000 (40, 30) photograph 0 4
        000000004 (44, 34) photograph 4 0
    """
    given = dict(locals())
    loader = make_loader(**given, image=None, num_workers=0)
    # Another process may have other ranks in its environment, and no process group.
    given |= {"rank": loader.options.rank, "world_size": loader.options.world_size, "mesh": None}
    return WebDatasetSource(
        loader.components().schedule,
        RawSamples(loader.dataset, verify=verify),
        ranks_found=rank is None and mesh is None,
        make_again=partial(webdataset_source, **given),
    )
