"""Batches to the device: the next one is copied while the training loop works on this one.

A copy overlaps with training only if it is asked for before it is needed, and goes from page-locked
memory through a stream of its own. The host's memory has to stay as it is until the copy is done,
although a pool would reuse it. On CUDA the stream that trains waits for the copy, and the allocator
is told that this stream uses the memory too. On the CPU the same code runs without waiting.

Small tensors of a batch cross in one buffer. Most calls of torch give up the interpreter's lock,
and beside threads that decode, a call waits up to a millisecond until it has the lock again. So
calls are counted here, not bytes: whatever is done for each tensor keeps the lock (NumPy's views,
copies by `memoryview`, slices, `Tensor.data`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipe.decode.batched import normalize_batch, zero_outside
from datapipe.decode.normalize import Triple
from datapipe.errors import PlanError

Batch = dict[str, Any]
Carry = Callable[[Tensor], Tensor]
"""A function from a tensor of the host to one of the device."""

Complete = Callable[[Tensor, Carry], Tensor]
"""A function from the rows of `pixel_values` that were sent to all rows."""

PIXELS, VIDEO_PIXELS = "pixel_values", "pixel_values_videos"

NESTED = 5
"""Axes of `pixel_values` with one in front of those of its rows."""

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


class Sent(NamedTuple):
    """Batch that is being copied: `DevicePrefetcher.send` returns it and `receive` takes it."""

    batch: Batch
    mark: torch.cuda.Event | None


class DevicePrefetcher:
    """Copier of batches to a device. For one thread.

    With `mean_std`, of pixels from 0 to 1, `pixel_values` of uint8 cross the bus, a quarter of the
    bytes, and are normalised on the device. `channels_last` makes the values of a pixel adjacent,
    in `pixel_values` of [N, 3, H, W]. If they are `padded`, `image_sizes` of the batch has the
    size of each or `pixel_attention_mask` its patches, and the padding is zero after normalisation
    too. Raises `PlanError` if there is no such device, or options contradict each other.

    On CUDA, tensors of at most 1 MiB cross in one copy, and share a storage there, side by side:
    each can be changed alone, but saving one saves all.
    """

    def __init__(
        self,
        device: str | int | torch.device,
        *,
        mean_std: tuple[Triple, Triple] | None = None,
        # on the device; None is float32 with `mean_std`, else their own
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        padded: bool = False,
    ) -> None:
        self.device = resolve_device(device)
        self._mean_std = mean_std
        self._dtype = torch.float32 if dtype is None and mean_std is not None else dtype
        if self._dtype is not None:
            # Refuses options that contradict each other before there is a batch.
            normalize_batch(
                torch.empty(0, 3, 1, 1, dtype=torch.uint8, device="cpu"), mean_std, self._dtype
            )
        self._channels_last = channels_last
        self._padded = padded
        self.lane = CudaLane(self.device) if self.device.type == "cuda" else HostLane()
        self._in_flight: deque[tuple[torch.cuda.Event | None, list[Tensor]]] = deque()

    def send(
        self, batch: Batch, *, blank: Tensor | None = None, complete: Complete | None = None
    ) -> Sent:
        """Begin to copy the tensors of a batch, except those inside lists or dicts; return at once.

        The caller may drop the host's tensors, and must not write to them: they are kept until they
        have been copied. Other values stay as they are. Rows of `pixel_values` in `blank`, bool
        [rows] on the CPU, such as those of samples that were skipped, are zero on the device: zero
        before normalisation is not zero after it. `complete` returns all rows, not yet normalised.
        """
        self._drop_copied()
        kept: list[Tensor] = []

        def carry(tensor: Tensor) -> Tensor:
            there, host = self.lane.carry(tensor)
            if host is not None:
                kept.append(host)
            return there

        if blank is not None and not blank.numpy().any():
            blank = None
        # A tensor that was made in inference mode could not be trained on.
        with torch.inference_mode(False), self.lane.section():
            try:
                carried = self._carry_all(batch, carry)
                pixels = carried.get(PIXELS)
                if isinstance(pixels, Tensor):
                    nested = pixels.ndim == NESTED
                    pixels = pixels[0] if nested else pixels
                    if complete is not None:
                        pixels = carried[PIXELS] = complete(pixels, carry)
                    empty = None if blank is None else carry(blank[: len(pixels)])
                    shown = carried.get("pixel_attention_mask", carried.get("image_sizes"))
                    pixels = self._finish(pixels, empty, shown, int(nested))
                    carried[PIXELS] = pixels[None] if nested else pixels
                videos = carried.get(VIDEO_PIXELS)
                if isinstance(videos, Tensor):
                    # Their blank rows are behind those of images.
                    empty = None if blank is None else carry(blank[len(blank) - len(videos) :])
                    carried[VIDEO_PIXELS] = self._finish(videos, empty, None, 0)
            finally:
                mark = self.lane.mark()
                if kept:
                    self._in_flight.append((mark, kept))
        return Sent(carried, mark)

    def receive(self, sent: Sent) -> Batch:
        """Return the batch, for work queued on the current stream from now on; return at once."""
        tensors = [value for value in sent.batch.values() if isinstance(value, Tensor)]
        storages = {each.untyped_storage().data_ptr(): each for each in tensors}
        self.lane.hand_over(sent.mark, list(storages.values()))
        return sent.batch

    def _carry_all(self, batch: Batch, carry: Carry) -> Batch:
        tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        joins = self.lane.joins
        small = {name: each for name, each in tensors.items() if joins and is_small(each)}
        carried = {name: carry(each) for name, each in tensors.items() if name not in small}
        if small:
            together = list(small.values())
            carried |= zip(small, separate(carry(join(together)), together), strict=True)
        return batch | carried

    def _finish(self, pixels: Tensor, blank: Tensor | None, shown: Any, value: int) -> Tensor:
        """Return pixels, normalised, in the dtype and layout asked for; blank rows get `value`."""
        images = pixels.ndim == 4
        last = images and self._channels_last
        if self._dtype is None or (self._dtype == pixels.dtype and self._mean_std is None):
            return pixels.contiguous(memory_format=torch.channels_last) if last else pixels
        if pixels.dtype != torch.uint8:
            raise PlanError(
                f"pixel_values are {pixels.dtype} already, and torch.uint8 is what becomes "
                f"{self._dtype} on the device; let the loader make ImageSpec(normalize=None), or "
                "the numbers that the model takes"
            )
        # A patch holds all its red values first, then the green ones, then the blue ones.
        parts = pixels if images else pixels.reshape(len(pixels), 3, pixels.shape[1:].numel() // 3)
        done = normalize_batch(parts, self._mean_std, self._dtype, channels_last=last)
        done = done if images else done.view(pixels.shape)
        if self._padded and isinstance(shown, Tensor):
            if images:
                zero_outside(done, shown)
            else:
                done.mul_(shown[..., None])
        if blank is not None:
            done.masked_fill_(blank.view(-1, *(1 for _ in done.shape[1:])), value)
        return done

    def _drop_copied(self) -> None:
        while self._in_flight:
            mark = self._in_flight[0][0]
            if mark is not None and not mark.query():  # type: ignore[no-untyped-call]
                return
            self._in_flight.popleft()
