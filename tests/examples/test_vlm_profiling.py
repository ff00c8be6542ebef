"""Profiles of training: stages, operators, traces; and when the encoder is worth a remedy."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.nn.modules.module import register_module_module_registration_hook

from examples.vlm.measure.profiling import NAMES, Profiling, Stages, operators, stages_of, verdict
from examples.vlm.model.vlm import Projector, VisionEncoder

from .vlm_runs import PACKED, fit

pytestmark = pytest.mark.usefixtures("small_model")
STEPS = ("--steps", 10, "--warm-up", 2)


class SlowBackward(torch.autograd.Function):
    """Does nothing, and takes long to take it back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        work = torch.ones(600, 600)
        for _ in range(20):
            torch.mm(work, work)
        return gradients[0]


@pytest.mark.measuring
@pytest.mark.campaign
@pytest.mark.parametrize(
    "more", [(), ("--profile-stacks",), ("--recompute", "--precision", "bf16")], ids=str
)
def test_the_backward_pass_belongs_to_the_stage_that_it_is_of(shards, tmp_path, more):
    reports = {}
    for name, part in {"vision": VisionEncoder, "projector": Projector}.items():

        def slow(module, _, layer, part=part):
            if isinstance(module, part):
                layer.register_forward_hook(lambda *given: SlowBackward.apply(given[-1]))

        path = tmp_path / f"{name}.json"
        with register_module_module_registration_hook(slow):
            reports[name] = fit(shards, *PACKED, *STEPS, "--profile", path, *more)
        assert ("layers.py" in path.read_text()) == ("--profile-stacks" in more)
    for name, report in reports.items():
        assert set(report.stages) == set(NAMES)
        assert max(report.stages, key=report.stages.__getitem__) == name
        assert ("The encoder takes" in report.verdict) == (name == "vision")
        assert min(report.stages[stage] for stage in ("language", "loss", "optimizer")) > 0
        assert report.stages["exchange"] == 0


def test_calls_of_python_in_a_trace_with_stacks_belong_to_their_own_stage():
    """They all have the number 0, so numbers do not tell them apart."""
    events = []

    def add(parent, name, span, **more):
        numbered = {"id": 0, "thread": 1} | more
        event = FunctionEvent(name=name, start_us=span[0], end_us=span[1], **numbered)
        if parent is not None:
            parent.append_cpu_child(event)
            event.set_cpu_parent(parent)
        events.append(event)
        return event

    step = add(None, "ProfilerStep#8", (0, 100), id=1)
    language = add(step, "stage:language", (0, 80), id=2)
    forward = add(language, "layers.py(40): forward", (1, 79))
    projector = add(forward, "stage:projector", (2, 3), id=3)
    add(projector, "vision.py(30): forward", (2, 3))
    add(forward, "aten::mm", (10, 70), id=4, sequence_nr=7)
    node = add(step, "autograd::engine::evaluate_function: Mm", (85, 95), id=5, sequence_nr=7)
    add(add(node, "autograd.py(9): backward", (86, 94)), "aten::mm", (87, 93), id=6)

    found = stages_of(events).by_stage
    assert {name: round(1e6 * seconds) for name, seconds in found.items() if seconds} == {
        "language": 79 + 10,
        "projector": 1,
        "other": 10,
    }


def test_a_range_of_the_gpu_is_not_counted_beside_its_kernels(monkeypatch):
    kinds = torch.autograd.DeviceType
    rows = [
        SimpleNamespace(key=key, device_type=kind, self_device_time_total=micros, count=1)
        for key, kind, micros in (
            ("aten::mm", kinds.CPU, 3000),
            ("Optimizer.step#AdamW.step", kinds.CPU, 0),
            ("Optimizer.step#AdamW.step", kinds.CUDA, 9000),
            ("aten::_fused_adamw_", kinds.CPU, 1000),
        )
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    table = operators(SimpleNamespace(key_averages=lambda: rows))
    shares = [line.split()[-2] for line in table.splitlines()[1:]]
    assert shares == ["75.0%", "25.0%", "0.0%"]


def test_stages_add_up_to_the_steps(shards, tmp_path, capfd):
    folder = tmp_path / "new" / "traces"
    report = fit(shards, *PACKED, *STEPS, "--profile", folder, "--profile-shapes")
    said = capfd.readouterr().err
    lines = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.split()}
    step = float(lines["step"][0].replace(",", ""))
    assert 1e3 * sum(report.stages.values()) == pytest.approx(step, rel=0.03)
    assert report.to_dict()["stages"] == report.stages
    operators = [line for line in said.splitlines() if line.startswith("aten::")]
    assert 5 < len(operators) <= 15
    spent = [float(line.split()[1].replace(",", "")) for line in operators]
    assert spent == sorted(spent, reverse=True)
    (file,) = folder.glob("*.pt.trace.json")
    events = json.loads(file.read_text())["traceEvents"]
    assert {"stage:vision", "stage:loss"} <= {event.get("name") for event in events}
    assert any("Input Dims" in event.get("args", {}) for event in events)


def test_a_model_is_left_without_ranges(shards, tmp_path, runs, capfd):
    fit(shards, *PACKED, "--steps", 3, "--profile", tmp_path)
    assert "no trace: it needs 10 steps" in capfd.readouterr().err
    model = runs[0].model
    assert "losses" not in vars(model)
    for part in (model, model.vision, model.projector):
        assert "forward" not in vars(part)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_ranges_of_a_gpu_need_one():
    with pytest.raises(ValueError, match="torch finds none here"):
        Profiling(nvtx=True)


@pytest.mark.parametrize(("share", "said"), [(0.39, False), (0.41, True)])
def test_an_encoder_that_takes_most_of_a_step_is_named(share, said):
    times = dict.fromkeys(NAMES, 0.0) | {"vision": 3 * share}
    found = verdict(Stages(steps=3, seconds=3.0, by_stage=times))
    assert ("--freeze-vision" in found) == said
