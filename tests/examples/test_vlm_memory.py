"""Memory by phase of a step."""

from contextlib import closing
from dataclasses import replace

import pytest
import torch

from examples.vlm import train as program
from examples.vlm.measure.memory import Allocations, Phases, table_of
from examples.vlm.measure.report import with_costs

from .vlm_runs import PACKED, fit

PHASES = (*PACKED, "--steps", 3, "--memory-phases")


CPU = torch.device("cpu")
MB = 10**6


class Hungry(torch.nn.Linear):
    """Takes 32 MB in its forward pass, and keeps 64 MB to its backward pass."""

    def forward(self, x):
        torch.zeros(8 * MB)
        rows = super().forward(x).expand(8 * MB, 2).contiguous()
        return rows.square().sum()


def test_phases_follow_a_step_on_the_cpu():
    model = Hungry(1, 2)
    optimizer = torch.optim.SGD(model.parameters())
    phases = Phases(model, optimizer, CPU)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).backward()
        optimizer.step()
    with torch.no_grad():
        model(torch.ones(1, 1))
    phases.close()
    found = phases.found()
    assert list(found) == list(Phases.ORDER)
    before, forward, backward, step = found.values()
    assert before == {"allocated": 16, "peak": 16}  # four parameters
    assert forward["allocated"] == pytest.approx(64 * MB, rel=0.01)
    assert forward["peak"] == pytest.approx(128 * MB, rel=0.01)  # with the squares
    assert backward["allocated"] < MB
    assert backward["peak"] > 127 * MB
    assert step["peak"] < MB
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_phases_end_with_a_step_that_fails():
    model = Hungry(1, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with (
        pytest.raises(RuntimeError, match="shapes cannot be multiplied"),
        closing(Phases(model, optimizer, CPU)),
    ):
        model(torch.ones(1, 3))
    with Allocations() as seen:  # no other profiler runs
        kept = torch.zeros(MB)
    assert seen.levels()[""] == (kept.nbytes, kept.nbytes)


@pytest.mark.usefixtures("small_model")
def test_phases_tell_what_recomputing_saves(shards):
    reports = [fit(shards, *PHASES, *more) for more in ((), ("--recompute",))]
    kept, again = (report.to_dict()["memory_phases"] for report in reports)
    assert list(kept) == list(Phases.ORDER)
    assert again["before forward"] == kept["before forward"]
    forward = "after forward"
    assert again[forward]["allocated"] < 0.6 * kept[forward]["allocated"]
    assert again["after backward"]["peak"] < 0.8 * kept["after backward"]["peak"]
    # The profiler takes the size of what was there before it began from another tensor's, if any.
    after = kept["after step"]["allocated"]
    assert again["after step"]["allocated"] == pytest.approx(after, rel=1e-3)


def test_each_phase_of_a_gpu_is_read_where_it_says_and_leaves_the_peak_of_a_run_as_it_is(
    shards, small_model, monkeypatch
):
    """On a GPU every phase begins the count of torch anew."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    before = model.weight.item()
    peaks, calls = iter([5, 70, 40, 6]), []

    def read(device):
        calls.append((model.weight.grad is not None, model.weight.item() != before))
        return {"peak": next(peaks)}

    monkeypatch.setattr("examples.vlm.measure.memory.read_memory", read)
    with closing(Phases(model, optimizer, torch.device("cuda"))) as phases:
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    assert calls == [(False, False), (False, False), (True, False), (True, True)]
    report = fit(shards, *PACKED, "--steps", 2)
    counted = replace(report, memory={"parameters": 1, "rest": 2, "peak": 3})
    told = with_costs(counted, phases, None)
    assert told.memory == {"parameters": 1, "rest": 69, "peak": 70}
    assert [sizes["peak"] for sizes in told.memory_phases.values()] == [5, 70, 40, 6]


def test_fragmentation_is_what_is_reserved_and_not_allocated():
    sizes = {"allocated": 60, "reserved": 80, "peak": 75, "split": 15}
    assert "25.0% of what is reserved is unused" in table_of({"after forward": sizes})
    assert "unused" not in table_of({"": {"resident": 1}})


def test_the_command_tells_memory_by_phase(shards, small_model, capsys):
    program.main([str(shards), "--device", "cpu", *map(str, PHASES)])
    assert "after backward" in capsys.readouterr().out
    assert fit(shards, *PACKED, "--steps", 1).memory_phases == {}
