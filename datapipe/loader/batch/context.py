"""Inputs of a batch: the context of its loader, and the step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.cache.sample_cache import SampleCache
from datapipe.index.dataset import Dataset
from datapipe.loader.batch.image_batch import ImageContext
from datapipe.loader.batch.sample_rows import SampleRows
from datapipe.loader.batch.token_batch import TokenContext
from datapipe.loader.batch.user_transform import UserTransform
from datapipe.loader.schedule.options import LoaderOptions
from datapipe.loader.schedule.state import Run
from datapipe.plan.steps import Share
from datapipe.plan.units import RandomKeys
from datapipe.store.mixture import MixtureArrays
from datapipe.store.protocol import Fetch, Store


@dataclass(frozen=True, kw_only=True)
class BatchContext:
    """Context that all batches of a loader share; worker processes get a copy of it."""

    dataset: Dataset
    store: Store
    arrays: MixtureArrays | None  # None if all are shards
    images: ImageContext | None
    transform: UserTransform | None  # the user's own
    tokens: TokenContext | None
    options: LoaderOptions
    seed: int
    cache: SampleCache | None

    @property
    def pinned(self) -> bool:
        """True if batches are in page-locked memory."""
        return self.images is not None and self.images.pool.pin

    def shard_name(self, sample: int) -> str:
        """Return the name of the shard of a sample, in a mixture with that of its dataset."""
        name = self.store.name(self.dataset.columns.shard(sample))
        part = self.dataset.parts[int(self.dataset.kinds(np.array([sample]))[0])]
        return f"{part.name}/{name}" if part.is_named else name

    def describe(self, sample: int) -> str:
        """Return the names of a sample and its shard, for the log."""
        return f"sample {self.dataset.columns.key(sample)} of {self.shard_name(sample)}"

    def describe_step(self, step: StepJob) -> str:
        """Return the name of the batch of a step, by its first sample."""
        return " from ".join(["the batch", *map(self.describe, step.samples[:1].tolist())])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepJob:
    """One step of a rank, with all that its batch depends on in addition to the context."""

    share: Share
    epoch: int
    run_after: Run  # position of the run once the batch was yielded
    keys: RandomKeys  # what random numbers depend on
    labels: int | None = None  # tokens that all ranks predict; None without a tokenizer
    first: bool = False  # whether the loader has made no step before
    last: bool = False  # no step follows
    next_use: Int64 | None = None  # int64 [n], of each sample, for a cache that evicts by it
    resident: Bools | None = None  # bool [n], samples whose images are on the device
    rows: SampleRows | None = None  # if they were read ahead; not sent to processes
    are_cached: bool | None = None  # images of arrays, so it seems; None if nothing looked
    fetch: Fetch | None = None  # reads that have begun; not sent to processes

    @property
    def samples(self) -> Int64:
        """Numbers of its samples: int64 [n]."""
        return self.share.units.numbers
