"""Benchmark of each stage of a loader by itself, on one thread, on samples of its real plan.

It calls the loader's own functions. A stage goes through several samples before the next one does,
so that no stage waits for another or empties its caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Normalizer
from datapipe.decode.transform import make_transform
from datapipe.errors import SampleError
from datapipe.index.columns import Columns
from datapipe.index.rows import Member
from datapipe.loader.batch.image_batch import ImageSlots
from datapipe.loader.batch.token_batch import TokenSlots
from datapipe.loader.device.prefetcher import DevicePrefetcher
from datapipe.loader.loader import Loader
from datapipe.loader.metrics.watch import Watch
from datapipe.profile.measure.parts import (
    ReadSample,
    StepShare,
    delivered,
    evict,
    have_kernel,
    members_of,
    read_sample,
    steps_of,
    tensor_bytes,
    transform_sample,
    was_cold,
)
from datapipe.profile.measure.stage_cost import COLD, STAGES, StageCost, latency_share
from datapipe.report.table import ratio

T = TypeVar("T")

_PART = 16  # samples that a stage goes through in a row, as a worker does; fewer of large images
_LOOKED_AT = 1 << 16  # images whose sizes are averaged, at most
_DECODED = 128 << 20  # bytes of their pixels
_BATCHES = 12  # that collate and transfer are timed for
_BATCHES_TOGETHER = 3  # likewise, where each of them has to be decoded for that
_KEPT = 64 << 20  # bytes of encoded images that are kept


@dataclass(frozen=True, kw_only=True)
class Alone:
    """All stages by themselves."""

    stages: dict[str, StageCost]  # by name, in their order; only those that the loader has
    samples: int  # measured
    failed: int  # samples that could not be read or decoded; the loader would raise or skip them
    images: float  # per sample, on average
    # share of the time of reading, 0 to 1, that does not depend on how much is read; by "read" and
    # "read, cold"
    latency: dict[str, float]
    # samples as they were read, for later measurements
    kept: list[ReadSample] = field(repr=False)
    # (shard, members) of all samples measured
    members: list[tuple[int, list[Member]]] = field(repr=False)


def measure_alone(loader: Loader, *, samples: int = 256, seconds: float = 4.0) -> Alone:
    """Measure every stage of a loader by itself.

    It takes at most so many samples, and no more after so many seconds. The interpreter should do
    nothing else meanwhile. Samples are dropped from the page cache to read them cold, if the system
    allows it.
    """
    have_kernel()  # it must not be loaded in the middle of a measurement
    run = _StageBenchmark(loader)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    try:
        run.warm_up()
        run.go(samples, time.perf_counter() + seconds)
    finally:
        torch.set_num_threads(before)
    run.make_batches()  # by the caller's thread, which has torch's own number of threads
    loader.components().context.store.close()
    return run.result()


class _StageBenchmark:
    """One measurement of all stages."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._context = loader.components().context
        self._images = self._context.images
        self._normalizers: list[TimedNormalizer] = []
        if self._images is not None and self._images.decoder is None:
            made = []
            for transform in self._images.transforms:
                spec = transform.spec
                self._normalizers.append(TimedNormalizer(spec.mean_std, spec.out_dtype))
                made.append(make_transform(spec, self._normalizers[-1]))
            self._images = replace(self._images, transforms=tuple(made))
        self._steps: list[StepShare] = []
        self._part = _samples_of(self._context.dataset.columns)
        self._forget()

    def _forget(self) -> None:
        self._tallies: dict[str, StageCost] = {}
        self._kept: list[ReadSample] = []
        self._members: list[tuple[int, list[Member]]] = []
        self._reads: dict[str, list[tuple[int, float]]] = {"read": [], COLD: []}
        self._kept_bytes = self._image_count = self._failed = self._samples = 0

    def warm_up(self) -> None:
        """Load what only the first samples would have to wait for: imports, kernels, files."""
        step = next(steps_of(self._loader))
        for _ in range(2):  # the second part reuses the memory of the first
            self._do_part(step, 0, min(self._part, len(step.samples)))
        self._forget()

    def go(self, samples: int, until: float) -> None:
        """Measure the stages of samples, part by part."""
        for step in steps_of(self._loader):
            self._steps.append(step)
            for start in range(0, len(step.samples), self._part):
                self._do_part(step, start, min(start + self._part, len(step.samples)))
                if self._samples >= samples or time.perf_counter() > until:
                    return

    def make_batches(self) -> None:
        """Measure the stages of whole batches."""
        prefetcher = self._loader.components().prefetcher
        together = self._images is not None and self._images.decoder is not None
        count = 1 + (_BATCHES_TOGETHER if together else _BATCHES)
        steps = (self._steps * count)[:count]
        for number, step in enumerate(steps):
            collate, transfer = StageCost(), StageCost()
            with collate.row():
                job = collate.time(step.job, self._context)
            if together:
                for piece in range(job.pieces):  # DALI has to decode before there is a batch
                    job.run(piece, Watch())
            with collate.row():
                batch = collate.time(job.result)
            collate.times = [sum(collate.times)]
            size = tensor_bytes(batch)
            collate.count(len(step.samples), 0, size)
            if prefetcher is not None:
                with transfer.row():
                    received = transfer.time(_transfer, prefetcher, batch, job.blank)
                transfer.count(len(step.samples), size, tensor_bytes(received))
            if number:  # the first one has new memory, which costs page faults
                self._tally("collate").add(collate)
                self._tally("transfer").add(transfer)

    def result(self) -> Alone:
        """Return all measurements."""
        return Alone(
            stages={
                name: self._tallies[name]
                for name in ("read", COLD, *STAGES[1:])
                if name in self._tallies and self._tallies[name].samples
            },
            samples=self._samples,
            failed=self._failed,
            images=self._image_count / max(self._samples, 1),
            latency={name: latency_share(reads) for name, reads in self._reads.items() if reads},
            kept=self._kept,
            members=self._members,
        )

    def _do_part(self, step: StepShare, start: int, stop: int) -> None:
        """Take some slots of a batch through all stages."""
        context = self._context
        samples, counts = step.samples[start:stop], step.images[start:stop]
        read = self._read(samples.tolist(), counts.tolist())
        if self._images is not None:
            slots = ImageSlots(self._images, samples, counts, step.step.keys.of)
            if self._images.decoder is not None:
                read = self._decode_together(slots, read)
            else:
                decoded = self._decode(slots, read)
                if context.transform is not None:
                    decoded = self._transform(step.step.epoch, read, decoded)
                read = {slot: read[slot] for slot in self._place(slots, decoded)}
        if context.tokens is not None and read:
            sizes = step.step.share.units.sizes
            assert sizes is not None, "with a tokenizer every sample has its tokens counted"
            self._tokenize(
                TokenSlots(context.tokens, samples, sizes[start:stop]), read, len(samples)
            )
        self._samples += len(samples)
        self._image_count += int(counts.sum())

    def _read(self, samples: Sequence[int], counts: Sequence[int]) -> dict[int, ReadSample]:
        """Read samples cold, and again from the page cache; return those without errors by slot."""
        context = self._context
        members = [members_of(context, *each) for each in zip(samples, counts, strict=True)]
        shards = [context.dataset.columns.shard(sample) for sample in samples]
        found = list(zip(shards, members, strict=True))
        self._members += found
        sizes = [sum(member.size for member in each) for each in members]
        cold, before = StageCost(), delivered()
        evicted = evict(context, found)
        with cold.row():
            for entry in found:
                cold.time(context.store.read, *entry)
        if evicted and was_cold(before, sum(sizes)):
            cold.count(len(samples), sum(sizes), sum(sizes))
            self._tally(COLD).add(cold)
            self._reads[COLD] += zip(sizes, cold.times, strict=True)
        tally = StageCost()
        read = self._each(
            tally,
            range(len(samples)),
            lambda slot: read_sample(context, samples[slot], counts[slot], members[slot]),
        )
        self._reads["read"] += zip((sizes[slot] for slot in read), tally.times, strict=True)
        for slot, sample in read.items():
            tally.count(1, sizes[slot], sizes[slot])
            if self._kept_bytes < _KEPT:
                self._kept.append(sample)
                self._kept_bytes += sizes[slot]
        self._tally("read").add(tally)
        return read

    def _each(
        self, tally: StageCost, slots: Iterable[int], work: Callable[[int], T]
    ) -> dict[int, T]:
        """Time `work` for each slot; return the results of those that did not fail."""
        done: dict[int, T] = {}
        with tally.row():
            for slot in slots:
                try:
                    done[slot] = tally.time(work, slot)
                except SampleError:
                    self._failed += 1
        return done

    def _decode(self, slots: ImageSlots, read: dict[int, ReadSample]) -> dict[int, list[Decoded]]:
        """Decode the images of samples, by slot."""

        def decode(slot: int) -> list[Decoded]:
            images = enumerate(read[slot].images)
            return [slots.decode(slot, number, data) for number, data in images]

        tally = self._tally("decode")
        decoded = self._each(tally, read, decode)
        for slot, images in decoded.items():
            tally.count(1, read[slot].encoded, _pixels(images))
        return decoded

    def _transform(
        self, epoch: int, read: dict[int, ReadSample], decoded: dict[int, list[Decoded]]
    ) -> dict[int, list[Decoded]]:
        """Call the user's transform with the images of each slot."""
        tally = self._tally("transform")
        transformed = self._each(
            tally,
            decoded,
            lambda slot: transform_sample(self._context, read[slot], decoded[slot], epoch),
        )
        for slot, images in transformed.items():
            tally.count(1, _pixels(decoded[slot]), _pixels(images))
        return transformed

    def _place(self, slots: ImageSlots, decoded: dict[int, list[Decoded]]) -> list[int]:
        """Resize and normalise images into their rows; return the slots that have them."""
        whole, writing, normalizers = StageCost(), StageCost(), self._normalizers
        rows = slots.cut(0, len(slots.first) - 1)

        def place(slot: int) -> float:
            for normalizer in normalizers:
                normalizer.seconds = 0.0
            for number, image in enumerate(decoded[slot]):
                slots.place(slot, number, image, rows[slot][number])
            return sum(normalizer.seconds for normalizer in normalizers)

        placed = self._each(whole, decoded, place)
        # The time of both is divided into that of resizing and that of normalising.
        writing.times = [min(pair) for pair in zip(placed.values(), whole.times, strict=True)]
        share = ratio(sum(writing.times), sum(whole.times))
        whole.times = [all_ - part for all_, part in zip(whole.times, writing.times, strict=True)]
        writing.cpu, writing.queued = share * whole.cpu, share * whole.queued
        whole.cpu, whole.queued = whole.cpu - writing.cpu, whole.queued - writing.queued
        for slot in placed:
            values = sum(row.numel() for row in rows[slot])
            whole.count(1, _pixels(decoded[slot]), values)
            writing.count(1, values, sum(row.nbytes for row in rows[slot]))
        self._tally("resize").add(whole)
        self._tally("normalize").add(writing)
        return list(placed)

    def _decode_together(
        self, slots: ImageSlots, read: dict[int, ReadSample]
    ) -> dict[int, ReadSample]:
        """Decode all images of some samples at once, by DALI; return samples without errors."""
        for slot, sample in read.items():
            for number, data in enumerate(sample.images):
                slots.keep(slot, number, bytes(data))
        if not any(sample.images for sample in read.values()):
            return read
        tally = self._tally("decode")
        with tally.row():
            failed = tally.time(slots.decode_together)
        self._failed += len(failed)
        encoded = sum(sample.encoded for sample in read.values())
        tally.count(len(read), encoded, slots.pixels.nbytes)
        return {slot: sample for slot, sample in read.items() if slot not in failed}

    def _tokenize(self, tokens: TokenSlots, read: dict[int, ReadSample], slots: int) -> None:
        tally = self._tally("tokenize")
        texts = {slot: sample.text for slot, sample in read.items()}
        with tally.row():
            failed = tally.time(tokens.fill, texts, np.ones(slots, np.bool_))
        self._failed += len(failed)
        # Texts are encoded together, so each gets an equal share of the time.
        share = tally.times.pop() / len(texts)
        tally.times += [share] * len(texts)
        size = sum(len(sample.caption.encode()) for sample in read.values())
        tally.count(len(texts), size, tensor_bytes(tokens.result()))

    def _tally(self, stage: str) -> StageCost:
        together = self._images is not None and self._images.decoder is not None
        whole = stage in ("collate", "transfer") or (stage == "decode" and together)
        return self._tallies.setdefault(stage, StageCost(whole_batches=whole))


