"""Steps on the device by marks, and what NVML says of it."""

import gc
import logging
import threading
from collections.abc import Callable

import pytest
import torch

from datapipe.monitor import gpu
from datapipe.monitor.device_time import DeviceTimes, current_device
from datapipe.monitor.durations import Durations
from datapipe.monitor.gpu import Gpu, GpuSampler, find_gpu
from datapipe.monitor.loop_timer import ENTER, LEAVE, STEP, TRANSFER
from tests.forgetting import forget
from tests.waiting import PATIENCE, wait_until


@pytest.fixture(autouse=True)
def nothing_was_said_before() -> None:
    forget(gpu)


class FakeMark:
    def __init__(self, device: "FakeDevice") -> None:
        self.device = device
        self.at: float | None = None

    def record(self) -> None:
        self.device.queued.append(self)
        self.at = None

    def query(self) -> bool:
        return self.at is not None

    def elapsed_time(self, later: "FakeMark") -> float:
        assert self.at is not None
        assert later.at is not None
        return (later.at - self.at) * 1e3


class FakeDevice:
    """Passes what is queued when it is told to; work is a number of seconds."""

    def __init__(self) -> None:
        self.queued: list[FakeMark | float] = []
        self.now = 0.0
        self.made = 0
        self.captures = False

    def mark(self) -> FakeMark:
        self.made += 1
        return FakeMark(self)

    def recording(self) -> bool:
        return self.captures

    def run(self, until: float = 0.0) -> None:
        """Do all that is queued, which has come by the time `until`."""
        for item in self.queued:
            if isinstance(item, FakeMark):
                item.at = self.now
            else:
                self.now += item
        self.queued.clear()
        self.now = max(self.now, until)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


def mean(durations: Durations) -> float:
    return durations.total / durations.count / 1e9


def one_turn(device: FakeDevice, times: DeviceTimes, *, counts: bool = True) -> None:
    """A turn of 10 ms of copying and 50 ms of work, with 20 ms of copying inside of it."""
    for part, before, inside, after in ((TRANSFER, 0.01, 0.0, 0.0), (STEP, 0.02, 0.02, 0.03)):
        times.note(ENTER, part)
        device.queued.append(before)
        if inside:
            times.note(ENTER, TRANSFER)
            device.queued.append(inside)
            times.note(LEAVE, TRANSFER)
        device.queued.append(after)
        times.note(LEAVE, part)
    times.end_turn(counts)


def test_nothing_is_read_before_the_device_has_passed_it(device):
    times = DeviceTimes(device)
    for _ in range(5):
        one_turn(device, times)
    times.read()
    assert times.steps.count == 0
    device.run()
    times.read()
    assert (times.steps.count, times.transfers.count, times.idle.count) == (5, 10, 4)
    assert mean(times.steps) == pytest.approx(0.05)  # without the transfer inside
    assert mean(times.transfers) == pytest.approx(0.015)
    assert times.idle.total == 0  # as the work was queued ahead


def test_idle_time_is_what_no_transfer_fills(device):
    times = DeviceTimes(device)
    for counts in (True, True, False, True, True):
        one_turn(device, times, counts=counts)
        device.run(until=device.now + 0.2 + 0.08)
    times.read()
    assert mean(times.idle) == pytest.approx(0.2)
    # A turn that does not count leaves nothing, and no gap.
    assert (times.steps.count, times.idle.count) == (4, 2)


def test_marks_are_used_again_and_a_stuck_device_costs_no_memory(device):
    times = DeviceTimes(device)
    for _ in range(100):
        one_turn(device, times)
        device.run()
        times.read()
    assert device.made < 20
    assert times.steps.count == 100
    for _ in range(2000):
        one_turn(device, times)
    device.run()
    times.read()
    assert times.steps.count == 100 + 256


def test_nothing_is_queued_while_a_graph_is_captured(device):
    times = DeviceTimes(device)
    for captures in (True, False):
        device.captures = captures
        one_turn(device, times)
        assert (device.made == 0) == captures
    device.run()
    times.read()
    assert times.steps.count == 1


def test_a_process_without_a_gpu_has_none(caplog):
    caplog.set_level(logging.INFO)
    assert current_device() is None
    for _ in range(2):
        assert find_gpu() is None
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "uses no GPU" in caplog.text


class FakeGpu:
    name = "Fake 1"

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.fails = False

    def sample(self) -> tuple[float, int, int]:
        if self.fails:
            raise RuntimeError("the driver is gone")
        self.asked.set()
        return 0.5, 3 << 30, 80 << 30


def samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "datapipe-gpu"]


def test_the_gpu_is_asked_while_turns_count():
    asked = FakeGpu()
    sampler = GpuSampler(asked, every=0.001)
    assert sampler.usage is None
    sampler.counts = True
    sampler.begin(asked)
    assert asked.asked.wait(PATIENCE)
    wait_until(lambda: sampler.usage is not None)
    usage = sampler.usage
    assert usage is not None
    assert (usage.name, usage.utilization, usage.memory) == ("Fake 1", 0.5, 3 << 30)
    sampler.end()
    assert not samplers()


def test_the_thread_ends_with_its_owner():
    owner = FakeGpu()
    GpuSampler(FakeGpu(), every=60).begin(owner)
    assert samplers()
    del owner
    gc.collect()
    wait_until(lambda: not samplers())


def test_a_driver_that_fails_is_reported_once(caplog):
    asked = FakeGpu()
    asked.fails = True
    sampler = GpuSampler(asked, every=0.001)
    sampler.counts = True
    sampler.begin(asked)
    wait_until(lambda: not samplers())
    assert [record.message for record in caplog.records] == [
        "the GPU's utilization is no longer known: the driver is gone"
    ]
    assert sampler.usage is None


@pytest.fixture
def use_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Gpu | None]:
    """Find a GPU in a process that uses one, whose utilization is asked for as given."""
    cuda = {
        "is_initialized": lambda: True,
        "current_device": lambda: 1,
        "get_device_name": lambda device: f"Fake {device}",
        "mem_get_info": lambda device: (10 + device, 20 + device),
    }

    def find(utilization: Callable[[int], int]) -> Gpu | None:
        for name, answer in (cuda | {"utilization": utilization}).items():
            monkeypatch.setattr(torch.cuda, name, answer)
        return find_gpu()

    return find


def test_torch_is_asked_for_its_current_gpu(use_gpu):
    found = use_gpu(lambda device: 92 + device)
    assert found is not None
    assert found.name == "Fake 1"
    assert found.sample() == (0.93, 10, 21)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("pynvml"), "pip install 'datapipe-vlm[gpu]'"),
        (OSError("driver not loaded"), "driver not loaded"),
    ],
)
def test_a_gpu_that_cannot_be_asked_is_said_with_the_remedy(use_gpu, caplog, error, said):
    def refuse(device: int) -> int:
        raise error

    assert use_gpu(refuse) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert said in caplog.text
