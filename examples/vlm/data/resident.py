"""A small dataset that lies whole on the device, tokens and images: no step reads or copies any.

The loader reads every sample once. Then it only plans, and batches are gathered on the device by
the plan's sample numbers: those that the loader would make, bit for bit. Images are kept in
float32: four times the bytes of a device cache. Every rank holds all samples.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

import datapipe
from datapipe.plan import Share
from examples.vlm.data.batches import IGNORE, LABELS, Batch, bring, join_texts, send

_VERSION = 1


class Resident:
    """Batches without end that a loader would make, from samples on the device.

    `every` has all samples of the dataset once, as padded batches with `key`, `dataset`, `sample`,
    `valid` and `images_per_sample`. More than `limit` bytes are refused.
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
        self._samples: dict[int, Batch] = {}
        self._pad_id = size = 0
        for batch in every:
            padding = batch["input_ids"][batch["attention_mask"] == 0]
            self._pad_id = int(padding[0]) if len(padding) else self._pad_id
            for number, sample in _samples_of(bring(batch, device)):
                self._samples[number] = sample
                size += sum(each.nbytes for each in sample.values() if isinstance(each, Tensor))
            if size > limit:
                raise ValueError(
                    f"--resident: {len(self._samples):,} samples take {size:,} bytes already, and "
                    f"{limit:,} are allowed; give more, or --device-cache, which may hold a part"
                )

    def __iter__(self) -> Iterator[Batch]:
        """Continue where the last iterator stopped."""
        while True:
            epoch = self.epoch
            for step in self.plan.steps(epoch=epoch):
                if step.start.consumed < self._consumed:
                    continue
                after = (epoch + 1, 0) if step.last else (epoch, step.stop.consumed)
                self.epoch, self._consumed = after
                own, each = self.options, self.options.units_per_rank
                share = step.share(units_per_rank=each, rank=own.rank, world_size=own.world_size)
                yield self._batch(share) | {LABELS: max(1, step.labels or 0)}

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the same on every rank."""
        own = {"resident": _VERSION, "epoch": self.epoch, "consumed": self._consumed}
        return own | {"order": self._order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("resident") != _VERSION:
            raise ValueError("the checkpoint is of a run without --resident; leave it out here too")
        if state["order"] != self._order:
            raise ValueError(
                "the checkpoint is of other data, or of other --pack, --batch-size, --buckets or "
                "--seed; give the same"
            )
        self.epoch, self._consumed = state["epoch"], state["consumed"]

    def _batch(self, share: Share) -> Batch:
        samples = [self._samples[number] for number in share.units.numbers.tolist()]
        valid: list[bool] = share.valid.tolist()
        ids = [sample["input_ids"] for sample in samples]
        labels = [
            sample["labels"] if counts else torch.full_like(sample["labels"], IGNORE)
            for sample, counts in zip(samples, valid, strict=True)
        ]
        batch = join_texts(ids, labels, packed=self._packed, pad_id=self._pad_id)
        batch["valid"] = send(torch.tensor(valid), self._device)
        for name in ("key", "dataset"):
            batch[name] = [sample[name] for sample in samples]
        for name in ("pixel_values", "image_grid_thw"):
            if some := [sample[name] for sample in samples if len(sample.get(name, ()))]:
                batch[name] = torch.cat(some)
        return batch


def _samples_of(batch: Batch) -> Iterator[tuple[int, Batch]]:
    """Yield the samples of a padded batch, by their numbers in the dataset."""
    lengths = batch["attention_mask"].sum(1).tolist()
    counts = rows = batch["images_per_sample"].tolist()
    images: dict[str, tuple[Tensor, ...]] = {}
    if "image_grid_thw" in batch:
        images["image_grid_thw"] = grids = torch.split(batch["image_grid_thw"], counts)
        rows = [int(each.prod(1).sum()) for each in grids]
    if "pixel_values" in batch:
        images["pixel_values"] = torch.split(batch["pixel_values"], rows)
    # Repeats at the end fill the last batch, without labels.
    for row in range(int(batch["valid"].sum())):
        sample = {name: batch[name][row] for name in ("key", "dataset")}
        sample |= {name: batch[name][row, : lengths[row]] for name in ("input_ids", "labels")}
        yield int(batch["sample"][row]), sample | {name: each[row] for name, each in images.items()}
