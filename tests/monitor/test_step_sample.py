"""One step as torch's profiler sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import datapipe
from datapipe.diagnosis.step_roofline import Operator, Peaks
from datapipe.monitor import recorder
from datapipe.monitor.recorder import StepRecorder
from datapipe.monitor.step_sample import StepSample, sample_of, total, union, without

MS = 1_000_000


@dataclass
class Event:
    """An event of Kineto, in milliseconds."""

    called: str
    begin: float
    end: float
    kind: str = "cpu_op"
    thread: int = 1
    cause: int = 0
    number: int = 0
    range: int = 0
    sizes: list[list[int]] = field(default_factory=list)
    types: list[str] = field(default_factory=list)

    def name(self) -> str:
        return self.called

    def start_ns(self) -> int:
        return round(self.begin * MS)

    def duration_ns(self) -> int:
        return round((self.end - self.begin) * MS)

    def device_type(self) -> Any:
        kinds = torch.autograd.DeviceType
        return kinds.CPU if self.kind == "cpu_op" else kinds.CUDA

    def activity_type(self) -> str:
        return self.kind

    def scope(self) -> int:
        return self.range

    def is_async(self) -> bool:
        return False

    def start_thread_id(self) -> int:
        return self.thread

    def correlation_id(self) -> int:
        return self.number

    def linked_correlation_id(self) -> int:
        return self.cause

    def shapes(self) -> list[list[int]]:
        return self.sizes

    def dtypes(self) -> list[str]:
        return self.types

    def flops(self) -> int:
        return 0


def sample(*events: Event, took: float = 100, waited: float = 0.0) -> StepSample:
    return sample_of(events, turn=5, took=round(took * MS), waited=waited)


def test_intervals_are_joined_and_subtracted() -> None:
    assert union([(5, 9), (1, 3), (2, 4), (9, 9)]) == [(1, 4), (5, 9)]
    assert total(union([(0, 4), (2, 6)])) == 6
    assert without([(0, 10)], [(2, 4), (3, 5), (9, 20)]) == 6
    assert without([], [(0, 1)]) == 0
    assert without([(0, 1)], []) == 1


def test_exchange_counts_as_far_as_no_operator_runs() -> None:
    found = sample(
        Event("aten::mm", 0, 40),
        Event("c10d::allreduce_", 40, 41),
        Event("gloo:all_reduce", 30, 70, thread=2),
        Event("gloo:all_reduce", 60, 80, thread=3),
        Event("aten::add_", 90, 100),
    )
    assert found.exchange == pytest.approx(0.040)
    assert found.beside == pytest.approx(0.010)
    assert found.busy is None
    assert found.seconds == pytest.approx(0.1)


def test_ranges_of_ddp_and_fsdp_are_no_compute_that_hides_an_exchange() -> None:
    found = sample(
        Event("gloo:all_reduce", 10, 90, thread=2),
        Event("torch.distributed.ddp.reducer::copy_bucket_to_grad", 10, 40),
        Event("FSDP::all_gather_copy_out", 40, 90, range=7),
    )
    assert found.exchange == pytest.approx(0.080)
    assert found.operators == ()


def test_calls_that_wait_for_a_gpu_are_seen_without_a_probe() -> None:
    found = sample(
        Event("aten::item", 10, 41),
        Event("aten::_local_scalar_dense", 10, 40),
        Event("cudaStreamSynchronize", 15, 35),
        Event("aten::index", 50, 62),
        Event("cudaStreamSynchronize", 55, 60),
        Event("aten::add", 90, 95),
        Event("cudaDeviceSynchronize", 96, 100),  # by the profiler
        Event("kernel", 0, 100, "kernel"),
    )
    assert found.synchronisation == pytest.approx(0.025)
    assert found.waiter == "aten::item"


def test_waiting_for_the_batch_is_part_of_the_turn() -> None:
    assert sample(Event("aten::mm", 0, 40), took=50, waited=0.05).seconds == pytest.approx(0.1)


class OldEvent(Event):
    """An event of torch before version 2.12."""

    activity_type: Any = property()  # hasattr() says no

    def is_user_annotation(self) -> bool:
        return self.kind == "gpu_user_annotation"


@pytest.mark.parametrize("event", [Event, OldEvent])
def test_on_a_gpu_kernels_decide(event: type[Event]) -> None:
    found = sample(
        event("aten::mm", 0, 1, number=7, sizes=[[8, 8], [8, 8]], types=["float", "float"]),
        event("ampere_sgemm", 10, 30, "kernel", cause=7),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 60, "kernel"),
        event("nccl:all_reduce", 20, 60, "gpu_user_annotation"),
        event("datapipe.step", 0, 200, "gpu_user_annotation"),
        event("Memcpy HtoD", 80, 90, "gpu_memcpy"),
        event("vectorized_elementwise_kernel", 100, 110, "kernel"),
        took=500,
    )
    assert found.seconds == pytest.approx(0.1)
    assert found.exchange == pytest.approx(0.030)
    assert found.beside == pytest.approx(0.010)
    assert found.busy == pytest.approx(0.070)
    # The time of an operator is that of its kernels, not that of its launch.
    assert [(o.name, o.seconds, o.flops) for o in found.operators] == [
        ("aten::mm", pytest.approx(0.020), 2 * 8**3)
    ]


def begin(recorder: StepRecorder) -> None:
    recorder.begin(turn=1, waited=0.0)


def end(recorder: StepRecorder, *, counts: bool = True) -> StepSample | None:
    before = len(recorder.samples)
    recorder.end(counts=counts)
    return recorder.samples[-1] if len(recorder.samples) > before else None


def recorded(work: Any) -> dict[str, Operator]:
    """The operators of some work, those of equal names added up."""
    recorder = StepRecorder()
    begin(recorder)
    work()
    found = end(recorder)
    assert found is not None
    names = {operator.name.removeprefix("aten::") for operator in found.operators}
    return {
        name: Operator(
            name=name,
            dtype=next(o.dtype for o in found.operators if o.name == f"aten::{name}"),
            seconds=sum(o.seconds for o in found.operators if o.name == f"aten::{name}"),
            flops=sum(o.flops for o in found.operators if o.name == f"aten::{name}"),
            bytes=sum(o.bytes for o in found.operators if o.name == f"aten::{name}"),
            calls=sum(o.calls for o in found.operators if o.name == f"aten::{name}"),
        )
        for name in names
    }


def test_the_flops_of_a_model_are_those_of_its_products() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    inputs = torch.randn(4, 16)
    found = recorded(lambda: model(inputs).sum().backward())
    forward = 2 * 4 * (16 * 32 + 32 * 8)
    assert found["linear"].flops == forward
    assert found["linear"].calls == 2
    # Gradients of both weights, and of the second layer's input.
    assert found["mm"].flops == 2 * forward - 2 * 4 * 16 * 32
    assert found["gelu"].flops == 0
    assert found["gelu"].bytes == 2 * 4 * 4 * 32
    assert found["linear"].dtype == "float32"
    assert not found.keys() & {"t", "transpose", "view", "addmm", "empty"}


def test_attention_and_convolutions_have_flops_too() -> None:
    query = torch.randn(2, 3, 10, 8, requires_grad=True)
    attention = nn.functional.scaled_dot_product_attention
    found = recorded(lambda: attention(query, query, query).sum().backward())
    products = sum(operator.flops for operator in found.values())
    assert products >= 7 * 2 * 2 * 3 * 10 * 10 * 8
    convolution, pixels = nn.Conv2d(3, 5, 3, bias=False), torch.randn(2, 3, 10, 10)
    found = recorded(lambda: convolution(pixels).sum().backward())
    assert found["conv2d"].flops == 2 * 2 * 5 * 8 * 8 * 3 * 9
    assert found["convolution_backward"].flops == 2 * found["conv2d"].flops


def test_a_profiler_that_fails_is_told_once_and_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __init__(self, **_: Any) -> None:
            raise RuntimeError("CUPTI is taken")

    monkeypatch.setattr(torch.autograd.profiler, "profile", Broken)
    recorder = StepRecorder()
    for _ in range(3):
        begin(recorder)
        assert end(recorder) is None
    # Another test's thread may have something to say.
    (text,) = (r.message for r in caplog.records if r.name == "datapipe.monitor.recorder")
    assert "CUPTI is taken" in text


def test_a_profiler_of_the_user_is_left_alone() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        recorder = StepRecorder()
        begin(recorder)
        torch.ones(3).add(1)
        assert end(recorder) is None
    assert any(event.key == "aten::add" for event in profiler.key_averages())


def test_a_profiler_of_the_user_that_prepares_itself_is_left_alone() -> None:
    recorder = StepRecorder()
    schedule = torch.profiler.schedule(wait=0, warmup=2, active=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
        for turn in range(3):
            begin(recorder)
            torch.ones(3).add(1)
            assert end(recorder) is None
            if turn < 2:
                profiler.step()
    assert any(event.key == "aten::add" for event in profiler.key_averages())
    begin(recorder)
    assert end(recorder) is not None


@pytest.mark.parametrize("schedule", [None, torch.profiler.schedule(wait=0, warmup=1, active=1)])
def test_a_profiler_that_the_user_begins_in_a_recorded_turn_takes_over(schedule: Any) -> None:
    recorder = StepRecorder()
    begin(recorder)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
        if schedule:
            profiler.step()
        torch.ones(3).add(1)
        assert end(recorder) is None
    assert any(event.key == "aten::add" for event in profiler.key_averages())
    begin(recorder)
    assert end(recorder) is not None


def test_a_turn_that_does_not_count_stops_the_profiler() -> None:
    recorder = StepRecorder()
    begin(recorder)
    assert torch.autograd._profiler_enabled()
    assert end(recorder, counts=False) is None
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize(("bytes_too", "kind"), [(True, "memory"), (False, "compute")])
def test_a_step_is_limited_by_memory_or_by_arithmetic(
    monkeypatch: pytest.MonkeyPatch, bytes_too: bool, kind: str
) -> None:
    # Not measured: other work on the machine would change the verdict.
    slow, fast = 1.0, 1e30
    peaks = Peaks(
        flops={"float32": fast if bytes_too else slow},
        bandwidth=slow if bytes_too else fast,
        source="test",
    )
    monkeypatch.setattr("datapipe.monitor.recorder.cpu_peaks", lambda threads, **_: peaks)
    long, square = torch.ones(1 << 20), torch.ones(256, 256)
    monitor = datapipe.Monitor(warmup=0)
    for _ in monitor(range(9)):
        with monitor.step():
            for _ in range(40):
                if bytes_too:
                    long.mul_(1.0)
                else:
                    torch.mm(square, square)
    report = monitor.report()
    assert report.verdict.kind == kind
    assert report.sampled is not None
    assert report.sampled.steps == 1
    roofline = report.sampled.roofline
    assert roofline is not None
    assert roofline.flops == (0 if bytes_too else 40 * 2 * 256**3)
    assert ("aten::mul_" in report.verdict.sentence) == bytes_too
    assert report.to_dict()["sampled"]["roofline"]["flops"] == roofline.flops


def test_a_loop_that_computes_little_has_no_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "datapipe.monitor.recorder.cpu_peaks", lambda threads, **_: pytest.fail("no")
    )
    seen = StepRecorder()
    begin(seen)
    seen.end(counts=True)
    figures = seen.figures(thoroughly=True)
    assert figures.steps == 1
    assert figures.roofline is figures.ranks is None


def test_few_steps_are_recorded_and_none_at_round_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = []
    monkeypatch.setattr(
        recorder.StepRecorder, "begin", lambda self, *, turn, **_: turns.append(turn)
    )
    for warmup in (0, 2, 5):
        turns.clear()
        for _ in datapipe.Monitor(warmup=warmup)(range(8200)):
            pass
        assert len(turns) == 3 + 2
        assert all(turn % 5 not in (0, 1) for turn in turns)


def test_what_the_loop_does_after_its_step_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    square = torch.ones(8, 8)
    monitor = datapipe.Monitor()
    seen = []
    monkeypatch.setattr(
        recorder,
        "sample_of",
        lambda events, **_: seen.append({event.name() for event in events}),
    )
    for _ in monitor(range(14)):
        with monitor.step():
            square.add(1)
        square.exp()  # an evaluation
    (names,) = seen
    assert "aten::add" in names
    assert "aten::exp" not in names


def test_a_step_of_several_batches_is_recorded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    square = torch.ones(8, 8)
    monitor = datapipe.Monitor()
    seen = []
    monkeypatch.setattr(
        recorder,
        "sample_of",
        lambda events, **_: seen.append({event.name() for event in events}),
    )
    for number in monitor(range(17)):
        if number % 4 == 1:
            with monitor.step():
                square.add(1)
    (names,) = seen
    assert "aten::add" in names
