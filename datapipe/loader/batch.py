"""One padded batch: its memory, and the work that fills it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from datapipe.decode.transform import ImageTransform
from datapipe.errors import DecodeError, MissingMember, SampleError
from datapipe.index.dataset import Dataset
from datapipe.index.imageinfo import is_image_extension
from datapipe.index.rows import Member
from datapipe.index.text import TEXT_EXTENSIONS, parse_json, parse_text, sample_text
from datapipe.loader.buffers import BufferPool
from datapipe.loader.executor import Watch
from datapipe.plan.plan import Step
from datapipe.store.shards import ShardStore

OnError = Literal["raise", "skip"]
Batch = dict[str, Any]

_PIECE = 4  # samples a worker takes at once


@dataclass(frozen=True, kw_only=True)
class BatchMaker:
    """What all batches of a loader share.

    Attributes:
        dataset, store: where samples lie and how to read them.
        transform: for images; None leaves images out.
        meta: fields of each sample's JSON member that the batch carries as lists.
        verify: whether members are compared with the checksums taken when they were packed.
        on_error: "raise", or "skip" to leave a failing sample's slot empty.
        pool: memory for `pixel_values`.
    """

    dataset: Dataset
    store: ShardStore
    transform: ImageTransform | None
    meta: tuple[str, ...]
    verify: bool
    on_error: OnError
    pool: BufferPool


class BatchJob:
    """Fills one batch, slot by slot; slots are independent of each other."""

    def __init__(self, maker: BatchMaker, step: Step) -> None:
        self.step = step
        self._maker = maker
        size = len(step.samples)
        columns = maker.dataset.columns
        images = columns.sample_image[step.samples + 1] - columns.sample_image[step.samples]
        self._rows = np.concatenate(([0], np.cumsum(images)))
        self._images = images
        self._valid = step.valid.copy()
        self._text: list[str] = [""] * size
        self._keys: list[str] = [""] * size
        self._meta: dict[str, list[Any]] = {name: [None] * size for name in maker.meta}
        self.errors: dict[int, SampleError] = {}
        self._pixels: Tensor | None = None
        if maker.transform:
            shape = (int(self._rows[-1]), *maker.transform.shape)
            self._pixels = maker.pool.lend(shape, maker.transform.dtype)

    @property
    def pieces(self) -> int:
        return -(-len(self.step.samples) // _PIECE)

    def run(self, piece: int, watch: Watch) -> None:
        for slot in range(piece * _PIECE, min((piece + 1) * _PIECE, len(self.step.samples))):
            try:
                self._fill(slot, watch)
            except SampleError as error:
                self.errors[slot] = _without_frames(error)
                self._bury(slot)

    def describe(self, slot: int) -> str:
        columns = self._maker.dataset.columns
        sample = int(self.step.samples[slot])
        shard = self._maker.store.name(columns.shard(sample))
        return f"sample {columns.key(sample)} of {shard}"

    def result(self) -> Batch:
        """The batch as a dict.

        Raises:
            SampleError: the first sample that failed, unless failing samples are skipped.
        """
        if self.errors and self._maker.on_error == "raise":
            raise self.errors[min(self.errors)]
        batch: Batch = {}
        if self._pixels is not None:
            batch["pixel_values"] = self._pixels
        batch["images_per_sample"] = torch.from_numpy(self._images)
        batch["text"] = self._text
        batch["key"] = self._keys
        batch["valid"] = torch.from_numpy(self._valid)
        return batch | self._meta

    def _fill(self, slot: int, watch: Watch) -> None:
        maker, columns = self._maker, self._maker.dataset.columns
        sample = int(self.step.samples[slot])
        shard = columns.shard(sample)
        self._keys[slot] = columns.key(sample)
        if "source" in self._meta:
            self._meta["source"][slot] = columns.source(sample)
        members = [m for m in columns.members(sample) if _is_wanted(m, maker)]
        watch.at(self, slot, "read")
        contents = maker.store.read(shard, members)
        row = int(self._rows[slot])
        caption = record = None
        for member, data in zip(members, contents, strict=True):
            try:
                if maker.verify and not maker.store.verify(member, data):
                    raise DecodeError(
                        "its bytes are not those that were packed: the shard is damaged"
                    )
                if is_image_extension(member.ext):
                    self._place(row, data, slot, watch)
                    row += 1
                elif member.ext.lower() in TEXT_EXTENSIONS:
                    caption = parse_text(data) if caption is None else caption
                elif record is None:
                    record = parse_json(data)
            except SampleError as error:
                raise self._located(error, slot, shard, member) from error
        if maker.transform and row != self._rows[slot + 1]:
            missing = MissingMember(
                f"{row - self._rows[slot]} images found, the index says {self._images[slot]}"
            )
            raise self._located(missing, slot, shard, None)
        self._text[slot] = sample_text(caption, record)
        if isinstance(record, dict):
            for name in self._meta.keys() - {"source"}:
                self._meta[name][slot] = record.get(name)

    def _place(self, row: int, data: bytes, slot: int, watch: Watch) -> None:
        transform = self._maker.transform
        assert transform is not None
        assert self._pixels is not None
        watch.at(self, slot, "decode")
        pixels = transform.decode(data)
        watch.at(self, slot, "resize")
        transform.place(pixels, self._pixels[row])

    def _located(
        self, error: SampleError, slot: int, shard: int, member: Member | None
    ) -> SampleError:
        key = self._keys[slot]
        return type(error)(
            error.reason,
            key=key,
            shard=self._maker.store.name(shard),
            member=f"{key}.{member.ext}" if member else "",
        )

    def _bury(self, slot: int) -> None:
        """Leave the slot where it is, empty: shapes and positions never change."""
        self._valid[slot] = False
        self._text[slot] = ""
        for name in self._meta.keys() - {"source"}:
            self._meta[name][slot] = None
        if self._pixels is not None:
            self._pixels[int(self._rows[slot]) : int(self._rows[slot + 1])] = 0


def _without_frames(error: SampleError) -> SampleError:
    """Drop tracebacks, whose frames would keep this batch and its loader alive in a cycle."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def _is_wanted(member: Member, maker: BatchMaker) -> bool:
    ext = member.ext.lower()
    if is_image_extension(ext):
        return maker.transform is not None
    return ext in TEXT_EXTENSIONS or ext == "json"
