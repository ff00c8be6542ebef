"""One batch: its memory, and the work that fills it slot by slot."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipe.decode.image import Decoded
from datapipe.decode.text.encode import SampleText
from datapipe.errors import MissingMember, SampleError, TransformError
from datapipe.index.rows import Member
from datapipe.index.text import parse_json, parse_text, sample_text
from datapipe.loader.batchmaker import BatchMaker
from datapipe.loader.images import GEOMETRY, ImageSlots
from datapipe.loader.members import member_kind, text_codes
from datapipe.loader.reading import BadMember, Found, SampleReader
from datapipe.loader.state import Run
from datapipe.loader.tokens import TokenSlots
from datapipe.loader.usertransform import UserTransform, apply_transform
from datapipe.loader.watch import Watch
from datapipe.plan.ragged import Bools, Int64, edges, places
from datapipe.plan.steps import Share
from datapipe.store.protocol import Fetch

logger = logging.getLogger(__name__)

Batch = dict[str, Any]

FACTS = frozenset(
    {
        *("images_per_sample", "text", "key", "valid", "source", "sample", "num_items_in_batch"),
        GEOMETRY,
    }
)
"""Names in `meta` that are no fields of a JSON member."""

# Most samples that a worker takes at once. What Python does for each takes half as long for 16 in a
# row as for 4; texts are tokenized together.
_PIECE = 16
_TEXT_PIECE = 32


@dataclass(slots=True)
class _Looked:
    """What the index says of the samples of a piece.

    Attributes:
        shards: number of each.
        members: of each; of those at hand, the texts alone.
        text_bytes: int64 [n], of the members with texts.
    """

    shards: list[int]
    members: list[list[Member]]
    text_bytes: Int64


@dataclass(slots=True)
class _Read:
    """A sample as it was read: its text, and its images as they are encoded."""

    text: SampleText
    images: list[tuple[Member, memoryview]]
    found: Found


class BatchJob:
    """Fills one batch, slot by slot; slots are independent of each other.

    `run_after` is how far the run is once the batch was yielded; `labels` counts the tokens that
    all ranks predict in this step, `last` says that no other follows, `fetch` are the samples on
    their way, where they were announced, `next_use` says when each is used again, for the cache,
    `resident` whose images lie on the device already.
    """

    def __init__(
        self,
        maker: BatchMaker,
        share: Share,
        *,
        epoch: int,
        labels: int | None = None,
        run_after: Run,
        last: bool = False,
        fetch: Fetch | None = None,
        next_use: Int64 | None = None,
        resident: Bools | None = None,
    ) -> None:
        self.share = share
        self.epoch = epoch
        self.resident = resident
        self.run_after = run_after
        self.samples = share.units.samples
        self._excluded: list[bool] = share.excluded.tolist()
        self._labels = labels
        self._maker = maker
        size = len(self.samples)
        columns = maker.dataset.columns
        sizes = share.units.sizes
        images = columns.sample_image
        self._totals: Int64 = images[self.samples + 1] - images[self.samples]
        self._counts = self._totals if sizes is None else sizes.images
        self._loaded = self._counts if resident is None else np.where(resident, 0, self._counts)
        self._reader = SampleReader(
            maker.store,
            keeper=maker.keeper,
            fetch=fetch,
            samples=self.samples,
            images=self._loaded if maker.images is not None else None,
            whole=(self._loaded == self._totals) & ~share.excluded,
            next_use=next_use,
            resident=resident,
            verify=maker.verify,
        )
        self._at_hand = self._reader.at_hand
        self._valid = share.valid.copy()
        self._keys: list[str] = [""] * size
        self._text: list[str] = [""] * size
        self._fields: dict[str, list[Any]] = {
            name: [None] * size for name in maker.meta if name not in FACTS or name == "source"
        }
        self.errors: dict[int, SampleError] = {}
        self._names: set[str] = set()  # fields that samples have
        self._tokens: TokenSlots | None = None
        if maker.tokens:
            assert sizes is not None, "with a tokenizer every sample has been measured"
            self._tokens = maker.tokens.slots(self.samples, sizes)
        self._images: ImageSlots | None = None
        if maker.images:
            self._images = maker.images.slots(self.samples, self._counts, epoch, resident)
        # Images take their time: every worker should find two pieces among what is prepared ahead,
        # and they should end together.
        ahead = 1 if last else maker.ahead
        pieces = 4 if last else 2
        most = _PIECE
        if self._at_hand is not None and self._at_hand.slots.all():
            pieces, most = pieces // 2, 4 * _PIECE  # copied, which all workers do equally fast
        part = size * ahead // (pieces * max(1, maker.workers))
        self._piece = max(1, min(part, most)) if maker.images else _TEXT_PIECE
        self._together = maker.images is not None and maker.images.decoder is not None
        self._done = itertools.count(1)  # pieces; its `next` cannot be interrupted by a thread
        self.finished = 0
        """When all of it was done, in nanoseconds of `time.perf_counter_ns`."""

    @property
    def pieces(self) -> int:
        return -(-len(self.samples) // self._piece)

    def run(self, piece: int, watch: Watch) -> None:
        # All of a piece is read before any of it is decoded: what Python does for a sample takes
        # three times as long right after a decoder has emptied the processor's caches.
        read: dict[int, _Read] = {}
        start = piece * self._piece
        stop = min(start + self._piece, len(self.samples))
        watch.at(self, start, "read")
        at_hand = self._at_hand
        looked = self._look_up(start, stop)
        ready = [False] * (stop - start) if at_hand is None else at_hand.slots[start:stop].tolist()
        for place, slot in enumerate(range(start, stop)):
            if self._excluded[slot]:
                self._bury(slot)
                continue
            try:
                if at_hand is not None and ready[place]:
                    members = looked.members[place]
                    found = Found(members, at_hand.texts(slot, members))
                else:
                    found = self._find(slot, looked.shards[place], looked.members[place], watch)
                read[slot] = self._note(slot, found, at_hand=ready[place])
            except SampleError as error:
                self._fail(slot, error)
        restored = self._restore(read, looked, start, watch)
        rows: list[Sequence[Tensor]] = [()] * (stop - start)
        if self._images is not None and len(restored) < len(read):
            rows = self._images.cut(start, stop)
        texts: dict[int, SampleText] = {}
        for slot, sample in read.items():
            if slot in restored:
                texts[slot] = sample.text
                continue
            try:
                self._fill(slot, sample, rows[slot - start], watch)
                texts[slot] = sample.text
            except SampleError as error:
                self._fail(slot, error)
        if self._tokens and texts:
            watch.at(self, min(texts), "tokenize")
            failed = self._tokens.fill(texts, self._valid)
            for slot, failure in failed.items():
                self._fail(slot, self._located(failure, slot, None))
        if next(self._done) == self.pieces:
            if self._together:
                # Whoever is the last to read decodes for all.
                self._decode_together(watch)
            self.finished = time.perf_counter_ns()

    def describe(self, slot: int) -> str:
        sample = int(self.samples[slot])
        return f"sample {self._maker.dataset.columns.key(sample)} of {self._shard_name(sample)}"

    @property
    def blank(self) -> Tensor | None:
        """Rows of `pixel_values` that hold no image, bool; None where there are none to tell."""
        return None if self._images is None else self._images.blank

    def result(self) -> Batch:
        """The batch as a dict.

        Raises:
            SampleError: the first sample that failed, unless failing samples are skipped.
        """
        if self.errors and self._maker.on_error == "raise":
            raise self.errors[min(self.errors)]
        batch: Batch = {}
        # Vision towers refuse a batch of no images, and a model that is given none skips them.
        if self._images is not None and not (self._tokens and self._images.none):
            batch |= self._images.result()
        facts: Batch = {
            # Copied: the plan's own arrays are not for a training loop to write to.
            "images_per_sample": torch.from_numpy(self._counts.copy()),
            GEOMETRY: self._images.geometry() if self._images is not None else None,
            "text": self._text,
            "key": self._keys,
            "valid": torch.from_numpy(self._valid),
            "sample": torch.from_numpy(self.samples.copy()),
            # A loss is divided by it, and 0 / 0 would spoil the weights.
            "num_items_in_batch": None if self._labels is None else max(1, self._labels),
            **self._fields,
        }
        if self._tokens:
            batch |= self._tokens.result()
        else:
            batch |= {name: facts[name] for name in ("images_per_sample", "text", "key", "valid")}
        return batch | {name: facts[name] for name in self._maker.meta}

    def warn_of_absent_fields(self) -> None:
        """Say which fields of `meta` no sample of this batch has: they may be misspelt."""
        for name in self._fields.keys() - {"source"} - self._names:
            logger.warning(
                "meta names %r, which no sample of this batch has; they have %s, and a batch can "
                "carry %s",
                *(name, sorted(self._names) or "no fields", sorted(FACTS)),
            )

    def _look_up(self, start: int, stop: int) -> _Looked:
        """What the index says of the samples in some slots; notes their names."""
        columns, samples = self._maker.dataset.columns, self.samples[start:stop]
        self._keys[start:stop] = columns.keys(samples)
        if "source" in self._fields:
            self._fields["source"][start:stop] = columns.sources(samples)
        found, bounds = places(columns.sample_member, samples)
        text_bytes = np.zeros(len(samples), np.int64)
        if self._at_hand is not None:
            texts = text_codes(columns.extensions)[columns.member_ext[found]]
            text_bytes = np.diff(edges(columns.member_size[found] * texts)[bounds])
            wanted = texts | ~np.repeat(self._at_hand.slots[start:stop], np.diff(bounds))
            found, bounds = found[wanted], edges(wanted.astype(np.int64))[bounds]
        members = columns.members_at(found)
        parts = [members[first:last] for first, last in itertools.pairwise(bounds.tolist())]
        return _Looked(columns.shards(samples).tolist(), parts, text_bytes)

    def _find(self, slot: int, shard: int, members: list[Member], watch: Watch) -> Found:
        """Read one sample."""
        watch.at(self, slot, "read")
        try:
            found = self._reader.read(slot, shard, members, int(self._totals[slot]))
        except BadMember as bad:
            raise self._located(bad.error, slot, bad.member) from bad
        watch.moved(sum(map(len, found.contents)))
        return found

    def _note(self, slot: int, found: Found, *, at_hand: bool) -> _Read:
        """Keep what the batch says of a sample that was read beside its images."""
        maker = self._maker
        images: list[tuple[Member, memoryview]] = []
        caption = record = None
        for member, data in zip(found.members, found.contents, strict=True):
            try:
                kind = member_kind(member.ext)
                if kind == "image":
                    images.append((member, data))
                elif kind == "text":
                    caption = parse_text(bytes(data)) if caption is None else caption
                elif record is None:
                    record = parse_json(bytes(data))
            except SampleError as error:
                raise self._located(error, slot, member) from error
        here = at_hand or found.ready is not None or self._images is None
        if not here and len(images) != self._loaded[slot]:
            missing = MissingMember(
                f"{len(images)} images found, the index says {self._counts[slot]}"
            )
            raise self._located(missing, slot, None)
        if not self._tokens or maker.transform or "text" in maker.meta:
            self._text[slot] = sample_text(caption, record)
        if self._fields and isinstance(record, dict):
            self._names.update(record)
            for name in self._fields.keys() - {"source"}:
                self._fields[name][slot] = record.get(name)
        return _Read(SampleText(caption, record, int(self._totals[slot])), images, found)

    def _restore(
        self,
        read: Mapping[int, _Read],
        looked: _Looked,
        start: int,
        watch: Watch,
    ) -> frozenset[int]:
        """Fill the rows of samples whose images are at hand, all in one go; returns their slots."""
        at_hand = self._at_hand
        if at_hand is None or self._images is None or not read:
            return frozenset()
        slots = np.fromiter(read, np.int64, len(read))
        slots = slots[at_hand.slots[slots]]
        watch.at(self, start, "normalize")
        starts = at_hand.images(slots, looked.text_bytes[slots - start])
        if self._images.restore_many(slots, starts, at_hand.data):
            return frozenset(slots.tolist())
        for slot, begin in zip(slots.tolist(), starts.tolist(), strict=True):
            read[slot].found.ready = at_hand.data[begin:]
        return frozenset()

    def _fill(self, slot: int, sample: _Read, rows: Sequence[Tensor], watch: Watch) -> None:
        """Decode the images of a sample that was read, and place each in its rows."""
        transform = self._maker.transform
        found = sample.found
        if found.ready is not None:
            assert self._images is not None
            watch.at(self, slot, "normalize")
            self._images.restore(slot, found.ready, rows)
            return
        waiting: list[Decoded] = []  # for the user's transform
        for number, (member, data) in enumerate(sample.images):
            assert self._images is not None, "images are read only where a batch has them"
            if self._together:
                self._images.keep(slot, number, bytes(data))
                continue
            try:
                watch.at(self, slot, "decode")
                image = self._images.decode(slot, number, data)
                watch.moved(image.pixels.nbytes)
                if transform:
                    waiting.append(image)
                else:
                    watch.at(self, slot, "resize")
                    self._images.place(slot, number, image, rows[number], room=found.room)
            except SampleError as error:
                raise self._located(error, slot, member) from error
        if found.entry is not None:
            self._reader.keep(slot, found)
        if transform:
            watch.at(self, slot, "transform")
            self._apply(transform, slot, waiting, sample.text.record, rows, watch)

    def _decode_together(self, watch: Watch) -> None:
        assert self._images is not None
        watch.at(self, 0, "decode")
        for slot, error in self._images.decode_together().items():
            self._fail(slot, self._located(error, slot, None))

    def _apply(
        self,
        transform: UserTransform,
        slot: int,
        images: list[Decoded],
        record: Any,
        rows: Sequence[Tensor],
        watch: Watch,
    ) -> None:
        """Let the user's function change a sample, and place its images."""
        text = self._text[slot]
        try:
            made, self._text[slot] = apply_transform(
                transform,
                images,
                text=text,
                key=self._keys[slot],
                record=record,
                seed=self._maker.seed,
                epoch=self.epoch,
                sample=int(self.samples[slot]),
            )
            if self._tokens and self._text[slot] != text:
                raise TransformError(
                    "transform changed the text, whose tokens were counted for the plan; change "
                    "it when the data is packed"
                )
            if self._images is not None:
                watch.at(self, slot, "resize")
                for number, image in enumerate(made):
                    self._images.place(slot, number, image, rows[number])
        except SampleError as error:
            raise self._located(error, slot, None) from error

    def _located(self, error: SampleError, slot: int, member: Member | None) -> SampleError:
        key = self._keys[slot]
        return type(error)(
            error.reason,
            key=key,
            shard=self._shard_name(int(self.samples[slot])),
            member=f"{key}.{member.ext}" if member else "",
        )

    def _shard_name(self, sample: int) -> str:
        return self._maker.store.name(self._maker.dataset.columns.shard(sample))

    def _fail(self, slot: int, error: SampleError) -> None:
        self.errors[slot] = _without_frames(error)
        self._bury(slot)

    def _bury(self, slot: int) -> None:
        """Leave the slot where it is, empty: shapes and positions never change."""
        self._valid[slot] = False
        self._text[slot] = ""
        for name in self._fields.keys() - {"source"}:
            self._fields[name][slot] = None
        if self._tokens:
            self._tokens.bury(slot)
        if self._images is not None:
            self._images.bury(slot)


def _without_frames(error: SampleError) -> SampleError:
    """Drop tracebacks, whose frames would keep this batch and its loader alive in a cycle."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
