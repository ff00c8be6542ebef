"""One batch: its memory, and the work that fills it slot by slot."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import Int64
from datapipe.decode.image import Decoded
from datapipe.decode.normalize import Values
from datapipe.errors import DecodeError, MissingMember, SampleError, TransformError
from datapipe.index.members import SampleParts
from datapipe.index.rows import Member
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.batch.decoded_source import BatchTextMembers, DecodedSource
from datapipe.loader.batch.image_batch import GEOMETRY, ImageSlots
from datapipe.loader.batch.sample_metadata import SampleMetadata
from datapipe.loader.batch.sample_reader import BadMember, ReadBytes, SampleReader
from datapipe.loader.batch.sample_rows import read_rows
from datapipe.loader.batch.token_batch import TokenSlots
from datapipe.loader.batch.user_transform import apply_transform
from datapipe.loader.batch.video_batch import VideoSlots
from datapipe.loader.metrics.stage_clock import Watch
from datapipe.report.table import counted
from datapipe.text.encode import SampleText

logger = logging.getLogger(__name__)

Batch = dict[str, Any]

# Most samples that a worker takes at once. Python's work for each takes half as long for 16 in a
# row as for 4; texts are tokenized together.
_PIECE = 16
_TEXT_PIECE = 32


@dataclass(slots=True)
class _SlotContent:
    text: SampleText
    images: list[tuple[Member, memoryview]]
    found: ReadBytes


class BatchBuilder:
    """Job that fills one batch, slot by slot; slots are independent of each other."""

    def __init__(self, context: BatchContext, step: StepJob) -> None:
        self.step = step
        self.errors: dict[int, SampleError] = {}  # of samples that failed, by slot
        self.finished = 0  # when all of it was done, in nanoseconds of `time.perf_counter_ns`
        self._context = context
        self._samples = samples = step.samples
        self._excluded: list[bool] = step.share.excluded.tolist()
        self._valid = step.share.valid.copy()
        size, sizes, resident = len(samples), step.share.units.sizes, step.resident
        self._rows = rows = read_rows(context.dataset, samples) if step.rows is None else step.rows
        self._totals = rows.counts
        self._counts = self._totals if sizes is None else sizes.images
        self._loaded = self._counts if resident is None else np.where(resident, 0, self._counts)
        self._reader = SampleReader(context, step, rows, self._loaded)
        texts = not context.tokens or context.transform is not None
        self._metadata = SampleMetadata(
            context.options.meta, context.dataset, samples, rows.keys, texts=texts
        )
        self._tokens: TokenSlots | None = None
        if context.tokens:
            assert sizes is not None, "with a tokenizer every sample has been measured"
            self._tokens = TokenSlots(context.tokens, samples, sizes)
        self.images: ImageSlots | None = None  # of the batch; None without any
        if context.images:
            slots = ImageSlots if context.images.videos is None else VideoSlots
            self.images = slots(context.images, samples, self._counts, step.keys.of, resident)
        self._together = context.images is not None and context.images.decoder is not None
        # Images take their time: every worker should find two pieces among the prepared batches,
        # and they should end together.
        options = context.options
        workers = 1 if options.in_processes else options.num_workers  # that share in a batch
        ahead = 1 if step.last else options.prefetch_factor
        pieces, most = 4 if step.last else 2, _PIECE
        if not self._reader.encoded.any():
            pieces, most = pieces // 2, 4 * _PIECE  # copied, which all workers do equally fast
        part = size * ahead // (pieces * max(1, workers))
        self._piece = max(1, min(part, most)) if context.images else _TEXT_PIECE
        self._done = itertools.count(1)  # pieces; its `next` cannot be interrupted by a thread

    @property
    def pieces(self) -> int:
        return max(1, -(-len(self._samples) // self._piece))

    def run(self, piece: int, watch: Watch) -> None:
        """Do one piece: read all its samples, then decode one after the other."""
        start = piece * self._piece
        stop = min(start + self._piece, len(self._samples))
        watch.at(self, start, "read")
        texts: dict[int, SampleText] = {}
        for source in self._reader.decoded:
            there = start + np.flatnonzero(source.slots[start:stop])
            if len(there):
                texts |= self._restore(source, there, watch)
        slots = (start + np.flatnonzero(self._reader.encoded[start:stop])).tolist()
        # All are read before any is decoded: Python's work for a sample takes three times as long
        # right after a decoder has emptied the processor's caches.
        read = self._read(slots, watch) if slots else {}
        rows: list[Sequence[Values]] = [()] * (stop - start)
        if read and self.images is not None:
            rows = self.images.cut(slots[0], slots[-1] + 1)
        for slot, sample in read.items():
            try:
                self._fill(slot, sample, rows[slot - slots[0]], watch)
                texts[slot] = sample.text
            except SampleError as error:
                self._fail(slot, error)
        if self._tokens and texts:
            watch.at(self, min(texts), "tokenize")
            for slot, failure in self._tokens.fill(texts, self._valid).items():
                self._fail(slot, self._located(failure, slot))
        if next(self._done) == self.pieces:
            if self._together and len(self._samples):
                # The worker that reads last decodes for all.
                assert self.images is not None
                watch.at(self, 0, "decode")
                for slot, damage in self.images.decode_together().items():
                    self._fail(slot, self._located(damage, slot))
            self.finished = time.perf_counter_ns()

    def describe(self, slot: int) -> str:
        return self._context.describe(int(self._samples[slot]))

    @property
    def blank(self) -> Tensor | None:
        """Rows of `pixel_values` that hold no image, bool; None without images."""
        return None if self.images is None else self.images.blank

    def result(self) -> Batch:
        """Return the batch, or raise the error of the first sample, unless such are skipped."""
        if self.errors and self._context.options.on_error == "raise":
            raise self.errors[min(self.errors)]
        if self.step.first:
            self._metadata.warn_of_absent_fields()
        batch: Batch = {}
        labels = self.step.labels
        if self.images is not None:
            batch |= self.images.result(complete=not self._tokens)
        facts: Batch = {
            # Copied: the plan's own arrays are not for a training loop to write to.
            "images_per_sample": torch.from_numpy(self._counts.copy()),
            GEOMETRY: self.images.geometry() if self.images is not None else None,
            "valid": torch.from_numpy(self._valid),
            "sample": torch.from_numpy(self._samples.copy()),
            # A loss is divided by it, and 0 / 0 would spoil the weights.
            "num_items_in_batch": None if labels is None else max(1, labels),
            **self._metadata.facts,
        }
        if self._tokens:
            batch |= self._tokens.result()
        else:
            batch |= {name: facts[name] for name in ("images_per_sample", "text", "key", "valid")}
        return batch | {name: facts[name] for name in self._context.options.meta}

    def _restore(self, decoded: DecodedSource, slots: Int64, watch: Watch) -> dict[int, SampleText]:
        """Fill some slots with decoded samples. Return the texts of those that are good."""
        images, tokens = self.images, self._tokens
        numbers: list[int] = slots.tolist()
        # Texts whose tokens are in arrays are not read.
        stored = tokens is not None and all(map(tokens.is_stored, numbers))
        if stored and not self._metadata.wanted and not decoded.behind_texts:
            members = BatchTextMembers.none(len(slots))
        else:
            members = BatchTextMembers.of(self._rows, slots)
        failed: dict[int, SampleError] = {
            slot: self._located(DecodeError(reason), slot)
            for slot, reason in decoded.damaged(slots, members).items()
        }
        read, damaged = members.parse(decoded.texts(slots, members))
        for index, owner, error in damaged:
            member = self._rows.member(int(members.members[index]))
            failed[numbers[owner]] = self._located(error, numbers[owner], member)
        watch.moved(int(members.edges[-1]))
        if images is not None:
            watch.at(self, numbers[0], "normalize")
            starts = decoded.images(slots, members)
            if not images.restore_many(slots, starts, decoded):
                first = numbers[0]
                rows = images.cut(first, numbers[-1] + 1)
                for data, indices in decoded.buffers(slots):
                    for index in indices.tolist():
                        slot, values = numbers[index], data[starts[index] :]
                        images.restore(slot, values, rows[slot - first], decoded.placements(slot))
        texts = {}
        for slot, parts in zip(numbers, read, strict=True):
            self._metadata.set(slot, parts.caption, parts.record)
            if self._tokens:
                texts[slot] = self._text(slot, parts)
        for slot, failure in failed.items():
            texts.pop(slot, None)
            self._fail(slot, failure)
        return texts

    def _read(self, slots: list[int], watch: Watch) -> dict[int, _SlotContent]:
        """Read the samples in some slots. Return those that are good."""
        read = {}
        for slot in slots:
            if self._excluded[slot]:
                self._empty(slot)
                continue
            try:
                read[slot] = self._read_sample(slot, watch)
            except SampleError as error:
                self._fail(slot, error)
        return read

    def _read_sample(self, slot: int, watch: Watch) -> _SlotContent:
        watch.at(self, slot, "read")
        try:
            found = self._reader.read(slot)
        except BadMember as bad:
            raise self._located(DecodeError(str(bad)), slot, bad.member) from bad
        watch.moved(sum(map(len, found.contents)))
        parts = SampleParts()
        for member, data in zip(found.members, found.contents, strict=True):
            try:
                parts.add(member, data)
            except SampleError as error:
                raise self._located(error, slot, member) from error
        here, wanted = len(parts.images), self._loaded[slot]
        if self.images is not None and found.ready is None and here != wanted:
            missing = MissingMember(f"{counted(here, 'image')} found, the index says {wanted}")
            raise self._located(missing, slot)
        self._metadata.set(slot, parts.caption, parts.record)
        return _SlotContent(self._text(slot, parts), parts.images, found)

    def _text(self, slot: int, parts: SampleParts) -> SampleText:
        max_frames = self._context.dataset.parts[int(self._rows.parts[slot])].max_frames
        return SampleText(parts.caption, parts.record, int(self._totals[slot]), max_frames)

    def _fill(self, slot: int, sample: _SlotContent, rows: Sequence[Values], watch: Watch) -> None:
        found, images = sample.found, self.images
        if found.ready is not None:
            assert images is not None
            watch.at(self, slot, "normalize")
            images.restore(slot, found.ready, rows)
            return
        waiting: list[Decoded] = []  # for the user's transform
        for number, (member, data) in enumerate(sample.images):
            assert images is not None, "images are read only where a batch has them"
            if self._together:
                images.keep(slot, number, bytes(data))
                continue
            try:
                watch.at(self, slot, "decode")
                image = images.decode(slot, number, data)
                watch.moved(image.pixels.nbytes)
                if self._context.transform:
                    waiting.append(image)
                else:
                    watch.at(self, slot, "resize")
                    images.place(slot, number, image, rows[number], room=found.room)
            except SampleError as error:
                raise self._located(error, slot, member) from error
        if found.entry is not None:
            self._reader.keep(slot, found)
        if self._context.transform:
            try:
                self._apply_transform(slot, waiting, sample.text.record, rows, watch)
            except SampleError as error:
                raise self._located(error, slot) from error

    def _apply_transform(
        self, slot: int, images: list[Decoded], record: Any, rows: Sequence[Values], watch: Watch
    ) -> None:
        assert self._context.transform is not None
        watch.at(self, slot, "transform")
        text = self._metadata.text[slot]
        rest = {"text": text, "key": self._metadata.keys[slot], "record": record}
        drawn_by = (self._context.seed, *self.step.keys.of(slot))
        made, self._metadata.text[slot] = apply_transform(
            self._context.transform, images, rest, drawn_by
        )
        if self._tokens and self._metadata.text[slot] != text:
            raise TransformError(
                "transform changed the text, whose tokens were counted for the plan; change "
                "it when the data is packed"
            )
        if self.images is not None:
            watch.at(self, slot, "resize")
            for index, image in enumerate(made):
                self.images.check_changed(slot, index, image)
                self.images.place(slot, index, image, rows[index])

    def _located(self, error: SampleError, slot: int, member: Member | None = None) -> SampleError:
        key = self._metadata.keys[slot]
        return type(error)(
            error.reason,
            key=key,
            shard=self._context.shard_name(int(self._samples[slot])),
            member=f"{key}.{member.ext}" if member else "",
        )

    def _fail(self, slot: int, error: SampleError) -> None:
        self.errors[slot] = _without_frames(error)
        self._empty(slot)

    def _empty(self, slot: int) -> None:
        """Empty a slot: shapes and positions never change."""
        self._valid[slot] = False
        self._metadata.empty(slot)
        if self._tokens:
            self._tokens.empty(slot)
        if self.images is not None:
            self.images.empty(slot)


def _without_frames(error: SampleError) -> SampleError:
    """Return the error without tracebacks, whose frames would keep the batch alive in a cycle."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
