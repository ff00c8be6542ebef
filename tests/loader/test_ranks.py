import subprocess
import sys

import pytest

from datapipe import PlanError, RunSpec
from datapipe.cpus import available_cpus, cgroup_quota
from datapipe.loader.distributed import check_ranks_hold, default_workers, resolve_ranks
from tests.fake_ranks import fake_rank
from tests.waiting import PATIENCE


def test_without_anything_there_is_one_rank_and_nonsense_in_the_environment_is_named(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert resolve_ranks(None, None) == (0, 1)
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


def test_a_process_group_wins_over_the_environment_and_numbers_given_over_both(monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert resolve_ranks(0, 2) == (0, 2)
    with fake_rank(0, 1):
        assert resolve_ranks(None, None) == (0, 1)


def test_ranks_that_came_later_than_the_loader_are_noticed():
    check_ranks_hold(0, 1)
    with fake_rank(0, 1):
        check_ranks_hold(0, 1)
        with pytest.raises(PlanError, match=r"rank 1 of 2, but the process group says 0 of 1"):
            check_ranks_hold(1, 2)


@pytest.mark.parametrize("numbers", [(0, None), (None, 2)])
def test_a_rank_without_a_world_size_is_refused(numbers):
    with pytest.raises(PlanError, match="give both"):
        resolve_ranks(*numbers)


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


RANK = """
import sys
import torch.distributed as dist
import datapipe
folder, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = eval(sys.argv[4], {"RunSpec": datapipe.RunSpec})
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
try:
    loader = datapipe.make_loader(folder, batch_size=4, num_workers=1,
                                  image=datapipe.ImageSpec(size=8), **options)
    keys = [key for b in loader for key, ok in zip(b["key"], b["valid"].tolist()) if ok]
    print(len(loader), *keys)
except datapipe.PlanError as error:
    print("PlanError", error)
finally:
    dist.destroy_process_group()
"""


def run_ranks(program, *arguments):
    """What programs print that run together; each is a rank with its own arguments."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, *map(str, each)], stdout=subprocess.PIPE, text=True
        )
        for each in arguments
    ]
    return [rank.communicate(timeout=PATIENCE)[0].strip() for rank in ranks]


def run_group(folder, store, *options):
    """What ranks of a process group print, by the options of each."""
    given = ((folder, store, rank, repr(each)) for rank, each in enumerate(options))
    return run_ranks(RANK, *given)


@pytest.mark.campaign
def test_ranks_of_a_process_group_share_an_epoch(packed, tmp_path):
    ranks = [out.split() for out in run_group(packed, tmp_path / "store", {}, {})]
    assert [steps for steps, *_ in ranks] == ["5", "5"]
    seen = [key for _, *keys in ranks for key in keys]
    assert len(seen) == len(set(seen)) == 37


@pytest.mark.campaign
@pytest.mark.parametrize(
    "other",
    [
        {"seed": 2},
        {"exclude": [3]},
        {"run": RunSpec(max_steps=2)},
        {"run": RunSpec(global_batch_size=16)},
    ],
    ids=str,
)
def test_ranks_that_disagree_are_told_so(packed, tmp_path, other):
    for out in run_group(packed, tmp_path / "store", {}, other):
        assert out.startswith("PlanError ranks disagree")
