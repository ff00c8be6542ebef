"""Share of its time that a user's transform holds the interpreter's lock."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

from datapipe.decode.image import Decoded
from datapipe.errors import SampleError
from datapipe.loader.batch.context import BatchContext
from datapipe.profile.measure.parts import ReadSample, transform_sample
from datapipe.profile.measure.roofline import run_threads
from datapipe.profile.measure.stage_benchmark import Alone
from datapipe.profile.measure.usage import LockProbe

# Result of `LockProbe` where Python code always runs: after 2 ms of sleep the holder keeps the lock
# for 5 ms once it is asked for it.
_ALWAYS = 0.7
_TRIES = 4  # of the lock
_DECODED = 16  # samples that a transform is tried on


def share_of_lock(context: BatchContext, alone: Alone, *, seconds: float) -> float:
    """Measure the share of its time that the user's transform holds the interpreter's lock.

    A thread runs the transform, and another one waits for the lock.
    """
    images = context.images
    if context.transform is None or images is None:
        return 0.0
    decoded: list[tuple[ReadSample, list[Decoded]]] = []
    for sample in alone.kept[:_DECODED]:
        transform = images.transform_of(sample.number)
        with suppress(SampleError):
            decoded.append((sample, [transform.decode(data) for data in sample.images]))
    if not decoded:
        return 0.0

    def work(number: int) -> Iterator[int]:
        for sample, found in itertools.cycle(decoded[number:] + decoded[:number]):
            with suppress(SampleError):  # counted by the stages alone
                transform_sample(context, sample, found, epoch=0)
            yield 1

    # The longest of several waits: on a busy machine the other thread waits for a processor too,
    # and asks for the lock less often.
    longest = 0.0
    for _ in range(_TRIES):
        lock = LockProbe()
        lock.start()
        try:
            run_threads(work, 1, seconds / _TRIES)
        finally:
            longest = max(longest, lock.stop())
    return min(1.0, longest / _ALWAYS)
