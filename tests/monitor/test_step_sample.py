"""One step as torch's profiler sees it."""

import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import datapipe
from datapipe.diagnosis.step_figures import Operator
from datapipe.monitor.recorder import StepRecorder
from datapipe.monitor.step_sample import sample_of
from tests.case_files import table

from .virtual import is_recorded

MS = 1_000_000
STEPS = table("monitor/steps")
LONG, SQUARE = torch.ones(1 << 20), torch.ones(256, 256)


def event(name, begin, end, given=None):
    """An event of Kineto."""
    kinds = torch.autograd.DeviceType
    answers = {"scope": 0, "is_async": False, "start_thread_id": 1, "flops": 0}
    answers |= {"correlation_id": 0, "linked_correlation_id": 0, "shapes": (), "dtypes": ()}
    answers |= {"name": name, "activity_type": "cpu_op"}
    answers |= {"start_ns": round(begin * MS), "duration_ns": round((end - begin) * MS)}
    answers |= given or {}
    on_host = answers["activity_type"] == "cpu_op"
    answers["device_type"] = kinds.CPU if on_host else kinds.CUDA
    return SimpleNamespace(**{name: lambda value=value: value for name, value in answers.items()})


def old_event(*given):
    """An event of torch before version 2.12."""
    made = event(*given)
    kind = made.activity_type()
    made.is_user_annotation = lambda: kind == "gpu_user_annotation"
    del made.activity_type
    return made


@pytest.mark.parametrize("event", [event, old_event])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_told_from_its_events(event, name):
    case = STEPS[name]
    events = [event(*given) for given in case["events"]]
    took, waited = case.get("took", 100) * MS, case.get("waited", 0.0)
    found = vars(sample_of(events, turn=5, took=took, waited=waited))
    operators = [[each.name, each.seconds, each.flops] for each in found["operators"]]
    found["operators"] = list(chain(*operators))
    assert {name: found[name] for name in case["seen"]} == {
        name: pytest.approx(value) for name, value in case["seen"].items()
    }


def steps(work, count=30):
    """A loop that does some work in each step, of which two are recorded."""
    monitor = datapipe.Monitor(warmup=2)
    for _ in monitor(range(count)):
        with monitor.step():
            work()
    return monitor


def recorded(work):
    """The operators of some work, those of equal names added up."""
    recorder = StepRecorder()
    recorder.begin(turn=1, waited=0.0)
    work()
    recorder.end(counts=True)
    found: dict[str, Operator] = {}
    for each in recorder.samples[0].operators:
        name = each.name.removeprefix("aten::")
        if before := found.get(name):
            counts = ("flops", "bytes", "calls")
            each = replace(each, **{of: getattr(before, of) + getattr(each, of) for of in counts})
        found[name] = each
    return found


def test_the_flops_of_a_model_are_those_of_its_products():
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


def test_attention_and_convolutions_have_flops_too():
    query = torch.randn(2, 3, 10, 8, requires_grad=True)
    attention = nn.functional.scaled_dot_product_attention
    found = recorded(lambda: attention(query, query, query).sum().backward())
    products = sum(operator.flops for operator in found.values())
    assert products >= 7 * 2 * 2 * 3 * 10 * 10 * 8
    convolution, pixels = nn.Conv2d(3, 5, 3, bias=False), torch.randn(2, 3, 10, 10)
    found = recorded(lambda: convolution(pixels).sum().backward())
    assert found["conv2d"].flops == 2 * 2 * 5 * 8 * 8 * 3 * 9
    assert found["convolution_backward"].flops == 2 * found["conv2d"].flops


def test_a_profiler_that_fails_is_told_once_and_left(monkeypatch, caplog):
    class Broken:
        def __init__(self, **_):
            raise RuntimeError("CUPTI is taken")

    monkeypatch.setattr(torch.autograd.profiler, "profile", Broken)
    assert steps(lambda: None).report().sampled is None
    # Another test's thread may have something to say.
    (text,) = (r.message for r in caplog.records if r.name == "datapipe.monitor.recorder")
    assert "CUPTI is taken" in text


