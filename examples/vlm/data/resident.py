"""A small dataset that lies whole on the device, tokens and images: no step reads or copies any.

The loader reads every sample once. After that it only plans: each batch is gathered on the device,
from the sample numbers that the plan has for it. So batches are those that the loader would make,
bit for bit. Images lie as the model takes them, in float32: four times the bytes of a device cache.
Every rank holds all samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import datapipe
from datapipe.plan import Share
from examples.vlm.data.accumulate import LABELS, Batch
from examples.vlm.data.transfer import send
from examples.vlm.model.inputs import IGNORE

_VERSION = 1


class Ragged(NamedTuple):
    """Rows of all samples behind each other, and the first one of each: int64 [samples]."""

    rows: Tensor
    starts: Tensor

    @classmethod
    def of(cls, parts: list[Tensor | None], device: torch.device) -> Ragged:
        """Join the rows of each sample on the device; None has none, and one must have some."""
        none = _first(parts)[:0]
        rows = [none if part is None else part for part in parts]
        counts = torch.tensor([0, *(len(part) for part in rows[:-1])])
        return cls(torch.cat(rows).to(device), counts.cumsum(0).to(device))

    def take(self, samples: Tensor, counts: Tensor, total: int) -> Tensor:
        """Return the first `counts` rows of some samples, `total` rows in all, without waiting."""
        owners = torch.repeat_interleave(counts, output_size=total)
        inner = torch.arange(total, device=counts.device) - (counts.cumsum(0) - counts)[owners]
        return self.rows[self.starts[samples][owners] + inner]


class Resident:
    """Batches without end that a loader would make, from samples on the device.

    `every` has all samples of the dataset once, as padded batches with `key`, `dataset`, `sample`,
    `valid` and `images_per_sample`. More than `limit` bytes are refused.

    Attributes:
        epoch: of the next batch.
        plan: of the loader.
    """

    def __init__(
        self,
        loader: datapipe.Loader,
        every: Iterable[Batch],
        device: torch.device,
        *,
        packed: bool,
        limit: int,
    ) -> None:
        self.plan, self.options, self._device = loader.plan, loader.options, device
        self._order, self._packed = loader.plan.order, packed
        self.epoch = self._consumed = 0
        parts: dict[str, list[Tensor | None]] = {"ids": [], "labels": [], "pixels": [], "grids": []}
        self._keys: list[str] = []
        self._datasets: list[str] = []
        numbers: list[int] = []
        self._pad_id = size = 0
        for batch in every:
            padding = batch["input_ids"][batch["attention_mask"] == 0]
            self._pad_id = int(padding[0]) if len(padding) else self._pad_id
            # Repeats at the end fill the last batch, without labels.
            count = int(batch["valid"].sum())
            self._keys += batch["key"][:count]
            self._datasets += batch["dataset"][:count]
            numbers += torch.as_tensor(batch["sample"]).tolist()[:count]
            for name, rows in _by_sample(batch):
                parts[name] += rows[:count]
                size += sum(part.nbytes for part in rows[:count] if part is not None)
            if size > limit:
                raise ValueError(
                    f"--resident: {len(numbers):,} samples take {size:,} bytes already, and "
                    f"{limit:,} are allowed; give more, or --device-cache, which may hold a part"
                )
        self._columns = {
            name: Ragged.of(rows, device)
            for name, rows in parts.items()
            if _first(rows) is not None
        }
        self._slots = np.full(max(numbers) + 1, -1)
        self._slots[numbers] = np.arange(len(numbers))

    def __iter__(self) -> Iterator[Batch]:
        """Go on where the last iterator stopped."""
        while True:
            epoch = self.epoch
            for step in self.plan.steps(epoch=epoch):
                if step.start.consumed < self._consumed:
                    continue
                after = (epoch + 1, 0) if step.last else (epoch, step.stop.consumed)
                self.epoch, self._consumed = after
                share = step.share(
                    units_per_rank=self.options.units_per_rank,
                    rank=self.options.rank,
                    world_size=self.options.world_size,
                )
                yield self._batch(share) | {LABELS: max(1, step.labels or 0)}

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the same on every rank."""
        own = {"resident": _VERSION, "epoch": self.epoch, "consumed": self._consumed}
        return own | {"order": self._order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at a position."""
        if state.get("resident") != _VERSION:
            raise ValueError("the checkpoint is of a run without --resident; leave it out here too")
        if state["order"] != self._order:
            raise ValueError(
                "the checkpoint is of other data, or of other --pack, --batch-size, --buckets or "
                "--seed; give the same"
            )
        self.epoch, self._consumed = state["epoch"], state["consumed"]

    def _batch(self, share: Share) -> Batch:
        sizes = share.units.sizes
        assert sizes is not None, "there is a tokenizer"
        slots = self._slots[share.units.numbers]
        samples, lengths, images, valid = (
            send(torch.from_numpy(np.ascontiguousarray(column)), self._device)
            for column in (slots, sizes.tokens, sizes.images, share.valid)
        )
        total, pictures, rows = (
            int(column.sum()) for column in (sizes.tokens, sizes.images, sizes.rows)
        )
        ids, labels = (
            self._columns[name].take(samples, lengths, total) for name in ("ids", "labels")
        )
        owners = torch.repeat_interleave(lengths, output_size=total)
        labels = torch.where(valid[owners], labels, IGNORE)
        batch: Batch = {"key": [self._keys[slot] for slot in slots.tolist()], "valid": valid}
        batch["dataset"] = [self._datasets[slot] for slot in slots.tolist()]
        longest = int(sizes.tokens.max())
        positions = torch.arange(total, device=self._device) - (lengths.cumsum(0) - lengths)[owners]
        if self._packed:
            bounds = functional.pad(lengths.cumsum(0), (1, 0)).int()
            batch |= {"input_ids": ids[None], "labels": labels[None]}
            batch |= {"position_ids": positions[None], "cu_seq_lens_q": bounds}
            batch |= {"cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
        else:
            shape = (len(slots), longest)
            for name, values, empty in (
                ("input_ids", ids, self._pad_id),
                ("labels", labels, IGNORE),
                ("attention_mask", torch.ones_like(ids), 0),
            ):
                padded = torch.full(shape, empty, dtype=torch.int64, device=self._device)
                padded[owners, positions] = values
                batch[name] = padded
        if rows:
            # A sample's rows of pixels are those of its images, which may differ in size.
            heights = send(torch.from_numpy(np.ascontiguousarray(sizes.rows)), self._device)
            batch["pixel_values"] = self._columns["pixels"].take(samples, heights, rows)
            if "grids" in self._columns:
                batch["image_grid_thw"] = self._columns["grids"].take(samples, images, pictures)
        return batch


def _first(parts: list[Tensor | None]) -> Any:
    return next((part for part in parts if part is not None), None)


def _by_sample(batch: Batch) -> Iterator[tuple[str, list[Tensor | None]]]:
    """Yield the tokens, labels, pixels and grids of the samples of a padded batch, by name."""
    lengths = batch["attention_mask"].sum(1).tolist()
    for name, column in (("ids", "input_ids"), ("labels", "labels")):
        yield name, [row[:length] for row, length in zip(batch[column], lengths, strict=True)]
    counts = rows = batch["images_per_sample"].tolist()
    grids: list[Tensor | None] = [None] * len(counts)
    pixels = list(grids)
    if "image_grid_thw" in batch:
        split = torch.split(batch["image_grid_thw"], counts)
        rows = [int(each.prod(1).sum()) for each in split]
        grids = list(split)
    if "pixel_values" in batch:
        pixels = list(torch.split(batch["pixel_values"], rows))
    yield "grids", grids
    yield "pixels", pixels
