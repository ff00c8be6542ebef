"""Reads of the samples of future steps, begun in order of need, a number of bytes ahead."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from datapipe.array_types import Bools, Int64
from datapipe.index.members import wanted_members
from datapipe.index.rows import Member
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.batch.sample_rows import SampleRows, read_rows
from datapipe.plan.ragged import edges, grouped, ranges
from datapipe.store.arrays import ImageArray
from datapipe.store.mixture import MixtureArrays
from datapipe.store.protocol import Fetch

_LOOKED_AT = 8  # samples of those whose rows are read at once that are checked for cached images
_ROWS = 4096  # samples whose rows are read at once
_STEPS = 256  # begun at most: a step of small samples costs more than its bytes


def begin_step(context: BatchContext, step: StepJob) -> StepJob:
    """Begin to read the samples of a step, unless its store gains nothing from it.

    Samples in a cache are left out, and so are the images of `resident` samples.
    """
    rows = read_rows(context.dataset, step.samples) if step.rows is None else step.rows
    return replace(step, rows=rows, fetch=_begin(context, step, rows))


def _begin(context: BatchContext, step: StepJob, rows: SampleRows) -> Fetch | None:
    samples, skipped, resident = step.samples, step.share.excluded, step.resident
    advised, arrays = 0, context.arrays
    if arrays is not None:
        wanted = ~skipped & arrays.hold(rows.parts)
        if resident is not None:
            wanted &= ~resident
        are_cached = step.are_cached
        if are_cached is None:
            are_cached = _are_cached(arrays, rows, wanted)
        if not are_cached:
            advised = _advise(arrays, rows, np.flatnonzero(wanted & (rows.counts > 0)))
        skipped = skipped | wanted
    if context.store.begin([]) is None:
        return Fetch(advised) if advised else None
    sizes = step.share.units.sizes
    images = rows.counts if sizes is None else sizes.images
    if context.cache is not None:
        # Of truncated samples a part is read, and entries are whole.
        whole = images == rows.counts if context.images is not None else True
        held = context.cache.holds(samples) & whole
        if resident is not None:
            assert context.cache.texts is not None
            held = np.where(resident, context.cache.texts.holds(samples), held)
            images = np.where(resident, 0, images)
        skipped = skipped | held
    reads: list[list[Member]] = []
    for slot in range(len(samples)):
        count = 0 if context.images is None else int(images[slot])
        reads.append([] if skipped[slot] else wanted_members(rows.of_sample(slot), count))
    fetch = context.store.begin(list(zip(rows.shards.tolist(), reads, strict=True)))
    if fetch is None or not advised:
        return fetch
    return Fetch(advised + fetch.bytes, fetch.contents)


def _are_cached(arrays: MixtureArrays, rows: SampleRows, wanted: Bools) -> bool:
    """Return whether the images of a few of the wanted samples are in the page cache.

    Others are then, too. To look opens a file, so it is done once for many steps if it can.
    """
    if not arrays.size:
        return True
    slots = np.flatnonzero(wanted & (rows.counts > 0))
    few = slots[:: -(-len(slots) // _LOOKED_AT) or 1]
    first = (rows.images - arrays.image_edges[rows.parts])[few].tolist()
    looked = zip(rows.parts[few].tolist(), first, strict=True)
    return all(_images(arrays, part).is_cached(image) for part, image in looked)


def _advise(arrays: MixtureArrays, rows: SampleRows, slots: Int64) -> int:
    """Have the kernel read the images of samples of arrays; return their bytes."""
    first = rows.images - arrays.image_edges[rows.parts]
    return sum(
        _images(arrays, part).begin(ranges(first[slots[at]], rows.counts[slots[at]]))
        for part, at in grouped(rows.parts[slots])
    )


def _images(arrays: MixtureArrays, part: int) -> ImageArray:
    images = arrays.part(part).images
    assert images is not None
    return images


def with_rows(steps: Iterator[StepJob], context: BatchContext) -> Iterator[StepJob]:
    """Yield the same steps, each with its `rows`, which are read for many steps at once.

    Of many datasets, each has few samples in a step. The first step does not wait for others, and
    no step waits for those of another block, which may not be planned yet.
    """
    waiting: list[StepJob] = []
    most = 1
    for step in steps:
        waiting.append(step)
        if len(waiting) >= most or _block(step) != _block(waiting[0]) or step.last:
            yield from _with_rows(waiting, context)
            most = min(2 * most, max(1, _ROWS // max(1, len(step.samples))))
            waiting = []
    yield from _with_rows(waiting, context)


def _with_rows(steps: list[StepJob], context: BatchContext) -> Iterator[StepJob]:
    samples = [step.samples for step in steps]
    rows = read_rows(context.dataset, np.concatenate(samples or [np.empty(0, np.int64)]))
    ends = edges(np.array([len(each) for each in samples], np.int64))
    arrays, are_cached = context.arrays, None
    if arrays is not None:
        are_cached = _are_cached(arrays, rows, arrays.hold(rows.parts))
    for step, (start, stop) in zip(steps, itertools.pairwise(ends.tolist()), strict=True):
        yield replace(step, rows=rows.cut(start, stop), are_cached=are_cached)


def _block(step: StepJob) -> tuple[int, int]:
    position = step.run_after.position
    return position.epoch, position.block


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
