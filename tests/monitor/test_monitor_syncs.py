"""Calls that wait, found in a few turns of a loop, and nothing left behind."""

from __future__ import annotations

import ctypes
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from datapipe.monitor.patching import Shadows, Target
from datapipe.monitor.syncs import FIRST_PROBES, Probe


class Clock:
    """Nanoseconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


class Looking:
    """A probe on a virtual clock, inside one step."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.in_step = self.in_transfer = False
        self.probe = Probe(
            self.clock, in_step=lambda: self.in_step, in_transfer=lambda: self.in_transfer
        )

    def __enter__(self) -> Looking:
        assert self.probe.begin(FIRST_PROBES[0], self.clock.now)
        return self

    def __exit__(self, *_: object) -> None:
        self.probe.end()


@pytest.fixture
def looking() -> Iterator[Looking]:
    found = Looking()
    yield found
    found.probe.end(counts=False)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    owners = (torch.Tensor, torch.cuda.Event, torch.cuda.Stream)
    before = [dict(vars(owner)) for owner in owners]
    synchronize = torch.cuda.synchronize
    yield
    monkeypatch.undo()
    assert [dict(vars(owner)) for owner in owners] == before
    assert torch.cuda.synchronize is synchronize


def calls(looking: Looking) -> Counter[str]:
    """How often each function was called."""
    found: Counter[str] = Counter()
    for line in looking.probe.lines():
        found[line.call] += line.count
    return found


@pytest.fixture
def slow_item(monkeypatch: pytest.MonkeyPatch, looking: Looking) -> None:
    """A device that needs 30 ms before a value of it can be read."""
    original = torch.Tensor.item

    def item(self: torch.Tensor) -> Any:
        looking.clock.sleep(0.03)
        return original(self)

    monkeypatch.setattr(torch.Tensor, "item", item)


@pytest.mark.usefixtures("slow_item")
def test_a_call_that_waits_is_named_with_its_line_and_time(looking: Looking) -> None:
    with looking:
        looking.clock.sleep(0.01)
        value = torch.tensor(2.5).item()  # here
        looking.clock.sleep(0.02)
    assert value == 2.5
    (line,) = looking.probe.lines()
    assert line.call == "Tensor.item"
    assert line.kind == "synchronisation"
    assert line.count == line.turns == 1
    assert line.seconds == pytest.approx(0.03)
    file, _, number = line.where.rpartition(":")
    lines = Path(__file__).read_text().splitlines()
    assert Path(__file__).match(file)
    assert lines[int(number) - 1].endswith("# here")
    assert looking.probe.shares().synchronisation == pytest.approx(0.5)


@pytest.mark.usefixtures("slow_item")
def test_time_in_the_step_and_outside_are_told_apart(looking: Looking) -> None:
    with looking:
        looking.in_step = True
        torch.tensor(1.0).item()
        looking.in_step = False
        torch.tensor(1.0).item()
        looking.clock.sleep(0.06)
    shares = looking.probe.shares()
    assert shares.synchronisation == pytest.approx(0.5)
    assert shares.outside == pytest.approx(0.25)


@pytest.mark.usefixtures("slow_item")
def test_a_copy_on_purpose_is_no_hidden_synchronisation(looking: Looking) -> None:
    with looking:
        looking.in_transfer = True
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
    assert {line.call for line in looking.probe.lines()} == set()


def test_masks_and_copies_of_a_device_wait(looking: Looking) -> None:
    class OnDevice(torch.Tensor):
        is_cpu = False

    value = torch.arange(6.0).as_subclass(OnDevice)
    mask = torch.arange(6) > 2
    with looking:
        value.nonzero()
        value.masked_select(mask)
        value.to("cpu")
        value.to("cpu", non_blocking=True)
        value.to(torch.float64)
        value.to(device=torch.device("cpu"))
    assert calls(looking) == {
        "Tensor.nonzero": 1,
        "Tensor.masked_select": 1,
        "Tensor.to": 2,
    }


