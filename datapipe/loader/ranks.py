"""Which rank this process is, and how many workers it should use."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from datapipe.cpus import available_cpus
from datapipe.errors import PlanError


def resolve_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): as given, else of `torch.distributed`, else of torchrun, else (0, 1).

    Raises:
        PlanError: only one of them is given, or the environment holds no numbers.
    """
    if (rank is None) != (world_size is None):
        raise PlanError(
            f"rank={rank} and world_size={world_size}: give both, or none to take them from "
            "torch.distributed or torchrun"
        )
    if rank is None or world_size is None:
        return _from_environment()
    return rank, world_size


def _from_environment() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    values = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if values == (None, None):
        return 0, 1
    try:
        return int(values[0] or ""), int(values[1] or "")
    except ValueError:
        raise PlanError(
            f"RANK={values[0]!r} and WORLD_SIZE={values[1]!r} in the environment are not two "
            "numbers; set both, or give rank= and world_size="
        ) from None


def check_agreement(digest: str) -> None:
    """Compare a hex digest of dataset and options with all ranks of the process group.

    A collective call; does nothing outside of a process group. Ranks that disagreed would each
    follow a plan of their own, and see some samples twice and others never.

    Raises:
        PlanError: on every rank, if any of them has another digest.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    value = int(digest[:15], 16)  # 60 bits, so that an int64 holds it and its negative
    on_gpu = dist.get_backend() == "nccl"
    extremes = torch.tensor([value, -value], device="cuda" if on_gpu else "cpu")
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    largest, smallest = extremes[0].item(), -extremes[1].item()
    if largest != smallest:
        raise PlanError(
            f"ranks disagree on the dataset or on the options of the plan (rank {dist.get_rank()} "
            f"has digest {digest[:15]}); give every rank the same dataset, seed, shuffle, "
            "batch_size and drop_last"
        )


def default_workers() -> int:
    """Threads for one rank: this machine's CPUs shared among its local ranks, at least 1."""
    try:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:
        local = 1
    return max(1, available_cpus() // max(1, local))
