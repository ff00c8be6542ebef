"""Bytes of parameters, gradients and states that one of several ranks holds."""

from collections.abc import Iterable
from typing import Literal

from torch import Tensor, nn

from examples.vlm.model.vlm import VLM
from examples.vlm.techniques.switches import Optimizer

Zero = Literal[0, 1, 2, 3]

BUCKET = 25 * 2**20
"""Bytes of gradients that ranks exchange at a time; `bucket_cap_mb` of DDP."""


def shard(parameter: Tensor, ranks: int) -> int:
    """Return the numbers that the first of some ranks holds: rows are divided, as in FSDP2."""
    rows: int = parameter.shape[0]
    return -(-rows // ranks) * (parameter.numel() // rows)


def states(learnt: Iterable[Tensor], optimizer: Optimizer, ranks: int) -> int:
    """Bytes of AdamW's states.

    Two float32 numbers each and a count of steps for each tensor. In 8 bits, as bitsandbytes has
    them: one byte each, a float32 scale for 256 of them, and small tensors as they are.
    """
    total = 0
    for parameter in learnt:
        size = shard(parameter, ranks)
        if optimizer == "8bit" and size >= 4096:
            total += 2 * (size + 4 * -(-size // 256))
        else:
            total += 8 * size + (0 if optimizer == "8bit" else 4)
    return total


def exchanged(
    model: VLM, gradients: int, ranks: int, zero: Zero, half: int, bucket_view: bool
) -> int:
    """Bytes that a rank holds to exchange gradients or weights.

    `gradients` are the bytes of all, `half` those of a number that FSDP exchanges; see
    `budget.estimate` for the others.
    """
    if ranks == 1:
        return 0
    if zero < 2:
        return 0 if bucket_view else gradients
    if zero == 2:
        return min(2 * BUCKET, gradients)
    blocks: list[nn.Module] = [*model.vision.transformer.blocks, *model.language.blocks]
    largest = max(sum(p.numel() for p in block.parameters()) for block in blocks)
    inside = {id(p) for block in blocks for p in block.parameters()}
    # What is in no block stays gathered from the forward to the backward pass. Of the blocks, one
    # is in use and the next one under way; its gradients are whole until they are reduced.
    root = sum(p.numel() for p in model.parameters() if id(p) not in inside)
    return half * (root + 3 * largest)
