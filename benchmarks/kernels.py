"""The kernels alone, on threads and without a pipeline: the limit that loaders can reach."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import simplejpeg
import torch

from benchmarks.common import Run
from datapipe import ImageSpec
from datapipe.decode.transform import ImageTransform


def decode(jpegs: Sequence[bytes], threads: int) -> Run:
    """Decode each JPEG fully with libjpeg-turbo, and drop it."""

    def work(images: Iterator[bytes]) -> None:
        for data in images:
            simplejpeg.decode_jpeg(data, "RGB")

    return on_threads(work, jpegs, threads)


def decode_and_place(
    jpegs: Sequence[bytes], threads: int, *, spec: ImageSpec, batch_size: int
) -> Run:
    """Decode each JPEG, resize and normalise it as datapipe does, into a batch that is reused."""
    transform = ImageTransform(spec)
    # As many batches as a loader with its usual prefetch cycles through.
    batches = torch.zeros(2 * threads, batch_size, *transform.shape, dtype=transform.dtype)

    places = batches.flatten(0, 1)
    numbers = iter(range(len(jpegs)))  # shared by the threads, as the images are

    def work(images: Iterator[bytes]) -> None:
        for data in images:
            place = places[next(numbers) % len(places)]
            transform.place(transform.decode(data), place)

    return on_threads(work, jpegs, threads)


def on_threads(
    work: Callable[[Iterator[bytes]], None], items: Sequence[bytes], threads: int
) -> Run:
    """Share `items` out among threads, each with one thread inside torch's kernels."""
    shared = iter(items)  # CPython's list iterator may be advanced from any thread
    barrier = threading.Barrier(threads + 1)
    errors: list[BaseException] = []

    def body() -> None:
        torch.set_num_threads(1)
        barrier.wait()
        try:
            work(shared)
        except BaseException as error:  # raised below
            errors.append(error)

    before = torch.get_num_threads()
    workers = [threading.Thread(target=body) for _ in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    torch.set_num_threads(before)  # the threads changed the default
    if errors:
        raise errors[0]
    return Run(samples=len(items), seconds=seconds)