def _samples_of(columns: Columns) -> int:
    """Choose the samples of a part, so that their decoded images fit into memory."""
    images, samples = len(columns.image_width), max(len(columns.sample_image) - 1, 1)
    if not images:
        return _PART
    some = np.arange(0, images, -(-images // _LOOKED_AT))
    pixels = columns.image_width[some].astype(np.float64) * columns.image_height[some]
    each = 3 * float(pixels.mean()) * images / samples
    return max(1, min(_PART, int(_DECODED / max(each, 1.0))))


def _transfer(
    prefetcher: DevicePrefetcher, batch: dict[str, Any], blank: Tensor | None
) -> dict[str, Any]:
    """Copy a batch to the device, and wait for the copy."""
    received = prefetcher.receive(prefetcher.send(batch, blank=blank))
    if prefetcher.device.type == "cuda":
        torch.cuda.synchronize(prefetcher.device)
    return received


def _pixels(images: Sequence[Decoded]) -> int:
    return sum(image.pixels.nbytes for image in images)


class TimedNormalizer(Normalizer):
    """Normalizer that measures its own time, apart from the resizing around it."""

    seconds = 0.0

    def write(self, image: Tensor, out: Tensor) -> None:
        began = time.perf_counter()
        super().write(image, out)
        self.seconds += time.perf_counter() - began
