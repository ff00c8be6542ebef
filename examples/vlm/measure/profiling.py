"""Some steps seen from inside: time by stage and by operator, and a trace, by `torch.profiler`."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import profile, record_function, schedule

from examples.vlm.measure.stages import Stages, stages_of

SKIP, WARM_UP, ACTIVE = 5, 2, 3  # steps: skipped, while the profiler starts, and in the trace
LISTED = 15  # operators that are printed


@dataclass(frozen=True, kw_only=True)
class Profiling:
    """Choice of what is profiled.

    The trace goes to a `path` ending in .json, or into a folder for TensorBoard, with `shapes` of
    inputs and `stacks` of source lines. `nvtx` makes ranges for Nsight Systems.
    """

    path: Path | None = None
    shapes: bool = False
    stacks: bool = False
    nvtx: bool = False

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


class Profile:
    """Steps under the profiler; `stages` has their time once they were made."""

    def __init__(self, trace: profile | None = None) -> None:
        self._trace = trace
        self.stages: Stages | None = None

    def step(self) -> None:
        if self._trace is not None:
            self._trace.step()


@contextmanager
def profiled(asked: Profiling, model: nn.Module) -> Iterator[Profile]:
    """Yield an object whose `step` is to be called after every step."""
    if asked.nvtx:
        ranges = torch.autograd.profiler.emit_nvtx()  # type: ignore[no-untyped-call]
        with marked(model), ranges:
            yield Profile()
        return
    if asked.path is None:
        yield Profile()
        return

    def finish(trace: profile) -> None:
        write(trace, asked)
        seen.stages = stages_of(trace.events())  # type: ignore[no-untyped-call]
        print(operators(trace), seen.stages, sep="\n", file=sys.stderr)

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch 2.13 prints when it begins
    # Of the GPU too, where there is one.
    trace = profile(
        schedule=schedule(skip_first=SKIP, wait=0, warmup=WARM_UP, active=ACTIVE, repeat=1),
        on_trace_ready=finish,
        profile_memory=True,
        record_shapes=asked.shapes,
        with_stack=asked.stacks,
    )
    seen = Profile(trace)
    with marked(model), trace:
        yield seen
    if seen.stages is not None:
        print(f"trace of {ACTIVE} steps: {asked.path}", file=sys.stderr)
    else:
        least = SKIP + WARM_UP + ACTIVE
        print(f"no trace: it needs {least} steps or more; give --steps {least}", file=sys.stderr)


def write(trace: profile, asked: Profiling) -> None:
    """Write a file for https://ui.perfetto.dev, or one into a folder as TensorBoard reads it."""
    assert asked.path is not None
    if asked.path.suffix == ".json":
        trace.export_chrome_trace(str(asked.path))
    else:
        torch.profiler.tensorboard_trace_handler(str(asked.path))(trace)


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
