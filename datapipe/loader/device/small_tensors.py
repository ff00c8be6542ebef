"""Small tensors of a batch in one buffer, which crosses to a device in one copy.

Most calls of torch give up the interpreter's lock, and beside threads that decode, a call waits up
to a millisecond until it has the lock again. So calls are counted here, not bytes: whatever is done
for each tensor keeps the lock (NumPy's views, copies by `memoryview`, slices, `Tensor.data`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_MOST = 1 << 20  # bytes; the host copies them in 0.1 ms, faster than it would wait for the lock
_ALIGNMENT = 64  # bytes, of each tensor; kernels ask for 16
# Of batches, without those that NumPy does not know.
_DTYPES = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64}


def is_small(tensor: Tensor) -> bool:
    """Return whether `join` takes a tensor: contiguous, on the CPU, of 1 byte to 1 MiB."""
    return (
        tensor.device.type == "cpu"
        and tensor.dtype in _DTYPES
        and 0 < tensor.nbytes <= _MOST
        and tensor.is_contiguous()
    )


def join(tensors: Sequence[Tensor]) -> Tensor:
    """Return a buffer with copies of small tensors side by side: int64 [n]."""
    starts = _starts(tensors)
    buffer = np.empty(starts[-1] // 8, np.int64)
    content = buffer.data.cast("B")
    for tensor, start in zip(tensors, starts, strict=False):
        content[start : start + tensor.nbytes] = tensor.numpy().data.cast("B")
    return torch.from_numpy(buffer)


def separate(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return what `join` copied to a buffer, or to one on a device, with the shapes of `like`."""
    typed, found = {buffer.dtype: buffer}, []
    for tensor, start in zip(like, _starts(like), strict=False):
        if tensor.dtype not in typed:
            typed[tensor.dtype] = buffer.view(tensor.dtype)
        first = start // tensor.itemsize
        part = typed[tensor.dtype][first : first + tensor.numel()]
        part = part[(None,) * (tensor.ndim - 1)]  # with the strides of a tensor made alone
        part = part if part.shape == tensor.shape else part.view(tensor.shape)
        # Not a view for autograd, which would take a change of one tensor for one of all.
        found.append(part.data)
    return found


def _starts(tensors: Sequence[Tensor]) -> list[int]:
    """Return the offset of each tensor, and the end, in bytes."""
    sizes = (-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors)
    return list(itertools.accumulate(sizes, initial=0))
