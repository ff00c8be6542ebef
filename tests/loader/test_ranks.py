from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from datapipe import Loader, PlanError
from datapipe.cpus import _cgroup_quota, available_cpus
from datapipe.loader.ranks import default_workers, resolve_ranks


def test_without_anything_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert resolve_ranks(None, None) == (0, 1)


def test_ranks_come_from_torchrun(
    make: Callable[..., Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    loader = make(batch_size=2, shuffle=False)
    assert (loader.rank, loader.world_size) == (1, 3)
    assert next(iter(loader))["key"] == ["000000001", "000000004"]


def test_ranks_given_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert resolve_ranks(0, 2) == (0, 2)


def test_a_process_group_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert resolve_ranks(None, None) == (0, 1)
    finally:
        dist.destroy_process_group()


def test_nonsense_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(PlanError, match="RANK='first'"):
        resolve_ranks(None, None)


def test_local_ranks_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datapipe.loader.ranks.available_cpus", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert default_workers() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert default_workers() == 1


@pytest.mark.parametrize(
    ("content", "cpus"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 1 << 16)]
)
def test_a_container_limit_counts(tmp_path: Path, content: str, cpus: int) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert _cgroup_quota(tmp_path) == cpus
    assert available_cpus() >= 1