def test_tensors_are_to_c_code_what_they_were_during_a_probe_and_after_it(
    looking: Looking,
) -> None:
    def is_sequence() -> bool:
        return bool(ctypes.pythonapi.PySequence_Check(ctypes.py_object(torch.ones(()))))

    before = is_sequence()
    with looking:
        assert torch.tensor([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]
        assert is_sequence() == before
    assert torch.tensor([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]
    assert is_sequence() == before


def test_what_a_call_raises_comes_through_and_counts(looking: Looking) -> None:
    with looking, pytest.raises(RuntimeError, match="2 elements"):
        torch.tensor([1.0, 2.0]).item()
    assert [line.call for line in looking.probe.lines()] == ["Tensor.item"]


def test_an_attribute_of_somebody_else_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(self: torch.Tensor) -> str:
        return "mine"

    monkeypatch.setattr(torch.Tensor, "tolist", mine)
    with Looking() as looking:
        assert torch.tensor(1).tolist() == "mine"
    assert vars(torch.Tensor)["tolist"] is mine
    assert [line.call for line in looking.probe.lines()] == ["Tensor.tolist"]


def test_what_others_replace_meanwhile_stays_theirs() -> None:
    class Owner:
        def call(self) -> int:
            return 1

    own = vars(Owner)["call"]
    shadows = Shadows([Target(Owner, "call", "call", lambda _, call, a, o: call(*a, **o))])
    assert shadows.put()
    theirs = vars(Owner)["call"]
    Owner.call = lambda self: 10 + theirs(self)  # type: ignore[method-assign]
    shadows.remove()
    assert Owner().call() == 11
    assert vars(Owner)["call"] is not own


def test_two_probes_do_not_meet(looking: Looking) -> None:
    other = Looking()
    with looking:
        assert not other.probe.begin(FIRST_PROBES[0], 0)
        assert not other.probe.looks
    with other:
        assert other.probe.looks


def test_other_threads_are_not_looked_at(looking: Looking) -> None:
    with looking:
        thread = threading.Thread(target=lambda: torch.tensor(1.0).item())
        thread.start()
        thread.join()
    assert looking.probe.lines() == ()


def test_a_tensor_subclass_sees_the_functions_that_it_knows(looking: Looking) -> None:
    known = torch.Tensor.item
    seen = []

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(func is known)
            return super().__torch_function__(func, types, args, kwargs or {})

    value = torch.tensor(3.0).as_subclass(Sub)
    seen.clear()
    with looking:
        assert value.item() == 3.0
    assert seen == [True]


def test_an_interrupt_while_functions_are_replaced_leaves_none_replaced() -> None:
    class Owner:
        def first(self) -> int:
            return 1

        def second(self) -> int:
            return 2

    class Meta(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise KeyboardInterrupt

    class Interrupted(metaclass=Meta):
        def call(self) -> int:
            return 3

    before = dict(vars(Owner))
    straight = lambda _, call, a, o: call(*a, **o)  # noqa: E731
    shadows = Shadows(
        [
            Target(Owner, "first", "first", straight),
            Target(Interrupted, "call", "call", straight),
            Target(Owner, "second", "second", straight),
        ]
    )
    with pytest.raises(KeyboardInterrupt):
        shadows.put()
    assert dict(vars(Owner)) == before
    with Looking() as looking:  # nobody is locked out
        assert looking.probe.looks


def test_few_turns_are_looked_at() -> None:
    looking = Looking()
    seen = []
    for turn in range(5000):
        if looking.probe.begin(turn, looking.clock.now):
            seen.append(turn)
            looking.clock.sleep(0.1)
            looking.probe.end()
    assert seen[:4] == [5, 20, 80, 583]
    assert len(seen) == 12


@pytest.mark.usefixtures("slow_item")
def test_what_happens_every_hundredth_turn_is_not_the_rule(looking: Looking) -> None:
    for turn in (5, 20, 80):
        assert looking.probe.begin(turn, looking.clock.now)
        if turn == 20:
            torch.tensor(1.0).item()
        looking.clock.sleep(0.01)
        looking.probe.end()
    assert looking.probe.shares().synchronisation == 0.0
    assert looking.probe.lines()[0].turns == 1


def test_collectives_are_told_apart(
    looking: Looking, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        original = dist.all_reduce

        def slow(*args: Any, **options: Any) -> Any:
            looking.clock.sleep(0.04)
            return original(*args, **options)

        monkeypatch.setattr(dist, "all_reduce", slow)
        before = dict(vars(dist)), dict(vars(dist.Work))
        with looking:
            dist.all_reduce(torch.ones(2))
            work = dist.all_reduce(torch.ones(2), async_op=True)
            work.wait()
            looking.clock.sleep(0.02)
        assert (dict(vars(dist)), dict(vars(dist.Work))) == before
    finally:
        dist.destroy_process_group()
    shares = looking.probe.shares()
    assert shares.communication == pytest.approx(0.8)
    assert shares.synchronisation == 0.0
    assert calls(looking) == {"torch.distributed.all_reduce": 2, "Work.wait": 1}


def test_compiled_steps_are_not_compiled_again() -> None:
    compiled = 0

    def backend(graph: Any, _: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    weight = torch.ones(3, requires_grad=True)

    @torch.compile(backend=backend)
    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = (batch * weight).sum()
        if loss > 1:  # a break of the graph
            loss = loss * 2
        return loss.tanh()

    for _ in range(3):
        step(torch.ones(3)).item()
    before = compiled
    assert before
    for _ in range(3):
        with Looking() as looking:
            step(torch.ones(3)).item()
        step(torch.ones(3)).item()
        assert calls(looking) == {"Tensor.item": 1, "Tensor.__bool__": 1}
    assert compiled == before


def test_a_loop_that_is_interrupted_anywhere_leaves_nothing_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datapipe
    from datapipe.monitor import session, syncs

    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    # Every turn is looked at, and interrupts come after any number of calls and lines.
    monkeypatch.setattr(syncs, "FIRST_PROBES", tuple(range(1, 1000)))
    monkeypatch.setattr(session, "_LOOK_AGAIN", 0)
    before = dict(vars(torch.Tensor))
    handler = signal.signal(signal.SIGALRM, ring)
    draw = random.Random(1)
    interrupted = 0
    try:
        for _ in range(60):
            monitor = datapipe.Monitor(warmup=0)
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 3e-3))
                for _ in monitor(range(5_000)):
                    with monitor.step():
                        torch.tensor(1.0).item()
            except Alarm:
                interrupted += 1
            assert dict(vars(torch.Tensor)) == before
            assert not torch.autograd._profiler_enabled()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    # One that comes while objects die is lost to Python itself.
    assert interrupted > 20
    with Looking() as looking:
        assert looking.probe.looks
