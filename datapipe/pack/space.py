"""Check that the output will fit on the disk, before anything is written."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import (
    Blob,
    InlineBlob,
    RawInput,
    RawSample,
    Reject,
    inline_bytes,
    sample_of,
)
from datapipe.pack.workers.pool import PackWorkers
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.writers.ustar import BLOCK, MAX_SIZE, padding
from datapipe.progress import is_watched, readable_size
from datapipe.report.table import counted

_LOOKED_AT = 512  # inputs whose sizes are taken for those of all
_INLINE = 64 << 20  # bytes that these may hold themselves
_TRIED = 16  # inputs that are shrunk to see how much smaller they come out
_WORTH_SAYING = 10 << 30  # bytes from which on the estimate is printed without a terminal


def check_space(
    inputs: Iterator[RawInput], expected: int | None, out: Path, options: PrepareOptions
) -> Iterator[RawInput]:
    """Estimate the output's size from its first inputs and compare it with the free space.

    `inputs` are those still to be packed, about `expected` of them. Return them, complete.
    PackError if the disk is too small.
    """
    first: list[RawInput] = []
    held = 0
    total = expected
    while len(first) < _LOOKED_AT and held < _INLINE:
        sample = next(inputs, None)
        if sample is None:
            total = len(first)
            break
        first.append(sample)
        held += inline_bytes(sample)
    if first and total:
        size = round(_mean_bytes(first, options) * total)
        remedy = "make images smaller with --max-side, or take fewer with --limit"
        check_room(out, size, f"about {counted(total, 'sample')}", remedy)
    return itertools.chain(first, inputs)


def check_room(out: Path, size: int, content: str, remedy: str) -> None:
    """Compare the output's size with the free space, and print both; PackError if too small."""
    free = shutil.disk_usage(out).free
    if size > free:
        raise PackError(
            f"{out}: {content}, {readable_size(size)} are needed, {readable_size(free)} are free; "
            f"make room, give a folder on a larger disk, {remedy} (--no-space-check to try all the "
            "same)"
        )
    if size > _WORTH_SAYING or is_watched(sys.stderr):
        free_space = f"{readable_size(free)} free"
        print(f"{content}, {readable_size(size)}; {free_space}", file=sys.stderr, flush=True)


def _mean_bytes(first: Sequence[RawInput], options: PrepareOptions) -> float:
    found = [sample_of(given).sample for given in first]
    samples = [sample for sample in found if isinstance(sample, RawSample)]
    mean = sum(map(_bytes, samples)) / len(first)
    if options.shrink.active and samples:
        tried = samples[:: max(len(samples) // _TRIED, 1)]
        before = sum(map(_bytes, tried))
        with closing(PackWorkers(options, workers=1)) as pool:
            after = sum(
                outcome.bytes
                for _, part in pool.prepared(tried, 0)
                for outcome in part.outcomes
                if not isinstance(outcome, Reject)
            )
        mean *= after / max(before, 1)
    return mean


def _bytes(sample: RawSample) -> int:
    parts = (*sample.pictures, *sample.parts)
    sizes = [_size(part) for part in parts if part is not None]
    return sum(BLOCK + size + len(padding(size)) for size in sizes)


def _size(part: object) -> int:
    if isinstance(part, InlineBlob):
        return len(part.data)
    if not isinstance(part, Blob):
        return len(str(part))
    try:
        size = os.stat(part.path).st_size - part.offset if part.size is None else part.size
    except (OSError, ValueError):
        return 0  # will be rejected
    return size if 0 <= size <= MAX_SIZE else 0
