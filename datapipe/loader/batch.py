"""One batch: its memory, and the work that fills it slot by slot."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from datapipe.decode.image import Decoded
from datapipe.decode.text.encode import SampleText
from datapipe.errors import DecodeError, MissingMember, SampleError, TransformError
from datapipe.index.dataset import Dataset
from datapipe.index.imageinfo import is_image_extension
from datapipe.index.rows import Member
from datapipe.index.text import TEXT_EXTENSIONS, parse_json, parse_text, sample_text
from datapipe.loader.executor import Watch
from datapipe.loader.images import GEOMETRY, ImageMaker, ImageSlots
from datapipe.loader.state import Run
from datapipe.loader.tokens import TokenMaker, TokenSlots
from datapipe.loader.usertransform import UserTransform, apply_transform
from datapipe.plan.steps import Share
from datapipe.store.shards import ShardStore

logger = logging.getLogger(__name__)

OnError = Literal["raise", "skip"]
Batch = dict[str, Any]

FACTS = frozenset(
    {
        *("images_per_sample", "text", "key", "valid", "source", "sample", "num_items_in_batch"),
        GEOMETRY,
    }
)
"""Names in `meta` that are no fields of a JSON member."""

# Samples a worker takes at once: few that hold images, many that are tokenized together.
_PIECE = 4
_TEXT_PIECE = 32


@dataclass(frozen=True, kw_only=True)
class BatchMaker:
    """What all batches of a loader share.

    Attributes:
        dataset, store: where samples lie and how to read them.
        images: what becomes of images; None leaves them out.
        transform: the user's own; None for none.
        tokens: for texts; None hands them out as they are.
        meta: what the batch carries beside what a model takes.
        seed: of what is random.
        verify: whether members are compared with the checksums taken when they were packed.
        on_error: "raise", or "skip" to leave a failing sample's slot empty.
    """

    dataset: Dataset
    store: ShardStore
    images: ImageMaker | None
    transform: UserTransform | None
    tokens: TokenMaker | None
    meta: tuple[str, ...]
    seed: int
    verify: bool
    on_error: OnError


class BatchJob:
    """Fills one batch, slot by slot; slots are independent of each other.

    `run_after` is how far the run is once the batch was yielded; `labels` counts the tokens that
    all ranks predict in this step.
    """

    def __init__(
        self,
        maker: BatchMaker,
        share: Share,
        *,
        epoch: int,
        labels: int | None = None,
        run_after: Run,
    ) -> None:
        self.share = share
        self.run_after = run_after
        self.samples = share.units.samples
        self._epoch = epoch
        self._labels = labels
        self._maker = maker
        size = len(self.samples)
        columns = maker.dataset.columns
        sizes = share.units.sizes
        if sizes is None:
            self._counts = (
                columns.sample_image[self.samples + 1] - columns.sample_image[self.samples]
            )
        else:
            self._counts = sizes.images
        self._valid = share.valid.copy()
        self._text: list[str] = [""] * size
        self._keys: list[str] = [""] * size
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
            self._images = maker.images.slots(self.samples, self._counts, epoch)
        self._piece = _PIECE if maker.images else _TEXT_PIECE
        self._together = maker.images is not None and maker.images.decoder is not None
        self._done = itertools.count(1)  # pieces; its `next` cannot be interrupted by a thread

    @property
    def pieces(self) -> int:
        return -(-len(self.samples) // self._piece)

    def run(self, piece: int, watch: Watch) -> None:
        texts: dict[int, SampleText] = {}
        start = piece * self._piece
        for slot in range(start, min(start + self._piece, len(self.samples))):
            if self.share.excluded[slot]:
                self._describe_sample(slot)
                self._bury(slot)
                continue
            try:
                texts[slot] = self._fill(slot, watch)
            except SampleError as error:
                self._fail(slot, error)
        if self._tokens and texts:
            watch.at(self, min(texts), "tokenize")
            failed = self._tokens.fill(texts, self._valid)
            for slot, failure in failed.items():
                self._fail(slot, self._located(failure, slot, None))
        if self._together and next(self._done) == self.pieces:
            # Whoever is the last to read decodes for all.
            self._decode_together(watch)

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
        if self._images is not None and (len(self._images.pixels) or not self._tokens):
            batch |= self._images.result()
        facts: Batch = {
            "images_per_sample": torch.from_numpy(self._counts),
            GEOMETRY: self._images.geometry() if self._images is not None else None,
            "text": self._text,
            "key": self._keys,
            "valid": torch.from_numpy(self._valid),
            "sample": torch.from_numpy(self.samples),
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

    def _fill(self, slot: int, watch: Watch) -> SampleText:
        """Read one sample and place its images; returns its text."""
        maker, columns = self._maker, self._maker.dataset.columns
        sample = int(self.samples[slot])
        shard = columns.shard(sample)
        self._describe_sample(slot)
        members = self._wanted(sample, int(self._counts[slot]))
        watch.at(self, slot, "read")
        contents = maker.store.read(shard, members)
        found = 0
        waiting: list[Decoded] = []  # for the user's transform
        caption = record = None
        for member, data in zip(members, contents, strict=True):
            try:
                if maker.verify and not maker.store.verify(member, data):
                    raise DecodeError(
                        "its bytes are not those that were packed: the shard is damaged"
                    )
                if self._images is not None and is_image_extension(member.ext):
                    if self._together:
                        self._images.keep(slot, found, data)
                    else:
                        watch.at(self, slot, "decode")
                        image = self._images.decode(slot, found, data)
                        if maker.transform:
                            waiting.append(image)
                        else:
                            watch.at(self, slot, "resize")
                            self._images.place(slot, found, image)
                    found += 1
                elif member.ext.lower() in TEXT_EXTENSIONS:
                    caption = parse_text(data) if caption is None else caption
                elif record is None:
                    record = parse_json(data)
            except SampleError as error:
                raise self._located(error, slot, member) from error
        if self._images is not None and found != self._counts[slot]:
            missing = MissingMember(f"{found} images found, the index says {self._counts[slot]}")
            raise self._located(missing, slot, None)
        if not self._tokens or maker.transform or "text" in maker.meta:
            self._text[slot] = sample_text(caption, record)
        if maker.transform:
            watch.at(self, slot, "transform")
            self._apply(maker.transform, slot, waiting, record)
        if isinstance(record, dict):
            if self._fields:
                self._names.update(record)
            for name in self._fields.keys() - {"source"}:
                self._fields[name][slot] = record.get(name)
        total = columns.sample_image[sample + 1] - columns.sample_image[sample]
        return SampleText(caption, record, int(total))

    def _decode_together(self, watch: Watch) -> None:
        assert self._images is not None
        watch.at(self, 0, "decode")
        for slot, error in self._images.decode_together().items():
            self._fail(slot, self._located(error, slot, None))

    def _apply(
        self, transform: UserTransform, slot: int, images: list[Decoded], record: Any
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
                epoch=self._epoch,
                sample=int(self.samples[slot]),
            )
            if self._tokens and self._text[slot] != text:
                raise TransformError(
                    "transform changed the text, whose tokens were counted for the plan; change "
                    "it when the data is packed"
                )
            if self._images is not None:
                for number, image in enumerate(made):
                    self._images.place(slot, number, image)
        except SampleError as error:
            raise self._located(error, slot, None) from error

    def _wanted(self, sample: int, images: int) -> list[Member]:
        """The members that the batch is made of: of the images the first ones alone."""
        members = []
        for member in self._maker.dataset.columns.members(sample):
            ext = member.ext.lower()
            if is_image_extension(ext):
                if self._maker.images is not None and images:
                    images -= 1
                    members.append(member)
            elif ext in TEXT_EXTENSIONS or ext == "json":
                members.append(member)
        return members

    def _describe_sample(self, slot: int) -> None:
        columns = self._maker.dataset.columns
        sample = int(self.samples[slot])
        self._keys[slot] = columns.key(sample)
        if "source" in self._fields:
            self._fields["source"][slot] = columns.source(sample)

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
