"""Queue of copies to a device: a stream beside the consumer's on CUDA, immediate on the CPU.

On CUDA two things must be right: the stream that trains waits for the copy, and the allocator is
told that this stream uses the memory too.

Small tensors of a batch cross in one buffer. Most calls of torch give up the interpreter's lock,
and beside threads that decode, a call waits up to a millisecond until it has the lock again. So
calls are counted here, not bytes: whatever is done for each tensor keeps the lock (NumPy's views,
copies by `memoryview`, slices, `Tensor.data`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipe.errors import PlanError

_MOST = 1 << 20  # bytes; the host copies them in 0.1 ms, faster than it would wait for the lock
_ALIGNMENT = 64  # bytes, of each tensor; kernels ask for 16
# Of batches, without those that NumPy does not know.
_DTYPES = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64}


def resolve_device(device: str | int | torch.device) -> torch.device:
    """Return the CPU or a CUDA device, with its number; raise `PlanError` if there is none."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise PlanError(f"device {device!r} is not known: {error}; give 'cpu' or 'cuda'") from error
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise PlanError(
            f"device {device!r}: batches can be sent to 'cpu' or 'cuda'; for {found.type} take "
            "them on the CPU and move them yourself"
        )
    if not torch.cuda.is_available():
        raise PlanError(
            f"device {device!r}: torch finds no CUDA device; install a build of torch with CUDA "
            "and its driver, or take device='cpu'"
        )
    number = torch.cuda.current_device() if found.index is None else found.index
    if not 0 <= number < torch.cuda.device_count():  # torch keeps the lowest 8 bits of a number
        raise PlanError(
            f"device {device!r}: there are {torch.cuda.device_count()} CUDA devices, from cuda:0 on"
        )
    return torch.device("cuda", number)


class HostLane:
    """Lane of the CPU: every copy is done when it is asked for."""

    joins = False
    """True if each call costs time, so that small tensors are carried in one buffer."""

    def section(self) -> AbstractContextManager[Any]:
        """Return a context in which torch's kernels are queued in the lane."""
        return nullcontext()

    def carry(self, tensor: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the tensor on the device, and the host's one that must stay until it is copied."""
        return tensor.cpu(), None

    def mark(self) -> torch.cuda.Event | None:
        """Return the event after all that is queued; None if there is nothing to wait for."""
        return None

    def hand_over(self, mark: torch.cuda.Event | None, tensors: Sequence[Tensor]) -> None:
        """Make the consumer's stream wait for `mark`, and keep `tensors` as long as it needs."""


class CudaLane(HostLane):
    """Lane of a CUDA device: a stream beside the consumer's."""

    joins = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._consumer = torch.cuda.current_stream(device)

    def section(self) -> AbstractContextManager[Any]:
        self._consumer = torch.cuda.current_stream(self._device)
        return torch.cuda.stream(self._stream)

    def carry(self, tensor: Tensor) -> tuple[Tensor, Tensor | None]:
        if tensor.is_cuda:
            # Its kernels may still be queued, and its memory may be freed before it is read.
            self._stream.wait_stream(self._consumer)
            tensor.record_stream(self._stream)
            return tensor.to(self._device, non_blocking=True), None
        # The host would wait for copies from pageable memory, and for all before them.
        host = tensor.pin_memory() if tensor.numel() else tensor
        return host.to(self._device, non_blocking=True), host

    def mark(self) -> torch.cuda.Event | None:
        return self._stream.record_event()  # type: ignore[no-any-return]

    def hand_over(self, mark: torch.cuda.Event | None, tensors: Sequence[Tensor]) -> None:
        assert mark is not None
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_event(mark)
        for tensor in tensors:
            # Else the allocator would reuse its memory once this stream alone is through.
            tensor.record_stream(consumer)


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
