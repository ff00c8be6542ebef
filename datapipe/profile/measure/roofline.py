"""Ceilings of this machine for a loader's work, without a loader around it.

Each ceiling is one resource at full use: storage at random reads of the dataset's own members, all
cores in the kernels that make images, or in the tokenizer, and memory in plain copies. After the
roofline of Williams, Waterman and Patterson ("Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009), with samples in place of operations.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace

import numpy as np

from datapipe.cpus import available_cpus
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.metrics.stage_clock import Watch
from datapipe.profile.measure.alone import StageCosts
from datapipe.profile.measure.samples import MemoryStore, Stored, delivered, evict, was_cold
from datapipe.profile.measure.usage import queued_seconds
from datapipe.report.table import ratio
from datapipe.torch_threads import single_threads

COLD_STORAGE = "storage, cold"
"""Cold reads by so many threads that more would not be faster."""

_DEEP = 16  # threads
_COPIED = 32 << 20  # bytes of a copy: beyond any cache
_ALL_COPIES = 1 << 30  # bytes that all threads may take for that
_BUFFERS = 2  # of batches, that a thread writes to in turn
_TICK = 0.1  # seconds
_ROUNDS = 2  # of each number of threads, in turn

Work = Callable[[int], Iterator[float]]
"""Called with the number of a thread; yields after each piece of work how many units it was."""


def run_threads(work: Work, threads: int, seconds: float) -> float:
    """Run work in threads for some time, each alone in torch; return units per second.

    An error of the work is raised once the other threads have ended. The time that a thread waited
    for a processor, which another process had, does not count, unless there are more threads than
    cores.
    """
    barrier, ended = threading.Barrier(threads), threading.Event()
    own_core = threads <= available_cpus()

    def body(number: int) -> float:
        try:
            pieces = work(number)
            next(pieces)  # sets up, and fills caches
            barrier.wait()
            done, queued = 0.0, queued_seconds()
            cpu, began = time.thread_time(), time.perf_counter()
            while (now := time.perf_counter()) - began < seconds and not ended.is_set():
                done += next(pieces)
            lost = queued_seconds() - queued if own_core else 0.0
            return ratio(done, max(now - began - lost, time.thread_time() - cpu))
        except BaseException:
            ended.set()
            barrier.abort()
            raise

    with single_threads(threads, "datapipe-ceiling") as pool:
        try:
            futures = [pool.submit(body, number) for number in range(threads)]
            while wait(futures, timeout=_TICK).not_done:
                pass  # an interrupt that came to another thread is seen here
        finally:  # after an interrupt too
            ended.set()
            barrier.abort()
    for future in futures:
        error = future.exception()
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return sum(future.result() for future in futures)


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """Rate that one resource allows."""

    name: str  # of the resource
    threads: int  # that used it
    rate: float  # samples per second
    bytes_per_sample: float | None  # moved; None if bytes are not the measure
    note: str  # for readers

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second."""
        return None if self.bytes_per_sample is None else self.rate * self.bytes_per_sample


@dataclass(frozen=True, kw_only=True)
class Roofline:
    cores: int  # that may be used
    ceilings: dict[str, Ceiling]  # by name
    # by number of threads: how many times the work of one thread they do
    scaling: Mapping[int, float] = field(default_factory=lambda: {1: 1.0})


