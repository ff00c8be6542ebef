"""Ranks from a `DeviceMesh`: which of its dimensions carry data, and who compares plans."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from datapipe import PlanError
from datapipe.loader.distributed import check_agreement, resolve_ranks


@contextmanager
def process(rank: int, world: int) -> Iterator[None]:
    """Be one process of a group whose other processes do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def ranks_of(
    shape: tuple[int, ...], names: tuple[str, ...] | None, world: int
) -> list[tuple[int, int]]:
    """What every process of a mesh takes itself to be."""
    ranks = []
    for rank in range(world):
        with process(rank, world):
            ranks.append(resolve_ranks(None, None, mesh_of(shape, names)))
    return ranks


@pytest.mark.parametrize(
    ("shape", "names", "expected"),
    [
        ((4,), None, [0, 1, 2, 3]),
        ((2, 2), None, [0, 1, 2, 3]),
        ((4,), ("whatever",), [0, 1, 2, 3]),
        ((4,), ("tp",), [0, 0, 0, 0]),
        ((2, 2), ("cp", "tp"), [0, 0, 0, 0]),
        ((2, 2), ("dp", "tp"), [0, 0, 1, 1]),
        ((2, 2), ("pp", "dp"), [0, 1, 0, 1]),
        ((2, 2), ("data_parallel", "tensor_parallel"), [0, 0, 1, 1]),
        ((2, 2), ("replicate", "shard"), [0, 1, 2, 3]),
        ((2, 2, 2), ("dp_replicate", "dp_shard", "cp"), [0, 0, 1, 1, 2, 2, 3, 3]),
        ((2, 2, 2), ("pp", "dp_shard", "tp"), [0, 0, 1, 1, 0, 0, 1, 1]),
        ((2, 2, 2), ("fsdp", "Context-Parallel", "DDP"), [0, 1, 0, 1, 2, 3, 2, 3]),
        ((1, 4), ("custom", "dp"), [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_dimensions_that_carry_data_make_the_ranks(
    shape: tuple[int, ...], names: tuple[str, ...] | None, expected: list[int]
) -> None:
    ranks = ranks_of(shape, names, len(expected))
    assert ranks == [(rank, max(expected) + 1) for rank in expected]


def test_a_large_mesh_deals_every_share_to_as_many_peers() -> None:
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    for rank in (0, 37, 511):
        with process(rank, 512):
            share, shares = resolve_ranks(None, None, mesh_of((2, 4, 8, 2, 4), names))
        assert (share, shares) == (rank // 8 % 32, 32)


def test_a_slice_of_a_mesh_is_taken_at_its_word() -> None:
    with process(5, 8):
        mesh = mesh_of((4, 2), ("mine", "tp"))
        assert resolve_ranks(None, None, mesh["mine"]) == (2, 4)
        assert resolve_ranks(None, None, mesh["tp"]) == (0, 1)


@pytest.mark.parametrize("names", [("mine", "tp"), ("dp", "dp_cp"), ("dp", "my_dp")], ids=str)
def test_a_dimension_of_unknown_meaning_is_named(names: tuple[str, str]) -> None:
    with process(0, 4):
        unknown = names[0] if names[0] == "mine" else names[1]
        with pytest.raises(PlanError, match=rf"'{unknown}' of the mesh .*mesh=mesh\[\"dp\"\]"):
            resolve_ranks(None, None, mesh_of((2, 2), names))


def test_a_dimension_flattened_from_data_and_context_is_refused() -> None:
    with process(0, 4), pytest.raises(PlanError, match="dp_shard_cp"):
        resolve_ranks(None, None, mesh_of((4,), ("dp_shard_cp",)))


def test_the_mesh_that_accelerate_builds_is_understood() -> None:
    from accelerate.parallelism_config import ParallelismConfig

    config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2, tp_size=2)
    for rank in range(8):
        with process(rank, 8):
            mesh = config.build_device_mesh("cpu")
            assert resolve_ranks(None, None, mesh) == (rank // 2, 4)
            assert resolve_ranks(None, None, mesh["dp_shard"]) == (rank // 2 % 2, 2)


def test_a_mesh_wins_over_the_process_group_and_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with process(3, 4):
        assert resolve_ranks(None, None, mesh_of((2, 2), ("dp", "tp"))) == (1, 2)


@pytest.mark.parametrize("numbers", [(0, 1), (0, None), (None, 2)])
def test_a_mesh_beside_numbers_is_refused(numbers: tuple[Any, Any]) -> None:
    with process(0, 4), pytest.raises(PlanError, match="either the numbers or the mesh"):
        resolve_ranks(*numbers, mesh_of((4,)))


@pytest.mark.parametrize("mesh", ["dp", (2, 2)], ids=str)
def test_what_is_no_mesh_is_refused(mesh: Any) -> None:
    with pytest.raises(PlanError, match="is not a DeviceMesh"):
        resolve_ranks(None, None, mesh)


def test_a_process_outside_of_the_mesh_is_told_so() -> None:
    with process(3, 4), pytest.raises(PlanError, match="rank 3 of the process group is not in"):
        resolve_ranks(None, None, DeviceMesh("cpu", torch.arange(3)))


RANK = """
import json, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
import datapipe
from datapipe.loader.distributed import check_agreement
folder, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
out = {}

def refused(name, function, *arguments):
    try:
        function(*arguments)
        out[name] = ""
    except datapipe.PlanError as error:
        out[name] = str(error)

loader = datapipe.make_loader(folder, batch_size=4, mesh=mesh, num_workers=1,
                              image=datapipe.ImageSpec(size=8))
batches = list(loader)
out["keys"] = [batch["key"] for batch in batches]
out["valid"] = [batch["valid"].tolist() for batch in batches]
out["pixels"] = [batch["pixel_values"].double().sum().item() for batch in batches]
refused("one differs", check_agreement, f"{int(rank == 3):015x}", mesh)
refused("dp peers agree", check_agreement, f"{rank % 2:015x}", mesh["dp"])
refused("tp peers differ", check_agreement, f"{rank % 2:015x}", mesh["tp"])
part = DeviceMesh("cpu", torch.arange(3))
if rank < 3:
    refused("a part agrees", check_agreement, "0" * 15, part)
    refused("a part differs", check_agreement, f"{int(rank == 1):015x}", part)
dist.barrier()
dist.destroy_process_group()
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def ranks(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What four real processes saw, in a mesh of 2 (dp) by 2 (tp)."""
    store = tmp_path_factory.mktemp("mesh") / "store"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(packed), str(store), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    return [json.loads(process.communicate(timeout=120)[0]) for process in processes]


@pytest.mark.campaign
def test_tensor_parallel_peers_get_identical_batches(ranks: list[dict[str, Any]]) -> None:
    for name in ("keys", "valid", "pixels"):
        assert ranks[0][name] == ranks[1][name]
        assert ranks[2][name] == ranks[3][name]
    assert ranks[0]["keys"] != ranks[2]["keys"]


@pytest.mark.campaign
def test_data_parallel_peers_share_the_epoch(ranks: list[dict[str, Any]]) -> None:
    seen = [
        key
        for rank in (ranks[0], ranks[2])
        for keys, valid in zip(rank["keys"], rank["valid"], strict=True)
        for key, ok in zip(keys, valid, strict=True)
        if ok
    ]
    assert len(ranks[0]["keys"]) == len(ranks[2]["keys"])
    assert len(seen) == len(set(seen)) == 37


@pytest.mark.campaign
def test_every_rank_of_a_mesh_learns_that_one_has_another_plan(ranks: list[dict[str, Any]]) -> None:
    assert ["ranks disagree" in rank["one differs"] for rank in ranks] == [True] * 4


@pytest.mark.campaign
def test_a_slice_compares_along_its_own_dimension(ranks: list[dict[str, Any]]) -> None:
    assert [rank["dp peers agree"] for rank in ranks] == [""] * 4
    assert ["ranks disagree" in rank["tp peers differ"] for rank in ranks] == [True] * 4


@pytest.mark.campaign
def test_processes_outside_of_the_mesh_need_not_make_a_loader(ranks: list[dict[str, Any]]) -> None:
    assert [rank.get("a part agrees") for rank in ranks] == ["", "", "", None]
    assert ["ranks disagree" in rank["a part differs"] for rank in ranks[:3]] == [True] * 3


def test_without_a_process_group_there_is_nobody_to_compare_with() -> None:
    assert not dist.is_initialized()
    check_agreement("0" * 15)
