"""Steps on the device by marks, and what NVML says of it."""

import gc
import json
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import datapipe
from datapipe.monitor import gpu, session
from datapipe.monitor.gpu import DeviceTimes, GpuSampler, find_gpu, used_cuda
from datapipe.monitor.loop_timer import ENTER, LEAVE, STEP, TRANSFER
from tests.forgetting import forget
from tests.waiting import wait_until

from .virtual import Batches, Clock


@pytest.fixture(autouse=True)
def nothing_was_said_before():
    forget(gpu)


class FakeDevice:
    """`torch.cuda` that passes what is queued when it is told to; work is a number of seconds."""

    def __init__(self):
        self.queued: list[Any] = []
        self.now = 0.0
        self.made = 0
        self.captures = False

    def Event(self, *, enable_timing):  # noqa: N802, as torch.cuda has it
        assert enable_timing
        self.made += 1
        mark = SimpleNamespace(at=None, query=lambda: mark.at is not None)
        mark.elapsed_time = lambda later: (later.at - mark.at) * 1e3

        def record():
            self.queued.append(mark)
            mark.at = None

        mark.record = record
        return mark

    def is_current_stream_capturing(self):
        return self.captures

    def run(self, until=0.0):
        """Do all that is queued, which has come by the time `until`."""
        for item in self.queued:
            if isinstance(item, float):
                self.now += item
            else:
                item.at = self.now
        self.queued.clear()
        self.now = max(self.now, until)


@pytest.fixture
def device():
    return FakeDevice()


def mean(durations):
    return durations.total / durations.count / 1e9


def one_turn(device, times, *, counts=True):
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
    assert used_cuda() is None
    for _ in range(2):
        assert find_gpu() is None
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "uses no GPU" in caplog.text


class FakeGpu:
    """A GPU whose driver answers, or is gone."""

    name = "Fake 1"

    def __init__(self, answer=(0.5, 3 << 30, 80 << 30)):
        self.answer = answer

    def sample(self):
        if self.answer is None:
            raise RuntimeError("the driver is gone")
        return self.answer


def samplers():
    return [thread for thread in threading.enumerate() if thread.name == "datapipe-gpu"]


def test_the_gpu_is_asked_while_turns_count_and_a_loop_lives():
    owner, sampler = FakeGpu(), GpuSampler(FakeGpu(), every=0.001)
    assert sampler.usage is None
    sampler.counts = True
    sampler.begin(owner)
    wait_until(lambda: sampler.usage is not None)
    usage = sampler.usage
    assert (usage.name, usage.utilization, usage.memory) == ("Fake 1", 0.5, 3 << 30)
    sampler.end()
    assert not samplers()
    GpuSampler(FakeGpu(), every=60).begin(owner)
    assert samplers()
    del owner
    gc.collect()
    wait_until(lambda: not samplers())


def test_a_driver_that_fails_is_reported_once(caplog):
    asked = FakeGpu(answer=None)
    sampler = GpuSampler(asked, every=0.001)
    sampler.counts = True
    sampler.begin(asked)
    wait_until(lambda: not samplers())
    assert [record.message for record in caplog.records] == [
        "the GPU's utilization is no longer known: the driver is gone"
    ]
    assert sampler.usage is None


@pytest.fixture
def torch_has_a_gpu(monkeypatch):
    """Gives torch a GPU with the number 1, which is busy for so many per cent, or fails."""

    def give(busy):
        def utilization(device):
            if isinstance(busy, Exception):
                raise busy
            return busy if device == 1 else 0

        for name, answer in {
            "is_initialized": lambda: True,
            "current_device": lambda: 1,
            "get_device_name": lambda device: f"Fake {device}",
            "mem_get_info": lambda device: (10 + device, 20 + device),
            "utilization": utilization,
        }.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    return give


@pytest.mark.parametrize(
    ("busy", "seen", "said"),
    [
        (93, ("Fake 1", (0.93, 10, 21)), ""),
        (ModuleNotFoundError("pynvml"), None, "pip install 'datapipe-vlm[gpu]'"),
        (OSError("driver not loaded"), None, "driver not loaded"),
    ],
)
def test_torch_is_asked_for_its_current_gpu_and_what_hinders_is_said(
    torch_has_a_gpu, caplog, busy, seen, said
):
    torch_has_a_gpu(busy)
    found = find_gpu()
    assert (found and (found.name, found.sample())) == seen
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * (found is None)
    assert said in caplog.text


@pytest.mark.parametrize(
    ("idle", "busy", "kind"),
    [(0.0, None, "compute"), (0.01, None, "data"), (0.0, 0.97, "compute"), (0.0, 0.3, "host")],
)
def test_the_devices_clock_says_whether_waiting_costs(
    monkeypatch, torch_has_a_gpu, device, idle, busy, kind
):
    """The loop waits half of its time on the host."""
    clock = Clock()
    torch_has_a_gpu(OSError("no driver") if busy is None else 100 * busy)
    monkeypatch.setattr(session, "used_cuda", lambda: device)
    monitor = datapipe.Monitor(clock=clock)
    for number in monitor(Batches(clock, 60, wait=0.02)):
        device.queued.append(idle)
        with monitor.step():
            clock.sleep(0.02)
            device.queued.append(0.02)
        device.run()
        if busy and number > 9:
            wait_until(lambda: monitor.report().gpu is not None)
    report = monitor.report()
    assert report.verdict.kind == kind
    assert report.wait_share == pytest.approx(0.5)
    assert report.device.step.p50 == pytest.approx(0.02, rel=0.02)
    assert report.device.idle.p50 == pytest.approx(idle, rel=0.02, abs=1e-8)
    assert "step on the GPU" in str(report)
    assert (report.gpu and report.gpu.utilization) == busy
    assert ("Fake 1: busy" in str(report)) == (busy is not None)
    json.dumps(report.to_dict())
    monitor.close()
