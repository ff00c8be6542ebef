"""`webdataset_source`: raw samples in the order of a plan, as a first stage of webdataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from datapipe.declared import Count, checked
from datapipe.errors import PlanError
from datapipe.loader.make_loader import make_loader
from datapipe.loader.raw_samples import RawSamples
from datapipe.loader.raw_source import WebDatasetSource
from datapipe.loader.specs import RemoteSpec
from datapipe.mixture.spec import Mixture
from datapipe.plan.options import Shuffle

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


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
