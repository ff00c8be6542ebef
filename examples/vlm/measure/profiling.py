"""Some steps seen from inside: time by stage and by operator, and a trace, by `torch.profiler`.

An operator of the forward pass belongs to the range (`stage:...`) that it runs in. A node of the
backward pass has the sequence number of the operator that made it, and so its stage; blocks that
are recomputed run inside of such a node. Times are an operator's own, so that every microsecond
counts once; what no operator takes, Python and waiting, is "other".

Events are told apart by `id()`: calls of Python functions, which a trace with stacks has, all have
the number 0 as their own `id`.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import profile, record_function, schedule

SKIP, WARM_UP, ACTIVE = 5, 2, 3  # steps: skipped, while the profiler starts, and in the trace
LISTED = 15  # operators that are printed
NAMES = ("vision", "projector", "language", "loss", "optimizer", "exchange", "other")

ENCODER_SHARE = 0.4  # of a step, above which the encoder is worth a remedy

REMEDY = (
    "freeze it (--freeze-vision), give fewer pixels (a smaller image_size or max_pixels), cache "
    "its features if it is frozen, or bound the images of a pack (--max-images)"
)

_EXCHANGE = (
    *("c10d::", "gloo:", "nccl:", "record_param_comms"),
    *("FSDP::all_gather", "FSDP::reduce_scatter", "FSDP::post_backward_reduce"),
)
_NODE = "autograd::engine::evaluate_function"


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Seconds of the profiled steps, by the clock and by stage.

    Those by stage are the own time of operators on the GPU ("other" is idle time), or else the CPU.
    """

    steps: int
    seconds: float
    by_stage: dict[str, float]

    def share(self, name: str) -> float:
        return self.by_stage[name] / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        lines = [f"{'stage':12}{'ms a step':>12}{'share':>8}"]
        for name, spent in self.by_stage.items():
            lines.append(f"{name:12}{spent / self.steps * 1e3:12,.2f}{self.share(name):8.1%}")
        lines.append(f"{'step':12}{self.seconds / self.steps * 1e3:12,.2f}")
        return "\n".join(lines)


@dataclass(kw_only=True)
class Profiling:
    """Choice of what is profiled, and what was seen."""

    path: Path | None = None  # of the trace: ends in .json, or is a folder for TensorBoard
    shapes: bool = False  # of inputs, in the trace
    stacks: bool = False  # of source lines, in the trace
    nvtx: bool = False  # makes ranges for Nsight Systems
    step: Callable[[], object] = lambda: None  # to be called after every step
    stages: Stages | None = None  # time of the profiled steps, at last

    def __post_init__(self) -> None:
        if self.path is None and (self.shapes or self.stacks):
            raise ValueError(
                "--profile-shapes and --profile-stacks apply to a trace; add --profile"
            )
        if self.path is not None and self.nvtx:
            raise ValueError("--profile and --nvtx disturb each other's times; give one of them")
        if self.nvtx and not torch.cuda.is_available():
            raise ValueError("--nvtx marks ranges of a GPU, and torch finds none here")
        if self.path is not None and self.path.suffix == ".json" and not self.path.parent.is_dir():
            folder = self.path.parent
            raise ValueError(f"--profile {self.path}: there is no folder {folder}; make it first")


@contextmanager
def profiled(asked: Profiling, model: nn.Module) -> Iterator[None]:
    """Profile the steps that are made meanwhile, as was asked."""
    path = asked.path
    if path is None:
        ranges = torch.autograd.profiler.emit_nvtx(asked.nvtx)  # type: ignore[no-untyped-call]
        with marked(model) if asked.nvtx else nullcontext(), ranges:
            yield
        return

    def finish(trace: profile) -> None:
        if path.suffix == ".json":  # for https://ui.perfetto.dev
            trace.export_chrome_trace(str(path))
        else:
            torch.profiler.tensorboard_trace_handler(str(path))(trace)
        asked.stages = stages_of(trace.events())  # type: ignore[no-untyped-call]
        print(operators(trace), asked.stages, sep="\n", file=sys.stderr)

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch 2.13 prints when it begins
    # Of the GPU too, where there is one.
    trace = profile(
        schedule=schedule(skip_first=SKIP, wait=0, warmup=WARM_UP, active=ACTIVE, repeat=1),
        on_trace_ready=finish,
        profile_memory=True,
        record_shapes=asked.shapes,
        with_stack=asked.stacks,
    )
    asked.step = trace.step
    with marked(model), trace:
        yield
    if asked.stages is not None:
        print(f"trace of {ACTIVE} steps: {path}", file=sys.stderr)
    else:
        least = SKIP + WARM_UP + ACTIVE
        print(f"no trace: it needs {least} steps or more; give --steps {least}", file=sys.stderr)


