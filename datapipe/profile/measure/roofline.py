"""Ceilings of this machine for a loader's work, without a loader around it.

Each ceiling is one resource at full use: storage at random reads of the dataset's own members, all
cores in the kernels that make images, or in the tokenizer, and memory in plain copies. After the
roofline of Williams, Waterman and Patterson ("Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009), with samples in place of operations.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from datapipe.cpus import available_cpus
from datapipe.decode.dali.decoder import DaliDecoder
from datapipe.decode.image import MAX_PIXELS
from datapipe.decode.transform import Draw, ImageTransform
from datapipe.errors import SampleError
from datapipe.geometry.sizes import one
from datapipe.index.images.header import probe
from datapipe.loader.batch.context import BatchContext
from datapipe.loader.batch.token_batch import TokenContext
from datapipe.profile.measure.parts import (
    ReadSample,
    delivered,
    evict,
    members_of,
    read_sample,
    was_cold,
)
from datapipe.profile.measure.stage_benchmark import Alone
from datapipe.profile.measure.usage import queued_seconds
from datapipe.report.table import ratio
from datapipe.text.encode import SampleText, TextEncoder

DEEP = "storage, deep queue"
"""Cold reads by so many threads that more would not be faster."""

_DEEP = 16  # threads
_COPIED = 32 << 20  # bytes of a copy: beyond any cache
_BUFFER = 128 << 20  # bytes that a thread writes images to in turn, as a loader does
_ALL_BUFFERS = 1 << 30  # bytes that all threads may take for that
_TEXTS = 32  # that are encoded together
_ROUNDS = 2  # of each number of threads, in turn
_PATIENCE = 10.0  # seconds that a thread may take to end its piece of work

Work = Callable[[int], Iterator[int]]
"""Called with the number of a thread; yields after each piece of work how many units it was."""


@dataclass(frozen=True, kw_only=True)
class ThreadRun:
    """Work that several threads did at once."""

    threads: int
    done: int  # units of work
    seconds: float  # that it took

    @property
    def rate(self) -> float:
        """Units of work per second."""
        return ratio(self.done, self.seconds)


def run_threads(work: Work, threads: int, seconds: float, *, free: bool = False) -> ThreadRun:
    """Run work in threads for some time, each with one thread inside torch's kernels.

    An error of the work is raised once the other threads have ended. `free` threads do not wait for
    each other; then the time that a thread waited for a processor, which another process had, does
    not count, unless there are more threads than cores.
    """
    barrier = threading.Barrier(threads)
    rates: list[tuple[int, float]] = []
    errors: list[BaseException] = []
    ended = threading.Event()
    cores = available_cpus()

    def body(number: int) -> None:
        try:
            torch.set_num_threads(1)
            pieces = work(number)
            next(pieces)  # sets up, and fills caches
            barrier.wait()
            done, queued, began = 0, queued_seconds(), time.perf_counter()
            while (now := time.perf_counter()) - began < seconds and not ended.is_set():
                done += next(pieces)
            lost = queued_seconds() - queued if free and threads <= cores else 0.0
            rates.append((done, now - began - lost))
        except BaseException as error:  # raised below
            errors.append(error)
            ended.set()
            barrier.abort()

    before = torch.get_num_threads()
    team = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(threads)]
    try:
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
    finally:
        # After an interrupt too: the interpreter must not exit under threads in a kernel.
        ended.set()
        barrier.abort()
        for thread in team:
            if thread.ident is not None:
                thread.join(_PATIENCE)
        torch.set_num_threads(before)  # the threads changed the default
    if errors:
        raise next(
            (error for error in errors if not isinstance(error, threading.BrokenBarrierError)),
            errors[0],
        )
    # The last piece of each thread takes it a little past the end, each differently.
    rate = sum(ratio(done, passed) for done, passed in rates)
    longest = max(passed for _, passed in rates)
    return ThreadRun(threads=threads, done=round(rate * longest), seconds=longest)


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

    def to_dict(self) -> dict[str, Any]:
        """Convert to values that JSON can hold."""
        return {
            "name": self.name,
            "threads": self.threads,
            "samples_per_second": self.rate,
            "bytes_per_sample": self.bytes_per_sample,
            "bytes_per_second": self.bandwidth,
            "what": self.note,
        }


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The ceilings of a machine for a loader's samples."""

    cores: int  # that may be used
    ceilings: dict[str, Ceiling]  # by name
    # by number of threads: how many times the work of one thread they do
    scaling: Mapping[int, float] = field(default_factory=lambda: {1: 1.0})


