"""Reads of the samples of future steps, begun in order of need, a number of bytes ahead."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from datapipe.array_types import Int64
from datapipe.index.members import wanted_members
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.plan.ragged import places, spans
from datapipe.store.arrays import Advised, ArrayDataset, ArrayDatasets, are_resident
from datapipe.store.protocol import Fetch

_LOOKED_AT = 2  # samples of a step that are checked for images in memory
_STEPS = 256  # begun at most: a step of small samples costs more than its bytes


def begin_step(context: BatchContext, step: StepJob) -> StepJob:
    """Begin to read the samples of a step, unless its store gains nothing from it.

    Samples in a cache are left out, and so are the images of `resident` samples.
    """
    return replace(step, fetch=_begin(context, step))


def _begin(context: BatchContext, step: StepJob) -> Fetch | None:
    columns, samples = context.dataset.columns, step.samples
    skipped, resident = step.share.excluded, step.resident
    advised, mapped = 0, context.arrays if context.images is not None else None
    wanted = ~skipped if resident is None else ~skipped & ~resident
    if mapped is not None and not _are_resident(mapped, samples[wanted]):
        for arrays, there in mapped.split(samples, wanted):
            advised += _advise(arrays, samples[there] - arrays.first)
    if context.store.begin([]) is None:
        return Advised(advised) if advised else None
    if mapped is not None:
        skipped = skipped | (wanted & mapped.hold(samples))
    sizes = step.share.units.sizes
    _, total = spans(columns.sample_image, samples)
    images = total if sizes is None else sizes.images
    if context.cache is not None:
        # Of truncated samples a part is read, and entries are whole.
        whole = images == total if context.images is not None else True
        held = context.cache.holds(samples) & whole
        if resident is not None:
            assert context.cache.texts is not None
            held = np.where(resident, context.cache.texts.holds(samples), held)
            images = np.where(resident, 0, images)
        skipped = skipped | held
    found, edges = places(columns.sample_member, samples)
    members = columns.members_at(found)
    reads = []
    for slot, (first, last) in enumerate(itertools.pairwise(edges.tolist())):
        count = 0 if context.images is None else int(images[slot])
        reads.append([] if skipped[slot] else wanted_members(members[first:last], count))
    fetch = context.store.begin(list(zip(columns.shards(samples).tolist(), reads, strict=True)))
    if not advised:
        return fetch
    return Advised(advised + (0 if fetch is None else fetch.bytes), fetch)


def _are_resident(mapped: ArrayDatasets, samples: Int64) -> bool:
    """Return whether the images of a few samples of arrays are in memory, as others are then."""
    few = samples[:: max(1, len(samples) // _LOOKED_AT)].tolist()
    found = [address for sample in few if (address := mapped.middle(sample)) is not None]
    return bool(found) and are_resident(found)


def _advise(arrays: ArrayDataset, samples: Int64) -> int:
    """Have the kernel read the images of samples; return their bytes."""
    if arrays.images is None:
        return 0
    return arrays.images.begin(places(arrays.columns.sample_image, samples)[0]).bytes


def read_ahead(steps: Iterator[StepJob], context: BatchContext, most: int) -> Iterator[StepJob]:
    """Yield the same steps, each with its `fetch`, begun up to `most` bytes ahead."""
    waiting: deque[StepJob] = deque()
    ahead = 0
    while True:
        while not waiting or (ahead < most and len(waiting) < _STEPS):
            following = next(steps, None)
            if following is None:
                break
            waiting.append(begin_step(context, following))
            fetch = waiting[-1].fetch
            if fetch is None:
                break
            ahead += fetch.bytes
        if not waiting:
            return
        step = waiting.popleft()
        if step.fetch is not None:
            ahead -= step.fetch.bytes
        yield step
