"""Ranks: from the environment, a process group or a `DeviceMesh`, and who compares plans."""

import json
import subprocess
import sys

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from datapipe import PlanError
from datapipe.cpus import available_cpus, cgroup_quota
from datapipe.loader.distributed import default_workers, resolve_ranks
from tests.case_files import cases
from tests.fake_ranks import fake_rank
from tests.waiting import PATIENCE


def test_nonsense_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(PlanError, match="RANK='first'"):
        resolve_ranks(None, None)


def test_ranks_come_from_torchrun(make, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    loader = make(batch_size=2, shuffle=False)
    assert (loader.options.rank, loader.options.world_size) == (1, 3)
    assert next(iter(loader))["key"] == ["000000001", "000000004"]


def test_numbers_win_over_a_process_group_and_a_mesh_and_these_over_torchrun(monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert resolve_ranks(0, 2) == (0, 2)
    with fake_rank(3, 4):
        assert resolve_ranks(0, 2) == (0, 2)
        assert resolve_ranks(None, None) == (3, 4)
        assert resolve_ranks(None, None, mesh_of((2, 2), ("dp", "tp"))) == (1, 2)


def test_what_was_made_before_its_process_group_is_refused(make, source):
    for each in (make, source):
        found, given = each(), each(rank=1, world_size=3)
        with fake_rank(1, 2):
            with pytest.raises(PlanError, match=r"made as rank 0 of 1, but .* says 1 of 2"):
                next(iter(found))
            next(iter(given))


def test_local_ranks_share_the_cpus(monkeypatch):
    cpus = available_cpus()
    for ranks in (1, 2, 10**6):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        assert default_workers() == max(1, cpus // ranks)


@pytest.mark.parametrize(
    ("content", "cpus"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 1 << 16)]
)
def test_a_container_limit_counts(tmp_path, content, cpus):
    (tmp_path / "cpu.max").write_text(content)
    assert cgroup_quota(tmp_path) == cpus
    assert available_cpus() >= 1


def run_ranks(program, *arguments):
    """Output of programs that run together; each is a rank with its own arguments."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, *map(str, each)], stdout=subprocess.PIPE, text=True
        )
        for each in arguments
    ]
    return [rank.communicate(timeout=PATIENCE)[0].strip() for rank in ranks]


def mesh_of(shape, names=None):
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


@pytest.mark.parametrize(("shape", "names", "ranks"), cases("loader/meshes"))
def test_dimensions_that_carry_data_make_the_ranks(shape, names, ranks):
    expected = list(map(int, ranks.split()))
    for process, rank in enumerate(expected):
        with fake_rank(process, len(expected)):
            mesh = mesh_of(tuple(map(int, shape.split())), tuple(names.split()) or None)
            assert resolve_ranks(None, None, mesh) == (rank, max(expected) + 1)


def test_a_slice_of_a_mesh_is_taken_at_its_word():
    with fake_rank(5, 8):
        mesh = mesh_of((4, 2), ("mine", "tp"))
        assert resolve_ranks(None, None, mesh["mine"]) == (2, 4)
        assert resolve_ranks(None, None, mesh["tp"]) == (0, 1)


@pytest.mark.parametrize(
    ("shape", "names", "said"),
    [
        ((2, 2), ("mine", "tp"), r"'mine' of the mesh .*mesh=mesh\[\"dp\"\]"),
        ((2, 2), ("dp", "dp_cp"), r"'dp_cp' of the mesh .*mesh=mesh\[\"dp\"\]"),
        ((2, 2), ("dp", "my_dp"), r"'my_dp' of the mesh .*mesh=mesh\[\"dp\"\]"),
        ((4,), ("dp_shard_cp",), "dp_shard_cp"),
    ],
    ids=str,
)
def test_a_dimension_of_unknown_or_mixed_meaning_is_named(shape, names, said):
    with fake_rank(0, 4), pytest.raises(PlanError, match=said):
        resolve_ranks(None, None, mesh_of(shape, names))


def test_the_mesh_that_accelerate_builds_is_understood():
    from accelerate.parallelism_config import ParallelismConfig

    config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2, tp_size=2)
    for rank in range(8):
        with fake_rank(rank, 8):
            mesh = config.build_device_mesh("cpu")
            assert resolve_ranks(None, None, mesh) == (rank // 2, 4)
            assert resolve_ranks(None, None, mesh["dp_shard"]) == (rank // 2 % 2, 2)


@pytest.mark.parametrize("numbers", [(0, 1), (0, None), (None, 2)])
def test_a_mesh_beside_numbers_is_refused(numbers):
    with fake_rank(0, 4), pytest.raises(PlanError, match="either the numbers or the mesh"):
        resolve_ranks(*numbers, mesh_of((4,)))


def test_a_process_outside_of_the_mesh_is_told_so():
    with fake_rank(3, 4), pytest.raises(PlanError, match="rank 3 of the process group is not in"):
        resolve_ranks(None, None, DeviceMesh("cpu", torch.arange(3)))


ON_A_MESH = """
import json, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
import datapipe
folder, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
out = {}

def ask(name, mesh=None, **options):
    try:
        datapipe.make_loader(folder, batch_size=4, image=None, mesh=mesh, **options)
        out[name] = True
    except datapipe.PlanError as error:
        assert "ranks disagree" in str(error)
        out[name] = False

ask("one differs", mesh, seed=int(rank == 3))
ask("peers agree", mesh["dp"], seed=rank % 2)
ask("peers differ", mesh["tp"], seed=rank % 2)
ask("all agree")
ask("exclude differs", exclude=[rank])
ask("steps differ", run=datapipe.RunSpec(max_steps=2 + rank // 3))
ask("global batches differ", run=datapipe.RunSpec(global_batch_size=16 << rank // 3))
part = DeviceMesh("cpu", torch.arange(3))
if rank < 3:
    ask("parts agree", part)
    ask("parts differ", part, seed=int(rank == 1))
dist.barrier()
dist.destroy_process_group()
print(json.dumps(out))
"""


@pytest.mark.campaign
def test_plans_are_compared_along_the_dimensions_of_a_mesh(packed, tmp_path):
    """Four processes, 2 (dp) by 2 (tp); the last one is outside of a mesh of three."""
    given = ((packed, tmp_path / "store", rank) for rank in range(4))
    for rank, answers in enumerate(map(json.loads, run_ranks(ON_A_MESH, *given))):
        assert len(answers) == (7 if rank == 3 else 9)
        for what, agreed in answers.items():
            assert agreed == what.endswith(" agree"), what