PROFILES = {
    "at once": None,
    "after a preparation": torch.profiler.schedule(wait=0, warmup=9, active=40),
}


@pytest.mark.parametrize("schedule", PROFILES.values(), ids=list(PROFILES))
@pytest.mark.parametrize("begin", [0, 7, 22])
def test_a_profiler_of_the_user_is_left_alone(schedule, begin):
    """It runs already, or begins in a step that is recorded, which is then the user's."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    monitor = datapipe.Monitor(warmup=2)
    with ExitStack() as stack:
        for number in monitor(range(40)):
            with monitor.step():
                if number == begin:
                    profile = torch.profiler.profile(activities=cpu, schedule=schedule)
                    profiler = stack.enter_context(profile)
                elif number > begin and schedule:
                    profiler.step()
                torch.ones(3).add(1)
    assert any(event.key == "aten::add" for event in profiler.key_averages())
    found = monitor.report().sampled
    assert (0 if found is None else found.steps) == sum(turn < begin for turn in (7, 22))
    assert steps(lambda: torch.ones(3).add(1)).report().sampled is not None  # and so it goes on


WAITS = torch.profiler.schedule(wait=9, warmup=1, active=1)


@pytest.mark.parametrize("schedule", [None, WAITS])
def test_steps_are_recorded_after_a_profiler_that_only_stop_ended(schedule):
    cpu = [torch.profiler.ProfilerActivity.CPU]
    profiler = torch.profiler.profile(activities=cpu, schedule=schedule)
    profiler.start()
    profiler.step()
    profiler.stop()
    assert steps(lambda: torch.ones(3).add(1)).report().sampled is not None


def test_a_step_that_fails_stops_the_profiler():
    monitor = datapipe.Monitor(warmup=2)
    running = 0
    for _ in monitor(range(30)):
        running += is_recorded()
        with pytest.raises(ZeroDivisionError), monitor.step():
            raise ZeroDivisionError
        assert not is_recorded()
    assert running
    assert monitor.report().sampled is None


@pytest.mark.parametrize(
    ("work", "flops", "longest"),
    [
        (lambda: [LONG.mul_(1.0) for _ in range(40)], 0, "aten::mul_"),
        (lambda: [torch.mm(SQUARE, SQUARE) for _ in range(40)], 40 * 2 * 256**3, None),
    ],
    ids=["bytes", "FLOPs"],
)
def test_operators_of_a_step_are_set_against_the_machine(work, flops, longest):
    report = steps(work, 12).report()
    assert report.sampled.steps == 1
    found = report.sampled.roofline
    assert found.flops == report.to_dict()["sampled"]["roofline"]["flops"] == flops
    assert (found.arithmetic == 0) == (flops == 0)
    assert found.longest == longest or longest is None


def test_a_loop_that_only_sleeps_has_no_roofline_and_is_not_called_compute_bound():
    report = steps(lambda: time.sleep(0.01), 12).report()
    assert report.sampled.steps == 1
    assert report.sampled.roofline is report.sampled.ranks is None
    assert (report.verdict.kind, report.verdict.level) == ("host", "warn")
    assert "torch's operators take 0% of a step" in report.verdict.sentence


@pytest.mark.parametrize("warmup", [0, 2, 5])
def test_few_steps_are_recorded_and_none_at_round_intervals(warmup):
    monitor = datapipe.Monitor(warmup=warmup)
    turns = [n for n in monitor(range(8200)) if is_recorded()]
    assert len(turns) == 3 + 2
    assert all(turn % 5 not in (0, 1) for turn in turns)


@pytest.mark.parametrize("every", [1, 4])
def test_a_step_is_recorded_whole_and_nothing_behind_it(every):
    """It may have several batches; what the loop does after it is an evaluation."""
    large = torch.ones(300, 300)
    monitor = datapipe.Monitor()
    for number in monitor(range(17)):
        if number % every == every // 4:
            with monitor.step():
                torch.mm(SQUARE, SQUARE)
            if every == 1:
                torch.mm(large, large)
    assert monitor.report().sampled.roofline.flops == 2 * 256**3