def operators(trace: profile) -> str:
    """Operators by their own time: on the GPU where there is one."""
    key = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    # On a GPU a range has a row of its own beside those of the kernels inside.
    found = [
        (getattr(each, key), each)
        for each in trace.key_averages()
        if each.key.startswith(("aten::", "c10d::", "Optimizer")) and each.device_type.name == "CPU"
    ]
    found.sort(key=lambda pair: -pair[0])
    total = sum(spent for spent, _ in found) or 1
    lines = [f"{'operator':44}{'self ms':>10}{'share':>8}{'calls':>8}"]
    for spent, each in found[:LISTED]:
        lines.append(f"{each.key[:43]:44}{spent / 1e3:10,.1f}{spent / total:8.1%}{each.count:8,}")
    return "\n".join(lines)


@contextmanager
def marked(model: Any) -> Iterator[None]:
    """Make a range of the profiler, and of NVTX, of the model's stages."""
    # Looking tokens up and putting images among them belongs to the language model.
    stages = {
        "language": (model, "forward"),
        "vision": (model.vision, "forward"),
        "projector": (model.projector, "forward"),
        "loss": (model, "losses"),
    }
    for name, (part, method) in stages.items():
        setattr(part, method, record_function(f"stage:{name}")(getattr(part, method)))
    try:
        yield
    finally:
        for part, method in stages.values():
            delattr(part, method)


def stages_of(events: Iterable[Any]) -> Stages:
    """Add up the own time of events (`FunctionEvent`) of whole steps by stage."""
    on_cpu = [event for event in events if "CPU" in str(event.device_type)]
    on_cpu.sort(key=lambda event: (event.thread, event.time_range.start, -event.time_range.end))
    steps = [event for event in on_cpu if event.name.startswith("ProfilerStep")]
    main = {event.thread for event in steps}
    on_device = any(event.self_device_time_total for event in on_cpu)
    by_number = _numbers(on_cpu)
    spent = dict.fromkeys(NAMES, 0.0)
    found: dict[int, str] = {}
    before = "other"
    for event in on_cpu:
        stage = _stage(event, found, by_number, before)
        found[id(event)] = stage
        if event.name.startswith(_NODE):
            before = stage
        if on_device:
            spent[stage] += event.self_device_time_total
        elif event.thread in main:  # what other threads do meanwhile takes no time of a step
            spent[stage] += event.self_cpu_time_total
    seconds = sum(event.time_range.elapsed_us() for event in steps)
    if on_device:
        spent["other"] += max(0.0, seconds - sum(spent.values()))
    return Stages(
        steps=max(1, len(steps)),
        seconds=seconds / 1e6,
        by_stage={name: each / 1e6 for name, each in spent.items()},
    )


def _numbers(events: list[Any]) -> dict[int, str]:
    """Stage by sequence number: of the last operator with it, which is the one that made a node."""
    inside: dict[int, str] = {}
    backward: set[int] = set()  # events inside of a node of the backward pass
    numbers: dict[int, str] = {}
    for event in events:
        parent = id(event.cpu_parent)
        inside[id(event)] = stage = _range(event.name) or inside.get(parent, "")
        if event.name.startswith(_NODE) or parent in backward:
            backward.add(id(event))
        elif event.sequence_nr >= 0:
            numbers[event.sequence_nr] = stage
    return numbers


def _range(name: str) -> str:
    """Return the stage that a range, an optimizer or an exchange says it is."""
    if name.startswith("stage:"):
        return name.removeprefix("stage:")
    if name.startswith("Optimizer."):
        return "optimizer"
    return "exchange" if name.startswith(_EXCHANGE) else ""


def _stage(event: Any, found: dict[int, str], numbers: dict[int, str], before: str) -> str:
    """Return the stage of an event whose parents are known."""
    if said := _range(event.name):
        return said
    if event.name.startswith(_NODE):
        # Adding a gradient to a parameter's has no number; it ends the node before it.
        return numbers.get(event.sequence_nr, before) or "other"
    return found.get(id(event.cpu_parent), "other") if event.cpu_parent else "other"


def verdict(stages: Stages) -> str:
    """Return a sentence if the encoder takes most of a step; else nothing."""
    if stages.share("vision") <= ENCODER_SHARE:
        return ""
    return f"The encoder takes {stages.share('vision'):.0%} of a step: {REMEDY}."
