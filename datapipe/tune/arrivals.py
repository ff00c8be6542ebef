"""Part that counts of the times at which batches arrive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SETTLING = 0.3  # of the steps at the speed of training, until a fast loader is ahead again


@dataclass(kw_only=True)
class Arrivals:
    """Batches of a trial, over one pass of the loader or several."""

    # asked, got: times at which each batch was asked for, and received
    asked: list[float] = field(default_factory=list)
    got: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)  # of each batch; 0 if unknown
    ends: list[int] = field(default_factory=list)  # batches taken at the end of each pass
    skip: int | None = None  # batches of the warm-up; None until it is over


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The part of some arrivals that counts."""

    batches: int
    samples: int
    seconds: float  # that passed
    waits: tuple[float, ...]  # seconds that each batch was waited for
    busy: float  # seconds between getting a batch and asking for the next


def bounds(arrivals: Arrivals, *, group: int, paced: bool = False) -> tuple[int, int]:
    """Return the first batch that counts, and the first one after those that count.

    Workers that began together deliver together, so batches count in groups of one from each
    worker: a group takes the same time wherever in a burst it begins. Where passes end, whole
    passes count, with the time that starting another one takes, as it does in training. At the pace
    of training all count but the first 30 %, in which a loader that is fast enough gets ahead.
    """
    stop = len(arrivals.got)
    first = stop if arrivals.skip is None else arrivals.skip
    ends = [end for end in arrivals.ends if end >= first]
    if len(ends) > 1:
        return ends[0], ends[-1]
    if paced:
        return first + int(_SETTLING * (stop - first)), stop
    return first, stop - (stop - first) % group


def count(arrivals: Arrivals, first: int, stop: int) -> Segment:
    """Sum up the batches from `first` to `stop`, timed from the one before."""
    taken = range(first, stop)
    return Segment(
        batches=len(taken),
        samples=sum(arrivals.samples[first:stop]),
        seconds=arrivals.got[stop - 1] - arrivals.got[first - 1] if taken else 0.0,
        waits=tuple(arrivals.got[at] - arrivals.asked[at] for at in taken),
        busy=sum(arrivals.asked[at] - arrivals.got[at - 1] for at in taken),
    )


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
        batch = [*batch.values()]
    if isinstance(batch, list | tuple):
        # A tuple of columns; a list of samples would be a batch without collation.
        return next((rows for value in batch if (rows := _rows(value))), 0)
    return _rows(batch)


def _rows(value: Any) -> int:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    return len(value) if isinstance(value, list | tuple) else 0