def measure_roofline(
    context: BatchContext, alone: Alone, *, cores: int, readers: int, seconds: float = 0.6
) -> Roofline:
    """Measure the ceilings of this machine."""
    ceilings = [
        _storage(context, alone, "storage, cached", readers, seconds, cold=False),
        _storage(context, alone, "storage, cold", readers, seconds, cold=True),
        _storage(context, alone, DEEP, max(_DEEP, 2 * readers), seconds, cold=True),
    ]
    context.store.close()
    scaling = {1: 1.0}
    work = _image_work(context, alone.kept, _ALL_BUFFERS // cores)
    decoder = context.images.decoder if context.images is not None else None
    if work is not None and decoder is not None:
        # It has threads of its own; a batch is prepared while others are decoded.
        done = run_threads(work, decoder.pipelines + 1, seconds)
        ceilings.append(_ceiling("decoder", done, None, "DALI alone, from memory"))
    elif work is not None:
        runs = _interleaved(work, cores, seconds, free=True)
        scaling = {threads: run.rate / runs[1].rate for threads, run in runs.items()}
        note = "decode, resize and normalise alone, from memory"
        ceilings.append(_ceiling("decode kernels", runs[cores], None, note))
    if context.tokens is not None and alone.kept:
        run = run_threads(_text_work(context.tokens, alone.kept), cores, seconds)
        ceilings.append(_ceiling("tokenizer", run, None, "alone, from memory"))
    if work is None:
        parsing = _interleaved(_reading(context, alone.kept), cores, seconds, free=False)
        scaling = {threads: run.rate / parsing[1].rate for threads, run in parsing.items()}
        context.store.close()
    made = alone.stages["collate"]
    ceilings.append(_memory(made.bytes_out / max(made.samples, 1), cores, seconds))
    return Roofline(
        cores=cores, ceilings={found.name: found for found in ceilings if found}, scaling=scaling
    )


def _ceiling(name: str, run: ThreadRun, size: float | None, note: str) -> Ceiling | None:
    if not run.done:
        return None
    return Ceiling(
        name=name, threads=run.threads, rate=run.rate, bytes_per_sample=size or None, note=note
    )


def _interleaved(work: Work, cores: int, seconds: float, *, free: bool) -> dict[int, ThreadRun]:
    """Run the work on one thread, on a thread for each core, and on half as many."""
    numbers = sorted({1, max(1, cores // 2), cores})
    done, passed = dict.fromkeys(numbers, 0), dict.fromkeys(numbers, 0.0)
    for _ in range(_ROUNDS):
        for number in numbers:
            run = run_threads(work, number, seconds / _ROUNDS, free=free)
            done[number] += run.done
            passed[number] += run.seconds
    return {n: ThreadRun(threads=n, done=done[n], seconds=passed[n]) for n in numbers}


def _storage(
    context: BatchContext, alone: Alone, name: str, threads: int, seconds: float, *, cold: bool
) -> Ceiling | None:
    """Measure random reads of the samples' members; None if they cannot be read cold."""
    found = [entry for entry in alone.members if entry[1]]
    if not found:
        return None
    # Not in the order of the plan, in which `alone` has read them.
    order = np.random.default_rng(0).permutation(len(found)).tolist()
    before, asked = delivered(), [0] * threads

    def work(number: int) -> Iterator[int]:
        own = [found[index] for index in order[number::threads]] or found[:1]
        while True:
            if cold and not evict(context, own):
                return
            for shard, members in own:
                context.store.read(shard, members)
                asked[number] += sum(member.size for member in members)
                yield 1

    size = sum(member.size for _, members in found for member in members) / len(found)
    try:
        run = run_threads(work, threads, seconds)
    except StopIteration:
        return None
    if cold and not was_cold(before, sum(asked)):
        return None
    note = "random reads of the samples, " + ("from storage" if cold else "from the page cache")
    return _ceiling(name, run, size, note)


def _reading(context: BatchContext, kept: Sequence[ReadSample]) -> Work:
    """Return work that reads, verifies and parses samples, as workers do."""
    arguments = [
        (sample.number, len(sample.images), members_of(context, sample.number, len(sample.images)))
        for sample in kept
    ]

    def work(number: int) -> Iterator[int]:
        for sample in itertools.cycle(arguments[number:] + arguments[:number]):
            read_sample(context, *sample)
            yield 1

    return work


def _image_work(context: BatchContext, kept: Sequence[ReadSample], memory: int) -> Work | None:
    """Return work that makes all images of samples; None if there are none."""
    images = context.images
    samples = [list(sample.images) for sample in kept]
    if images is None or not any(samples):
        return None
    if images.decoder is not None:
        return _together_work(images.decoder, samples)
    transforms = [images.transform_of(sample.number) for sample in kept]
    return kernel_work(transforms, samples, min(memory, _BUFFER))


def _together_work(decoder: DaliDecoder, samples: Sequence[Sequence[memoryview]]) -> Work:
    flat = [bytes(data) for images in samples for data in images][: decoder.batch_size]
    share = len(flat) / len(samples) if len(flat) < decoder.batch_size else 1.0
    per_sample = max(share, sum(map(len, samples)) / len(samples))

    def work(number: int) -> Iterator[int]:
        while True:
            decoder.decode(flat)
            yield max(1, round(len(flat) / per_sample))

    return work


def kernel_work(
    transforms: Sequence[ImageTransform],
    samples: Sequence[Sequence[bytes | memoryview]],
    memory: int,
) -> Work:
    """Return work that decodes images and places them into a buffer, a sample a piece.

    Args:
        transforms: of the images of each sample, all of one dtype.
        samples: images of each.
    """
    shapes = [
        [_shape(transform, data) for data in images]
        for transform, images in zip(transforms, samples, strict=True)
    ]
    longest = max((math.prod(shape) for each in shapes for shape in each), default=1)
    dtype = transforms[0].dtype
    size = longest * dtype.itemsize

    def work(number: int) -> Iterator[int]:
        # Written to before time counts, so that its pages are mapped.
        slots = torch.ones(max(2, min(64, memory // size)), longest, dtype=dtype, device="cpu")
        turn = itertools.count()
        for sample in itertools.cycle([*range(number, len(samples)), *range(number)]):
            transform = transforms[sample]
            for data, shape in zip(samples[sample], shapes[sample], strict=True):
                key = next(turn)
                slot = slots[key % len(slots), : math.prod(shape)].view(shape)
                draw = Draw(key) if transform.spec.random else None
                try:
                    transform.place(transform.decode(data), slot, draw)
                except SampleError:
                    continue  # counted by the stages alone
            yield 1

    return work


def _shape(transform: ImageTransform, data: bytes | memoryview) -> tuple[int, ...]:
    """Return the shape of the rows of an image in a batch of its own."""
    info = probe(data)
    if info.width * info.height > MAX_PIXELS:
        return (0, *transform.row_shape(*one(1, 1)))
    sides = one(*info.upright)
    return int(transform.rows(*sides)[0]), *transform.row_shape(*sides)


def _text_work(tokens: TokenContext, kept: Sequence[ReadSample]) -> Work:
    texts: dict[TextEncoder, list[SampleText]] = {}
    kinds = tokens.kinds_of(np.array([sample.number for sample in kept], np.int64))
    for kind, sample in zip(kinds, kept, strict=True):
        texts.setdefault(kind.encoder, []).append(sample.text)
    parts = [
        (encoder, each[start : start + _TEXTS])
        for encoder, each in texts.items()
        for start in range(0, len(each), _TEXTS)
    ]

    def work(number: int) -> Iterator[int]:
        for encoder, part in itertools.cycle(parts):
            encoder.encode(part)
            yield len(part)

    return work


def _memory(size: float, threads: int, seconds: float) -> Ceiling | None:
    """Measure copies of memory; a sample needs one of its values in a batch."""
    copied = min(_COPIED, _ALL_BUFFERS // threads)

    def work(number: int) -> Iterator[int]:
        source, target = np.ones(copied, np.uint8), np.zeros(copied, np.uint8)
        while True:
            np.copyto(target, source)
            yield copied

    run = run_threads(work, threads, seconds, free=True)
    if not size:
        return None
    return Ceiling(
        name="memory copy",
        threads=threads,
        rate=run.rate / size,
        bytes_per_sample=size,
        note="the batch's values copied once",
    )
