"""Training on several devices, started by `torchrun --nproc-per-node N -m examples.vlm.train`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks(NamedTuple):
    """Rank of this process, number of processes, and its device."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """True if this one prints and saves."""
        return self.rank == 0

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Gather the tensor, on the CPU, of every rank."""
        if self.world_size == 1:
            return [tensor]
        mine = tensor.to(self.device)
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(found, mine)
        return [each.cpu() for each in found]

    def total(self, values: Tensor) -> Tensor:
        """Sum over all ranks; `values` lie on the device."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Connect the processes that torchrun started, or return this one alone.

    Args:
        device: "auto" for a GPU where there is one, "cuda" or "cpu".

    Raises:
        ValueError: there is no such device here.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device {device!r}: give auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device cuda: torch {torch.__version__} finds no GPU here; give --device cpu"
        )
    gpu = device != "cpu" and torch.cuda.is_available()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = torch.device("cpu")
    if gpu:
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(chosen)
    if world_size == 1:
        yield Ranks(0, 1, chosen)
        return
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield Ranks(dist.get_rank(), world_size, chosen)
    finally:
        dist.destroy_process_group()
