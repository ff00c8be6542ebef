"""Batches: their way to the device, and those of one step of the optimizer."""

import math
from collections.abc import Callable, Generator, Iterable
from itertools import accumulate, islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from datapipe.plan.steps import Step

Batch = dict[str, Any]

IGNORE = -100  # a label that counts nothing in the loss
LABELS = "num_items_in_batch"  # key of a batch's labels over all ranks, known from the plan


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a small tensor of the host to a device, without waiting for it.

    From memory that is not page-locked, the host would wait for all that the device has to do.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def bring(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a batch with its tensors on a device, where the loader may have put them already."""
    return {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


def lengths_of(batch: Batch, samples: int) -> Tensor:
    """Return the tokens of each sample without padding, on the batch's device."""
    if "attention_mask" in batch:
        return torch.as_tensor(batch["attention_mask"]).sum(1)
    # Segments of padding, and empty ones, may follow the samples.
    return torch.as_tensor(batch["cu_seq_lens_q"])[: samples + 1].diff()


def join_texts(ids: list[Tensor], labels: list[Tensor], *, packed: bool, pad_id: int = 0) -> Batch:
    """Return the texts of a batch as a loader makes it: in one row, or in rows of one length."""
    if not packed:
        return {
            "input_ids": pad_sequence(ids, True, pad_id),
            "labels": pad_sequence(labels, True, IGNORE),
            "attention_mask": pad_sequence([torch.ones_like(each) for each in ids], True),
        }
    device, lengths = ids[0].device, [len(each) for each in ids]
    bounds = send(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), device)
    return {
        "input_ids": torch.cat(ids)[None],
        "labels": torch.cat(labels)[None],
        "position_ids": torch.cat([torch.arange(each, device=device) for each in lengths])[None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def groups_of(
    batches: Iterable[Batch],
    *,
    count: int,
    labels: int = 0,
    samples: int = 0,
    ranks: int = 1,
    ends: Callable[[], bool] = lambda: False,
) -> Generator[list[Batch], None, None]:
    """Yield batches in groups, whose losses are divided by the labels of the whole group.

    Means of means would weigh a token of a short batch more. A group has `count` batches, or as few
    as have this number of `labels`, or of `samples` over all `ranks`, each of which must have as
    many. It also ends if `ends()`, called once after each batch, is true.
    """
    group: list[Batch] = []
    for batch in batches:
        group.append(batch)
        if labels:
            full = labels_of(group) >= labels
        elif samples:
            full = ranks * sum(len(batch["key"]) for batch in group) >= samples
        else:
            full = len(group) == count
        if ends() or full:  # `ends` is asked after each batch, as it tells news
            yield group
            group = []
    if group:
        yield group


def labels_of(group: list[Batch]) -> int:
    """Labels of a group over all ranks; what its losses are divided by."""
    return max(1, sum(int(batch[LABELS]) for batch in group))


def samples_of_step(
    plan: Iterable[Step], *, count: int, labels: int = 0, samples: int = 0
) -> float:
    """Return the mean number of samples of a step of the optimizer, over all ranks.

    `plan` has the batches of a loader; the rest is as in `groups_of`.
    """
    if samples:
        return float(samples)
    steps = list(islice(plan, 1000))
    found = sum(len(step.units.samples) for step in steps)
    if labels:
        return found / sum(step.labels or 0 for step in steps) * labels
    return found / len(steps) * count


def accumulation_for(exchange_share: float, target: float) -> int:
    """Return the fewest batches a step of which the exchange takes at most `target` of the time.

    A step of k batches takes k c to compute and e to exchange gradients once, so the share of the
    exchange is at most `target` from k = e (1 - target) / (c target) on. With one batch a step it
    is s = e / (c + e), so e / c = s / (1 - s).

    Examples:
        >>> accumulation_for(0.5, 0.1)  # 1 / (9 + 1)
        9
    """
    if not 0 <= exchange_share < 1 or not 0 < target < 1:
        raise ValueError(
            f"exchange_share={exchange_share}, target={target}: give shares of the time, from 0 to "
            "below 1, and the target above 0"
        )
    batches = exchange_share / (1 - exchange_share) * (1 - target) / target
    return max(1, math.ceil(batches * (1 - 1e-9)))  # rounding must not cost a batch