def measure_roofline(
    alone: StageCosts, *, cores: int, readers: int, seconds: float = 0.6
) -> Roofline:
    context, steps = alone.context, alone.steps
    ceilings: dict[str, Ceiling] = {}

    def add(name: str, threads: int, rate: float, note: str, *, size: float = 0.0) -> None:
        if rate:
            ceilings[name] = Ceiling(
                name=name, threads=threads, rate=rate, bytes_per_sample=size or None, note=note
            )

    stored = [entry for entry in alone.first.stored if entry[1]]
    if stored:
        size = sum(member.size for _, members in stored for member in members) / len(stored)
        rate = _read_rate(context, stored, readers, seconds, cold=False)
        note = "random reads of the samples, from"
        add("storage, cached", readers, rate, f"{note} the page cache", size=size)
        threads = max(_DEEP, 2 * readers)
        rate = _read_rate(context, stored, threads, seconds, cold=True)
        add(COLD_STORAGE, threads, rate, f"{note} storage", size=size)
    context.store.close()
    context = replace(context, store=MemoryStore(context.store, alone.first.contents))
    # Threads of a tokenizer, and a lock that a transform holds, say nothing of the cores.
    bare = replace(context, transform=None, tokens=None)
    decoder = None if context.images is None else context.images.decoder
    scaling = {1: 1.0}
    if decoder is not None:
        # It has threads of its own; a batch is prepared while others are decoded.
        threads = decoder.pipelines + 1
        rate = run_threads(_batches(bare, steps), threads, seconds)
        add("decoder", threads, rate, "DALI alone, from memory")
    else:
        rates = _interleaved(_batches(bare, steps), cores, seconds)
        scaling = {threads: ratio(rate, rates[1]) for threads, rate in rates.items()}
        if context.images is not None and alone.images:
            note = "decode, resize and normalise alone, from memory"
            add("decode kernels", cores, rates[cores], note)
    if context.tokens is not None:
        texts = replace(context, images=None, transform=None)
        rate = run_threads(_batches(texts, steps), cores, seconds)
        add("tokenizer", cores, rate, "alone, from memory")
    if alone.batch_bytes:
        rate = run_threads(_copies(_ALL_COPIES // cores), cores, seconds) / alone.batch_bytes
        add("memory copy", cores, rate, "the batch's values copied once", size=alone.batch_bytes)
    context.store.close()
    return Roofline(cores=cores, ceilings=ceilings, scaling=scaling)


def _interleaved(work: Work, cores: int, seconds: float) -> dict[int, float]:
    """Run the work on one thread, on a thread for each core, and on half as many."""
    rates = dict.fromkeys(sorted({1, max(1, cores // 2), cores}), 0.0)
    for _ in range(_ROUNDS):
        for threads in rates:
            rates[threads] += run_threads(work, threads, seconds / _ROUNDS) / _ROUNDS
    return rates


def _read_rate(
    context: BatchContext, stored: Sequence[Stored], threads: int, seconds: float, *, cold: bool
) -> float:
    """Measure random reads of the samples' members; 0 if they cannot be read cold."""
    # Not in the order of the plan, in which they were read before.
    order = np.random.default_rng(0).permutation(len(stored)).tolist()
    before, asked = delivered(), [0] * threads

    def work(number: int) -> Iterator[float]:
        own = [stored[index] for index in order[number::threads]] or stored[:1]
        while True:
            if cold and not evict(context, own):
                return
            for shard, members in own:
                context.store.read(shard, members)
                asked[number] += sum(member.size for member in members)
                yield 1

    try:
        rate = run_threads(work, threads, seconds)
    except StopIteration:
        return 0.0
    return rate if not cold or was_cold(before, sum(asked)) else 0.0


def _batches(context: BatchContext, steps: Sequence[StepJob]) -> Work:
    """Return work that fills batches as workers do, in memory of each thread's own."""

    def work(number: int) -> Iterator[float]:
        images = context.images
        if images is not None:
            images = replace(images, pool=BufferPool(_BUFFERS))
        own = replace(context, images=images)
        for step in itertools.cycle([*steps[number:], *steps[:number]]):
            builder = BatchBuilder(own, step)
            for piece in range(builder.pieces):
                builder.run(piece, Watch())
                yield len(step.samples) / builder.pieces

    return work


def _copies(size: int) -> Work:
    copied = min(_COPIED, size)

    def work(number: int) -> Iterator[float]:
        source, target = np.ones(copied, np.uint8), np.zeros(copied, np.uint8)
        while True:
            np.copyto(target, source)
            yield copied

    return work
