"""Queue of copies to a device: a stream beside the consumer's on CUDA, immediate on the CPU.

On CUDA two things must be right: the stream that trains waits for the copy, and the allocator is
told that this stream uses the memory too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from datapipe.errors import PlanError


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
