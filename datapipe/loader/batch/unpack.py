"""Outputs of a model on a packed batch, by sample."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import overload

import torch
from torch import Tensor

from datapipe.declared import Natural, checked
from datapipe.errors import PlanError


@overload
def unpack(outputs: Tensor, cu_seq_lens: Tensor, *, samples: int | None = None) -> list[Tensor]: ...


@overload
def unpack(
    outputs: Mapping[str, Tensor], cu_seq_lens: Tensor, *, samples: int | None = None
) -> list[dict[str, Tensor]]: ...


@checked(PlanError)
def unpack(
    outputs: Tensor | Mapping[str, Tensor], cu_seq_lens: Tensor, *, samples: Natural | None = None
) -> list[Tensor] | list[dict[str, Tensor]]:
    """Cut what a model returns for a packed batch into one part for each sample.

    The parts are views: nothing is copied, and gradients flow through them. With
    `PackSpec(multiple_of=...)` the padding of a sample is a part of it; its labels are -100.

    Args:
        outputs: logits, hidden states, losses of tokens, labels: `[1, T, ...]` or `[T, ...]`; or a
            dict of such tensors, which gives a dict for each sample.
        cu_seq_lens: int [S + 1], `cu_seq_lens_q` of the batch. On a GPU it is read from there,
            which waits for the GPU; a copy from before the step saves that.
        samples: number of samples of the batch, such as `len(batch["key"])`. Needed for batches of
            constant shapes, whose other segments are padding. None gives every segment.

    Raises:
        PlanError: the tensors do not fit together.

    Examples:
        >>> logits = torch.arange(10.0).reshape(1, 5, 2)
        >>> [tuple(part.shape) for part in datapipe.unpack(logits, torch.tensor([0, 3, 5]))]
        [(3, 2), (2, 2)]
    """
    bounds = _bounds(cu_seq_lens)
    segments = len(bounds) - 1
    if samples is not None and samples > segments:
        raise PlanError(
            f"samples={samples}: cu_seq_lens has {segments} segments; give the samples and the "
            "cu_seq_lens_q of one batch"
        )
    lengths = [stop - start for start, stop in pairwise(bounds)]
    if isinstance(outputs, Tensor):
        return list(torch.split(_tokens_first("outputs", outputs, bounds[-1]), lengths)[:samples])
    parts = {
        name: torch.split(_tokens_first(f"outputs[{name!r}]", values, bounds[-1]), lengths)
        for name, values in outputs.items()
    }
    count = segments if samples is None else samples
    return [{name: of[number] for name, of in parts.items()} for number in range(count)]


def _bounds(cu_seq_lens: Tensor) -> list[int]:
    if cu_seq_lens.ndim != 1 or cu_seq_lens.is_floating_point() or not len(cu_seq_lens):
        raise PlanError(
            f"cu_seq_lens is {cu_seq_lens.dtype} {list(cu_seq_lens.shape)}; give the "
            "cu_seq_lens_q of a packed batch, integers [samples + 1]"
        )
    bounds: list[int] = cu_seq_lens.tolist()
    if bounds[0] != 0 or sorted(bounds) != bounds:
        raise PlanError(
            f"cu_seq_lens {bounds[:8]} does not rise from 0; give the cu_seq_lens_q of the batch"
        )
    return bounds


def _tokens_first(name: str, values: object, length: int) -> Tensor:
    """Return a tensor of [T, ...]: the one row of a batch, or the tensor itself."""
    if not isinstance(values, torch.Tensor):
        raise PlanError(
            f"{name} is a {type(values).__name__}; give a tensor, such as the logits, or a dict of "
            "tensors"
        )
    if values.shape[:2] == (1, length):
        return values[0]
    if values.shape[:1] == (length,):
        return values
    raise PlanError(
        f"{name} is {list(values.shape)}, and cu_seq_lens ends at {length:,} tokens; give "
        f"[1, {length}, ...] or [{length}, ...] of the same batch. Losses need reduction='none', "
        "and shifted logits the dropped position"
    )
