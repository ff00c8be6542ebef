"""Rank, world size and number of workers of this process."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from datapipe.cpus import available_cpus
from datapipe.declared import shorten
from datapipe.errors import PlanError
from datapipe.plan.steps import check_ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Words in the names of dimensions of PyTorch's FSDP2, torchtitan, Accelerate and Lightning.
_DATA = frozenset({"dp", "data", "ddp", "fsdp", "hsdp", "replicate", "shard", "batch"})
_MODEL = frozenset(
    {"tp", "cp", "sp", "pp", "ep", "mp", "tensor", "context", "sequence", "seq", "pipe"}
    | {"pipeline", "stage", "expert", "model", "ring", "ulysses"}
)


def resolve_ranks(
    rank: int | None, world_size: int | None, mesh: DeviceMesh | None = None
) -> tuple[int, int]:
    """Return (rank, world size): as given, or of a mesh, the process group or torchrun, or (0, 1).

    Of a mesh, dimensions that carry data are flattened in their order. Model-parallel ones (tensor,
    context, pipeline, ...) are left out, so that such peers take the same share. A mesh with one
    dimension, or without names, is taken whole. `PlanError` if what is given is not one of these,
    or it is unclear which dimensions carry data.
    """
    if mesh is not None:
        if rank is not None or world_size is not None:
            raise PlanError(
                f"rank={rank} and world_size={world_size} are given with a mesh: give either the "
                "numbers or the mesh"
            )
        return _from_mesh(mesh)
    if (rank is None) != (world_size is None):
        raise PlanError(
            f"rank={rank} and world_size={world_size}: give both, or neither to take them from "
            "torch.distributed or torchrun"
        )
    if rank is None or world_size is None:
        rank, world_size = _from_environment()
    check_ranks(rank, world_size)
    return rank, world_size


def _from_mesh(mesh: DeviceMesh) -> tuple[int, int]:
    if not hasattr(mesh, "get_coordinate"):
        raise PlanError(
            f"mesh {shorten(mesh)} is not a DeviceMesh; give what "
            "torch.distributed.device_mesh.init_device_mesh returned"
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise PlanError(
            f"rank {dist.get_rank()} of the process group is not in the mesh {mesh}; make the "
            "loader only in its processes, or give a mesh that holds this one too"
        )
    rank, size = 0, 1
    for dim in _data_dims(mesh):
        rank = rank * mesh.size(dim) + coordinate[dim]
        size *= mesh.size(dim)
    return rank, size


def peer_groups(mesh: DeviceMesh | None) -> list[dist.ProcessGroup]:
    """Return the groups of a mesh along the dimensions whose ranks see the same samples.

    Dimensions of one rank are left out. `PlanError` without a mesh.
    """
    if mesh is None:
        raise PlanError(
            "workers decode_once needs a mesh, which says which ranks take the same samples; give "
            "mesh= too"
        )
    carry = _data_dims(mesh)
    peers = [dim for dim in range(mesh.ndim) if dim not in carry and mesh.size(dim) > 1]
    return [mesh.get_group(dim) for dim in peers]


def _data_dims(mesh: DeviceMesh) -> list[int]:
    names = mesh.mesh_dim_names
    if names is None:
        return list(range(mesh.ndim))
    dims = []
    for dim, name in enumerate(names):
        carries = _carries_data(name, alone=len(names) == 1)
        # A dimension of one rank changes nothing, whatever its kind.
        if carries is None and mesh.size(dim) > 1:
            raise PlanError(
                f"dimension {name!r} of the mesh {tuple(names)}: it is not known whether its ranks "
                "take different samples or the same; give only the dimensions that take different "
                'ones, like mesh=mesh["dp"], or rank= and world_size='
            )
        if carries:
            dims.append(dim)
    return dims


def _carries_data(name: str, *, alone: bool) -> bool | None:
    """Return whether ranks along a dimension see different samples; None if its name is unclear."""
    words = set(re.split(r"[^a-z]+", name.lower())) - {"", "parallel"}
    if words & _MODEL:
        # "dp_cp" is flattened from both kinds.
        return False if words <= _MODEL else None
    return True if alone or (words and words <= _DATA) else None


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
            "numbers; make the loader once the process group is there (under Lightning, in "
            "train_dataloader), set both, or give rank= and world_size="
        ) from None


def check_ranks_hold(rank: int, world_size: int) -> None:
    """Raise `PlanError` if a process group has other ranks than `resolve_ranks` returned.

    Without it, every rank of a loader that was made before its process group would see every
    sample. No collective call.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    if (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
        raise PlanError(
            f"this loader was made as rank {rank} of {world_size}, but the process group says "
            f"{dist.get_rank()} of {dist.get_world_size()}; make the loader once the process group "
            "is there (under Lightning, in train_dataloader), or give rank= and world_size="
        )


def check_agreement(digest: str, mesh: DeviceMesh | None = None) -> None:
    """Raise `PlanError` on every rank of the process group if any of them has another digest.

    A collective call; it does nothing outside of a process group. Ranks that disagree would each
    follow a plan of their own, and see some samples twice and others never. Of a mesh only its
    ranks are compared, since others may make no loader. A slice compares along its own dimensions,
    so give the whole mesh to include tensor-parallel peers.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    value = int(digest[:15], 16)  # 60 bits, so that an int64 holds it and its negative
    extremes = torch.tensor([value, -value], device="cpu")
    whole = mesh is None or mesh.size() == dist.get_world_size()
    # A maximum along one dimension after the other is the maximum over the mesh.
    for group in [dist.group.WORLD] if whole or mesh is None else mesh.get_all_groups():
        extremes = extremes.to("cuda" if dist.get_backend(group) == "nccl" else "cpu")
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    largest, smallest = extremes[0].item(), -extremes[1].item()
    if largest != smallest:
        raise PlanError(
            f"ranks disagree on the dataset or on the options of the plan (rank {dist.get_rank()} "
            f"has digest {digest[:15]}); give every rank the same dataset, seed, shuffle, "
            "batch_size, global_batch_size, drop_last, exclude, epochs and max_steps"
        )


def default_workers() -> int:
    """Return the CPUs of one rank: those of the machine over its local ranks, at least 1."""
    try:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:
        local = 1
    return max(1, available_cpus() // max(1, local))
