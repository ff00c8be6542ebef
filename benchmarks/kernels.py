"""The kernels alone, on threads and without a pipeline: the limit that loaders can reach."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import simplejpeg
import torch

from benchmarks.common import Run
from datapipe import ImageSpec
from datapipe.decode.normalize import array_of
from datapipe.decode.transform import make_transform
from datapipe.geometry.sizes import one
from datapipe.index.images.header import probe

T = TypeVar("T")

_EPOCHS = 24  # of a gather, which is fast


def decode(jpegs: Sequence[bytes], threads: int) -> Run:
    """Decode each JPEG fully with libjpeg-turbo, and drop it."""

    def work(images: Iterator[bytes]) -> None:
        for data in images:
            simplejpeg.decode_jpeg(data, "RGB")

    return on_threads(work, jpegs, threads)


def decode_and_place(
    jpegs: Sequence[bytes], threads: int, *, spec: ImageSpec, batch_size: int
) -> Callable[[], Run]:
    """Decode each JPEG, resize and normalise it as datapipe does, into memory that is reused."""
    transform = make_transform(spec)
    infos = [probe(data) for data in jpegs]
    sizes = [one(info.width, info.height) for info in infos]
    shapes = [(int(transform.rows(*size)[0]), *transform.row_shape(*size)) for size in sizes]
    longest = max(map(math.prod, shapes))
    # As many batches as a loader with its usual prefetch cycles through.
    places = torch.zeros(2 * threads * batch_size, longest, dtype=transform.dtype)

    def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            shape = shapes[number]
            place = places[number % len(places), : math.prod(shape)].view(shape)
            transform.place(transform.decode(jpegs[number]), array_of(place))

    return lambda: on_threads(work, range(len(jpegs)), threads)


def gather(count: int, threads: int, *, side: int, batch_size: int) -> Callable[[], Run]:
    """Copy uint8 images in a random order into batches, in memory that is reused."""
    images = torch.zeros(count, 3, side, side, dtype=torch.uint8).random_(256)
    places = torch.zeros(2 * threads, batch_size, 3, side, side, dtype=torch.uint8)
    order = torch.randperm(_EPOCHS * count) % count
    batches = order[: len(order) // batch_size * batch_size].view(-1, batch_size)

    def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            torch.index_select(images, 0, batches[number], out=places[number % len(places)])

    def run() -> Run:
        done = on_threads(work, range(len(batches)), threads)
        return replace(done, samples=len(batches) * batch_size)

    return run


def on_threads(work: Callable[[Iterator[T]], None], items: Sequence[T], threads: int) -> Run:
    """Share `items` out among threads, each with one thread inside torch's kernels."""
    shared = iter(items)  # CPython's iterators of lists and ranges may be advanced by any thread
    ready = threading.Barrier(threads)
    before = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(lambda _: ready.wait(), range(threads)))  # so that all of them are started
        started = time.perf_counter()
        for done in [pool.submit(work, shared) for _ in range(threads)]:
            done.result()
        seconds = time.perf_counter() - started
    torch.set_num_threads(before)  # the threads changed the default
    return Run(samples=len(items), seconds=seconds)
