"""Memory for batches, reused once the batch is gone.

A fresh buffer of some ten megabytes costs page faults at every step. The pool keeps a few buffers
and gives torch NumPy views of them. A view refers to its buffer, and every tensor on it to the
view, so by Python's reference count a buffer is free if only the pool refers to it. A buffer that
is still in use is never reused: then new memory is allocated. No code runs when a batch is dropped,
unlike with a finalizer, in which an interrupt could be lost.
"""

from __future__ import annotations

import logging
import math
import sys
from functools import cache

import numpy as np
import torch
from torch import Tensor

from datapipe.array_types import UInt8
from datapipe.decode.normalize import STORED
from datapipe.errors import PlanError

logger = logging.getLogger(__name__)

_ALIGNMENT = 64  # bytes; a cache line, as kernels like it


def _references(buffers: list[UInt8], number: int) -> int:
    return sys.getrefcount(buffers[number])


_FREE = _references([np.empty(0, np.uint8)], 0)  # by a list alone, as this interpreter counts them


def is_free(buffers: list[UInt8], number: int) -> bool:
    """Return whether only the list refers to one of its buffers."""
    return _references(buffers, number) == _FREE


@cache
def can_pin() -> bool:
    """Return whether there is page-locked memory; warn once if there is none."""
    found = torch.accelerator.is_available()
    if not found:
        logger.warning("pin_memory=True has no effect: torch finds no accelerator")
    return found


class BufferPool:
    """Pool of memory for tensors; it keeps the `keep` newest buffers. For one thread.

    With `pin`, memory is page-locked, from torch's own cache, which knows of copies in progress.
    """

    def __init__(self, keep: int, *, pin: bool = False) -> None:
        self._keep = keep
        self.pin = pin
        self._buffers: list[UInt8] = []

    @property
    def idle(self) -> int:
        """Number of free buffers."""
        return len(self._idle())

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor with undefined content; its memory comes back by itself."""
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        if self.pin:
            return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
        buffer = self._take(size + _ALIGNMENT)
        start = -buffer.ctypes.data % _ALIGNMENT
        view = buffer[start : start + size].view(STORED[dtype]).reshape(shape)
        tensor = torch.from_numpy(view)
        return tensor.view(dtype) if tensor.dtype != dtype else tensor

    def _idle(self) -> list[int]:
        return [n for n in range(len(self._buffers)) if is_free(self._buffers, n)]

    def _take(self, size: int) -> UInt8:
        idle = self._idle()
        for number in idle:
            # A buffer twice as large is left to larger batches.
            if size <= self._buffers[number].size <= 2 * size:
                return self._buffers[number]
        if len(self._buffers) == self._keep:
            # A free buffer that is too small, or the oldest, which stays with its batch.
            del self._buffers[idle[0] if idle else 0]
        # Some slack, so that a batch with a few more images fits too.
        try:
            self._buffers.append(np.empty(size + size // 8, np.uint8))
        except MemoryError:
            raise PlanError(
                f"a batch takes {size:,} bytes, more than this machine has; give a smaller "
                "batch_size, or smaller images"
            ) from None
        return self._buffers[-1]
