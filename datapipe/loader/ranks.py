"""Which rank this process is, and how many workers it should use."""

from __future__ import annotations

import os

import torch.distributed as dist

from datapipe.cpus import available_cpus
from datapipe.errors import PlanError
from datapipe.plan.plan import check_ranks


def resolve_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): as given, else of `torch.distributed`, else of torchrun, else (0, 1).

    Raises:
        PlanError: only one of them is given, or they are impossible.
    """
    if (rank is None) != (world_size is None):
        raise PlanError(
            f"rank={rank} and world_size={world_size}: give both, or none to take them from "
            "torch.distributed or torchrun"
        )
    if rank is None or world_size is None:
        rank, world_size = _from_environment()
    check_ranks(rank, world_size)
    return rank, world_size


def _from_environment() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    values = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in values:
        return 0, 1
    try:
        return int(values[0] or ""), int(values[1] or "")
    except ValueError:
        raise PlanError(
            f"RANK={values[0]!r} and WORLD_SIZE={values[1]!r} in the environment are not numbers"
        ) from None


def default_workers() -> int:
    """Threads for one rank: this machine's CPUs shared among its local ranks, at least 1."""
    try:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:
        local = 1
    return max(1, available_cpus() // max(1, local))
