"""Memory by phase of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from examples.vlm import train as program
from examples.vlm.memory import Phase, Phases, read_memory, table_of

from .vlm_runs import PACKED, fit


class Hungry(torch.nn.Linear):
    """Keeps 64 MB from its forward to its backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = super().forward(x).expand(8_000_000, 2).contiguous()
        return rows.square()


def test_phases_follow_a_step() -> None:
    model, cpu = Hungry(1, 2), torch.device("cpu")
    optimizer = torch.optim.SGD(model.parameters())
    phases = Phases(model, optimizer, cpu)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        model(torch.ones(1, 1))
    found = phases.close()
    assert [phase.name for phase in found] == list(Phases.ORDER)
    resident = [phase.bytes["resident"] for phase in found]
    assert resident[1] - resident[0] > 60_000_000
    assert resident[1] - resident[2] > 60_000_000
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_each_phase_is_read_where_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    before = model.weight.item()
    calls: list[str] = []

    def read(device: torch.device) -> dict[str, int]:
        learnt, moved = model.weight.grad is not None, model.weight.item() != before
        calls.append(f"{learnt} {moved}")
        return {"peak": len(calls)}

    monkeypatch.setattr("examples.vlm.memory.read_memory", read)
    phases = Phases(model, optimizer, torch.device("cpu"))
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    phases.close()
    assert calls == ["False False", "False False", "True False", "True True"]


def test_fragmentation_is_what_is_reserved_and_not_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = {
        "allocated_bytes.all.current": 60,
        "reserved_bytes.all.current": 80,
        "allocated_bytes.all.peak": 75,
        "inactive_split_bytes.all.current": 15,
    }
    reset: list[Any] = []
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: counts)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    gpu = torch.device("cuda", 0)
    phase = Phase("after forward", read_memory(gpu))
    assert phase.bytes == {"allocated": 60, "reserved": 80, "peak": 75, "split": 15}
    assert phase.fragmentation == pytest.approx(0.25)
    assert reset == [gpu]
    assert "25.0% of what is reserved is unused" in table_of([phase])
    assert Phase("", {"resident": 1}).fragmentation is None


def test_watching_phases_leaves_the_peak_of_a_run_as_it_is(
    shards: Path, small_model: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU every phase begins the count of torch anew."""
    peaks = iter([5, 70, 40, 6] * 2)
    monkeypatch.setattr(
        "examples.vlm.memory.read_memory", lambda device: {"resident": 1, "peak": next(peaks)}
    )
    monkeypatch.setattr(
        "examples.vlm.loop.memory_report",
        lambda model, optimizer, device: {"parameters": 1, "rest": 2, "peak": 3},
    )
    report = fit(shards, *PACKED, "--steps", 2, "--memory-phases")
    assert report.memory == {"parameters": 1, "rest": 69, "peak": 70}
    assert [phase.bytes["peak"] for phase in report.memory_phases] == [5, 70, 40, 6]


def test_a_run_tells_its_memory_by_phase(
    shards: Path, small_model: None, capsys: pytest.CaptureFixture[str]
) -> None:
    report = fit(shards, *PACKED, "--steps", 2, "--memory-phases")
    assert list(report.to_dict()["memory_phases"]) == list(Phases.ORDER)
    line = [str(shards), "--device", "cpu", "--pack", "300", "--steps", "2"]
    program.main([*line, "--memory-phases"])
    assert "after backward" in capsys.readouterr().out
    assert fit(shards, *PACKED, "--steps", 1).memory_phases == []
