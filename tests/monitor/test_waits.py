"""Calls that wait, named with their lines in a few turns of a loop, and nothing left behind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import datapipe
from datapipe.monitor.waits import WaitProbe


class Clock:
    """Nanoseconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


class SlowReads(TorchFunctionMode):
    """A device that needs 30 ms before a value of it can be read."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "item":
            self.clock.sleep(0.03)
        return func(*args, **(kwargs or {}))


class Looking:
    """A probe on a virtual clock, in a part of a turn."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.part = ""
        self.probe = WaitProbe(self.clock, lambda: self.part)

    def __enter__(self) -> Looking:
        self.probe.begin(self.clock.now)
        assert self.probe.looks
        return self

    def __exit__(self, *_: object) -> None:
        self.probe.end(counts=True)


@pytest.fixture
def looking() -> Iterator[Looking]:
    found = Looking()
    with SlowReads(found.clock):
        yield found


def calls(looking: Looking) -> Counter[str]:
    """How often each function was called."""
    found: Counter[str] = Counter()
    for line in looking.probe.lines():
        found[line.call] += line.count
    return found


def test_a_call_that_waits_is_named_with_its_line_and_time(looking: Looking) -> None:
    with looking:
        looking.clock.sleep(0.01)
        value = torch.tensor(2.5).item()  # here
        looking.clock.sleep(0.02)
    assert value == 2.5
    (line,) = looking.probe.lines()
    assert line.call == "Tensor.item"
    assert line.count == line.turns == 1
    assert line.seconds == pytest.approx(0.03)
    file, _, number = line.where.rpartition(":")
    lines = Path(__file__).read_text().splitlines()
    assert Path(__file__).match(file)
    assert lines[int(number) - 1].endswith("# here")
    assert looking.probe.shares().synchronisation == pytest.approx(0.5)


def test_time_in_the_step_and_outside_are_told_apart(looking: Looking) -> None:
    with looking:
        looking.part = "step"
        torch.tensor(1.0).item()
        looking.part = ""
        torch.tensor(1.0).item()
        looking.clock.sleep(0.06)
    shares = looking.probe.shares()
    assert shares.synchronisation == pytest.approx(0.5)
    assert shares.outside == pytest.approx(0.25)


def test_a_copy_on_purpose_is_no_hidden_synchronisation(looking: Looking) -> None:
    with looking:
        looking.part = "transfer"
        torch.tensor(1.0).item()
    assert looking.probe.lines() == ()


def test_values_read_in_every_way_are_found(looking: Looking) -> None:
    value = torch.tensor([1.5])
    with looking:
        value.item()
        value.tolist()
        value.cpu()
        float(value)
        bool(value)
        int(value)
        [10, 20][torch.tensor(1)]
        repr(value)
        f"{value[0]:.1f}"
        if value > 1:
            pass
        value.numpy()
    assert calls(looking) == {
        "Tensor.item": 1,
        "Tensor.tolist": 1,
        "Tensor.cpu": 1,
        "Tensor.__float__": 1,
        "Tensor.__bool__": 2,
        "Tensor.__int__": 1,
        "Tensor.__index__": 1,
        "Tensor.__repr__": 1,
        "Tensor.__format__": 1,
        "Tensor.numpy": 1,
    }


def test_work_on_the_cpu_is_no_waiting(looking: Looking) -> None:
    value = torch.arange(6.0)
    with looking:
        value.nonzero()
        value[value > 2]
        value.to(torch.float64).to("cpu")
    assert looking.probe.lines() == ()


def test_masks_and_copies_of_a_device_wait(looking: Looking) -> None:
    class OnDevice(torch.Tensor):
        is_cpu = False

    value = torch.arange(6.0).as_subclass(OnDevice)
    mask = torch.arange(6) > 2
    with looking:
        value.nonzero()
        value.masked_select(mask)
        value[mask]
        value[2:]
        value.to("cpu")
        value.to("cpu", non_blocking=True)
        value.to(torch.float64)
        value.to(device=torch.device("cpu"))
    assert calls(looking) == {
        "Tensor.nonzero": 1,
        "Tensor.masked_select": 1,
        "Tensor.__getitem__": 1,
        "Tensor.to": 2,
    }


def test_what_a_call_raises_comes_through_and_counts(looking: Looking) -> None:
    with looking, pytest.raises(RuntimeError, match="2 elements"):
        torch.tensor([1.0, 2.0]).item()
    assert [line.call for line in looking.probe.lines()] == ["Tensor.item"]


def test_other_threads_are_not_looked_at(looking: Looking) -> None:
    with looking:
        thread = threading.Thread(target=lambda: torch.tensor(1.0).item())
        thread.start()
        thread.join()
    assert looking.probe.lines() == ()


def test_what_happens_every_hundredth_turn_is_not_the_rule(looking: Looking) -> None:
    for turn in range(3):
        with looking:
            if turn == 1:
                torch.tensor(1.0).item()
            looking.clock.sleep(0.01)
    assert looking.probe.shares().synchronisation == 0.0
    assert looking.probe.lines()[0].turns == 1


@pytest.mark.parametrize("probe", [False, True])
def test_lines_that_wait_are_named_if_it_is_asked_for(probe: bool) -> None:
    clock = Clock()
    monitor = datapipe.Monitor(clock=clock, probe=probe)
    with SlowReads(clock):
        for _ in monitor(range(60)):
            with monitor.step():
                clock.sleep(0.03)
                torch.tensor(1.0).item()
    report = monitor.report()
    assert report.left_out.get("probed", 0) == (2 if probe else 0)
    assert (report.verdict.kind == "synchronisation") == probe
    if probe:
        assert "50%" in report.verdict.sentence
        here = Path(__file__).relative_to(Path.cwd())
        assert f"Tensor.item at {here}:" in report.verdict.sentence


@pytest.mark.parametrize("probe", [False, True])
@pytest.mark.parametrize("leave", ["break", "error", "step error", "end"])
def test_nothing_of_torch_is_replaced_and_no_mode_or_profiler_is_left(
    probe: bool, leave: str
) -> None:
    def replaceable() -> list[dict[str, Any]]:
        profiler = torch.autograd.profiler
        owners = (torch.Tensor, torch.cuda.Event, torch.cuda.Stream, torch.cuda, profiler)
        return [dict(vars(owner)) for owner in owners]

    before = replaceable()
    before[-1].pop("_is_profiler_enabled")
    seen: list[str] = []

    class Seen(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    monitor = datapipe.Monitor(probe=probe)
    try:
        for number in monitor(range(30)):
            with monitor.step():
                now = replaceable()
                now[-1].pop("_is_profiler_enabled")
                assert now == before
                if number == 13 and leave == "step error":
                    raise KeyboardInterrupt
            if number == 13 and leave == "error":
                raise KeyboardInterrupt
            if number == 13 and leave == "break":
                break
    except KeyboardInterrupt:
        assert leave.endswith("error")
    monitor.close()
    with Seen():
        torch.ones(1).item()
    assert seen == ["ones", "item"]
    assert not torch.autograd._profiler_enabled()
    torch.tensor(1.0).item()
    assert len(monitor.report().lines) == 0
