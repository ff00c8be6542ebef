"""Training on several devices, started by `torchrun --nproc-per-node N -m examples.vlm.train`."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

TIMEOUT = 300.0  # seconds without progress after which a run ends, by default

_MAY_DIFFER = frozenset(
    {"shards", "tokenizer", "num_workers", "workers", "prefetch", "json", "profile"}
    | {"cache", "disk_cache", "device_cache"}
)
"""Options that each rank may set for itself. The loader compares dataset and tokenizer."""


class Ranks(NamedTuple):
    """Rank of this process, number of processes, its device, and their mesh if peers share work."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh | None = None

    @property
    def first(self) -> bool:
        """True if this one prints and saves."""
        return self.rank == 0

    def say(self, text: str) -> None:
        """Print a line on the first rank, to standard error."""
        if self.first:
            print(text, file=sys.stderr, flush=True)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Gather the tensor, on the CPU, of every rank."""
        if self.world_size == 1:
            return [tensor.cpu()]
        mine = tensor.to(self.device)
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(found, mine)
        return [each.cpu() for each in found]

    @property
    def learners(self) -> DeviceMesh | None:
        """Mesh of the ranks that average gradients, without tensor-parallel peers; None for all."""
        return None if self.mesh is None else self.mesh["dp", "cp"]._flatten("dp_cp")

    @property
    def shares(self) -> int:
        return self.world_size if self.learners is None else self.learners.size()

    def total(self, values: Tensor) -> Tensor:
        """Sum over all ranks, once for peers with the same batch; `values` lie on the device."""
        if self.world_size > 1:
            dist.all_reduce(values, group=self.mesh and self.mesh.get_group("dp"))
        return values

    def wait(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def agree(self, options: Mapping[str, Any]) -> None:
        """Compare the command line's options with those of all ranks."""
        if self.world_size == 1:
            return
        mine = {name: str(v) for name, v in options.items() if name not in _MAY_DIFFER}
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, json.dumps({**mine, "torch": torch.__version__}))
        if different := differences([json.loads(text) for text in found]):
            raise ValueError(
                f"ranks have different options: {'; '.join(different)}; start all with one command"
            )


def differences(found: list[dict[str, str]]) -> list[str]:
    """Return each option in which ranks differ, with the first two values; by rank."""
    texts = []
    names = dict.fromkeys(name for options in found for name in options)
    for name in names:
        values = [options.get(name, "missing") for options in found]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            option = name if name == "torch" else f"--{name.replace('_', '-')}"
            texts.append(f"{option} is {values[0]} on rank 0 and {values[other]} on rank {other}")
    return texts


@contextmanager
def joined(device: str, timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """Connect the processes that torchrun started, or return this one alone.

    An exchange fails after twice the `timeout`, so that the watch names the rank first; after half
    of it if TORCH_NCCL_DUMP_ON_TIMEOUT=1 asks for the flight recorder's files.
    """
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
    seconds = timeout * (0.5 if os.environ.get("TORCH_NCCL_DUMP_ON_TIMEOUT") == "1" else 2)
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=seconds))
    try:
        yield Ranks(dist.get_rank(), world_size, chosen)
    finally:
        dist.destroy_process_group()
