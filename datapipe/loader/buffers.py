"""Memory for batches, reused once nobody holds the batch any more.

A fresh buffer of some ten megabytes costs page faults at every step. The pool lends a NumPy view
of a buffer to torch; when the last tensor that shares it is gone, the view dies and its finalizer
gives the buffer back. What somebody still holds is never reused: then new memory is allocated.
"""

from __future__ import annotations

import math
import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Buffer = npt.NDArray[np.uint8]

# NumPy has no bfloat16: such tensors are lent as integers of the same size and viewed.
_NUMPY = {torch.uint8: np.uint8, torch.float32: np.float32, torch.bfloat16: np.int16}


class BufferPool:
    """Lends tensors on reused memory, keeping at most `keep` idle buffers."""

    def __init__(self, keep: int) -> None:
        # Finalizers may run in any thread and at any point, so nothing here takes a lock:
        # append and popleft of a deque are atomic.
        self._idle: deque[Buffer] = deque(maxlen=keep)

    @property
    def idle(self) -> int:
        """Buffers that wait to be lent."""
        return len(self._idle)

    def lend(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor with undefined content; its memory comes back by itself."""
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        buffer = self._take(size)
        view = buffer[:size].view(_NUMPY[dtype]).reshape(shape)
        finalizer = weakref.finalize(view, self._idle.append, buffer)
        finalizer.atexit = False
        tensor = torch.from_numpy(view)
        return tensor.view(dtype) if tensor.dtype != dtype else tensor

    def _take(self, size: int) -> Buffer:
        for _ in range(len(self._idle)):
            try:
                buffer = self._idle.popleft()
            except IndexError:
                break
            # A buffer twice too large is left to others; one too small is let go.
            if size <= buffer.size <= 2 * size:
                return buffer
            if buffer.size > 2 * size:
                self._idle.append(buffer)
        # Some slack, so that a batch with a few more images still fits.
        return np.empty(size + size // 8, np.uint8)
