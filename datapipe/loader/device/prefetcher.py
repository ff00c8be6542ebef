"""Batches to the device: the next one is copied while the training loop works on this one.

A copy overlaps with training only if it is asked for before it is needed, and goes from page-locked
memory through a stream of its own (`copy_stream.py`). The host's memory has to stay as it is until
the copy is done, although a pool would reuse it. On the CPU the same code runs without waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipe.decode.batched import normalize_batch, zero_outside
from datapipe.decode.normalize import Triple
from datapipe.errors import PlanError
from datapipe.loader.device.copy_stream import (
    CudaLane,
    HostLane,
    is_small,
    join,
    resolve_device,
    separate,
)

Batch = dict[str, Any]
Carry = Callable[[Tensor], Tensor]
"""A function from a tensor of the host to one of the device."""

Complete = Callable[[Tensor, Carry], Tensor]
"""A function from the rows of `pixel_values` that were sent to all rows."""

PIXELS, VIDEO_PIXELS = "pixel_values", "pixel_values_videos"

NESTED = 5
"""Axes of `pixel_values` with one in front of those of its rows."""


class Sent(NamedTuple):
    """Batch that is being copied: `DevicePrefetcher.send` returns it and `receive` takes it."""

    batch: Batch
    mark: torch.cuda.Event | None


class DevicePrefetcher:
    """Copier of batches to a device. For one thread.

    With `mean_std`, of pixels from 0 to 1, `pixel_values` of uint8 cross the bus, a quarter of the
    bytes, and are normalised on the device. `channels_last` makes the values of a pixel adjacent,
    in `pixel_values` of [N, 3, H, W]. If they are `padded` to the largest image, `image_sizes` of
    the batch has the size of each, and the padding is zero after normalisation too. Raises
    `PlanError` if there is no such device, or options contradict each other.

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
                    sizes = carried.get("image_sizes")
                    pixels = self._finish(pixels, empty, sizes, int(nested))
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

    def _finish(self, pixels: Tensor, blank: Tensor | None, sizes: Any, value: int) -> Tensor:
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
        if images and self._padded and isinstance(sizes, Tensor):
            zero_outside(done, sizes)
        if blank is not None:
            done.masked_fill_(blank.view(-1, *(1 for _ in done.shape[1:])), value)
        return done

    def _drop_copied(self) -> None:
        while self._in_flight:
            mark = self._in_flight[0][0]
            if mark is not None and not mark.query():  # type: ignore[no-untyped-call]
                return
            self._in_flight.popleft()
