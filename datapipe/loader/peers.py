"""Batches that the first of some ranks loads for the others, which take the same samples.

Peers of tensor, context or pipeline parallelism take the same share of each step. Here one of them
reads and decodes, and the others receive its batches over the groups of their mesh. Every peer
follows the plan by itself, so lengths, epochs and states need no exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from datapipe.errors import DatapipeError, PlanError
from datapipe.loader.workers.ipc import dump_batch, load_tensors

_Layout = tuple[torch.Size, tuple[int, ...], torch.dtype]


class Peers:
    """Groups of a mesh along which batches are sent, one dimension after the other.

    A group whose members are the first of all later dimensions takes part: so a batch reaches each
    rank once. Batches are on `device`, and in page-locked memory if `pin`. `PlanError` if a group
    exchanges no tensors of the device.
    """

    def __init__(
        self, groups: Sequence[dist.ProcessGroup], device: torch.device, *, pin: bool
    ) -> None:
        self._device = device
        self._pin = pin
        places = [dist.get_rank(group) for group in groups]
        last = max((dim for dim, place in enumerate(places) if place), default=-1)
        self._source = None if last < 0 else groups[last]
        self._targets = groups[last + 1 :]
        for group in groups:
            backends = dist.get_backend_config(group)
            if f"{device.type}:" not in backends:
                raise PlanError(
                    f"workers decode_once: batches are on {device}, and the groups of the mesh "
                    f"exchange tensors of {backends}; give device= one of these, or "
                    "init_process_group('cpu:gloo,cuda:nccl')"
                )

    @property
    def first(self) -> bool:
        """True for the peer that loads."""
        return self._source is None

    def send(self, value: Any) -> None:
        """Send a value with tensors to the other peers. For the first of them."""
        for group in self._targets:
            tensors: list[Tensor] = []
            try:
                content = dump_batch(value, partial(_take, tensors))
            except Exception as error:  # an exception that cannot be pickled
                tensors = []
                failure = DatapipeError(f"{value!r} of another rank ({error})")
                content = dump_batch(failure, partial(_take, tensors))
            source = dist.get_global_rank(group, 0)
            dist.broadcast_object_list([content], source, group, self._device)
            for tensor in tensors:
                dist.broadcast(tensor, source, group)

    def receive(self) -> Any:
        """Wait for what the first peer sent, and pass it on; raise it if it is an exception."""
        assert self._source is not None
        source, content = dist.get_global_rank(self._source, 0), [b""]
        dist.broadcast_object_list(content, source, self._source, self._device)
        tensors: list[Tensor] = []  # to be filled, in the order of the sender's
        value = load_tensors(content[0], partial(self._allocate, tensors))
        for tensor in tensors:
            dist.broadcast(tensor, source, self._source)
        self.send(value)
        if isinstance(value, Exception):
            raise value
        return value

    def _allocate(self, tensors: list[Tensor], layout: _Layout) -> Tensor:
        """Return a tensor whose bytes, which are added to a list, are to be received."""
        shape, stride, dtype = layout
        size = shape.numel() * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype, device=self._device)
        memory = torch.empty(size, dtype=torch.uint8, device=self._device, pin_memory=self._pin)
        tensors.append(memory)
        return memory.view(dtype).as_strided(shape, stride)


def _take(tensors: list[Tensor], tensor: Tensor) -> _Layout:
    """Add the bytes of a tensor to a list, and return its layout."""
    # `channels_last` stays, gaps and repeated rows do not.
    stride = torch.empty_like(tensor, device="meta").stride()
    if tensor.numel():
        if tensor.stride() != stride:
            tensor = tensor.clone()
        tensors.append(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8))
    return tensor.shape, stride, tensor.dtype
