"""Segment that counts of the times at which batches arrive."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

_LEAST = 8  # batches that count, where they come in groups of four or more


@dataclass(kw_only=True)
class LoaderPass:
    """One iteration, from `iter()` on."""

    began: float  # seconds of the clock
    # asked, got: times at which each batch was asked for, and received
    asked: list[float] = field(default_factory=list)
    got: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)  # of each batch; 0 if unknown
    skip: int = 0  # batches of the warm-up
    ended: bool = False  # whether the iterable came to its end


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The part of some passes that counts."""

    # batches, samples: in it
    batches: int
    samples: int
    seconds: float  # that passed
    waits: tuple[float, ...]  # seconds that each batch was waited for
    busy: float  # seconds between getting a batch and asking for the next
    cycles: tuple[float, ...]  # seconds for a batch in each group of `cycle` batches


def count(passes: Sequence[LoaderPass], *, group: int, paced: bool, whole: bool) -> Segment:
    """Select the batches of some passes that count.

    Batches come in bursts: workers that began together deliver together, and one slow batch delays
    those behind it, which then come at once. A count from the middle of a burst would include
    batches that were made before. So a pass counts from the beginning of one of its longest waits,
    when no batch is ready, to that of another.

    Args:
        passes: in order.
        group: batches that may come together.
        paced: whether the consumer works on batches; then everything after the warm-up counts.
        whole: count passes that came to their end from `iter()` on, for iterables that are shorter
            than the warm-up. The first counts only if it is the only one: workers may have been
            started in it.
    """
    batches = samples = 0
    seconds = busy = 0.0
    waits: list[float] = []
    cycles: list[float] = []
    counted = list(passes)
    if whole:
        later = [part for part in passes[1:] if part.ended and part.got]
        counted = later or [part for part in passes[:1] if part.got]
    for part in counted:
        first, stop = _bounds(part, group=group, paced=paced, whole=whole)
        if stop <= first:
            continue
        start = part.began if first == 0 else part.got[first - 1]
        batches += stop - first
        samples += sum(part.samples[first:stop])
        seconds += part.got[stop - 1] - start
        for at in range(first, stop):
            waits.append(part.got[at] - part.asked[at])
            if at:
                busy += part.asked[at] - part.got[at - 1]
        edges = [start, *part.got[first + group - 1 : stop : group]]
        cycles += [(after - before) / group for before, after in pairwise(edges)]
    return Segment(
        batches=batches,
        samples=samples,
        seconds=seconds,
        waits=tuple(waits),
        busy=busy,
        cycles=tuple(cycles),
    )


def long_wait(part: LoaderPass, group: int) -> float:
    """Return the shortest of the longest waits of a pass, one for each group of batches.

    At least half the mean time from batch to batch: a shorter wait is that for a ready batch.
    """
    waits = [got - asked for got, asked in zip(part.got, part.asked, strict=False)][part.skip :]
    longest = max(2, len(waits) // group)
    if len(waits) < longest:
        return math.inf
    gap = (part.got[-1] - part.got[part.skip - 1]) / len(waits)
    return max(sorted(waits)[-longest], gap / 2)


def _bounds(part: LoaderPass, *, group: int, paced: bool, whole: bool) -> tuple[int, int]:
    """Return the first batch that counts, and the first one after those that count."""
    if whole:
        return 0, len(part.got)
    first, stop = part.skip, len(part.got)
    if paced:
        return first, stop
    least = long_wait(part, group)
    waited = [at for at in range(first, stop) if part.got[at] - part.asked[at] >= least]
    if not waited or waited[-1] - waited[0] < max(group, min(2 * group, _LEAST)):
        return first, first
    return waited[0], waited[-1]


def samples_of(batch: Any) -> int:
    """Count the samples of a batch; 0 if unknown, as for a pack, which is one row.

    A batch of datapipe has "valid" or "images_per_sample". Of others, the first dimension of the
    first tensor counts, as `torch.utils.data.default_collate` makes it.
    """
    if isinstance(batch, Mapping):
        if "valid" in batch:
            return int(batch["valid"].sum()) if hasattr(batch["valid"], "sum") else 0
        if "cu_seq_lens_q" in batch:
            return 0
        for name in ("images_per_sample", "input_ids"):
            if name in batch:
                return _rows(batch[name])
        return next((rows for value in batch.values() if (rows := _rows(value))), 0)
    if isinstance(batch, list | tuple):
        # A tuple of columns; a list of samples would be a batch without collation.
        return next((rows for value in batch if (rows := _rows(value))), 0)
    return _rows(batch)


def _rows(value: Any) -> int:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    return len(value) if isinstance(value, list | tuple) else 0
