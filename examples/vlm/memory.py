"""Memory of training: by use, by phase of a step, and the most that a call needs."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile


def memory_report(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> dict[str, int]:
    """Bytes by use. Call it between a backward pass and the next step, while gradients are there.

    "peak" is the most that was in use at a time: on a GPU of torch's allocations since the counter
    was reset, on the CPU of the whole process since it began. What is left of it beside
    parameters, gradients and optimizer are activations and passing results ("rest").
    """
    states = [value for state in optimizer.state.values() for value in state.values()]
    found = {
        "parameters": _size(model.parameters()),
        "gradients": _size(p.grad for p in model.parameters() if p.grad is not None),
        "optimizer": _size(value for value in states if isinstance(value, Tensor)),
    }
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**found, "rest": max(0, peak - sum(found.values())), "peak": peak}


def _size(tensors: Any) -> int:
    # Of a sharded tensor this rank has a part.
    here = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in here)


def bytes_of(text: str) -> int:
    """Return the bytes of "80GB", "512MiB" or "1000000".

    Raises:
        ValueError: it is no size.
    """
    units = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([a-z]*)", text.strip().lower())
    if found is None or found[2] not in units:
        raise ValueError(f"size {text!r}: give a number with a unit, such as 80GB or 512MiB")
    return int(float(found[1]) * units[found[2]])


def peak_of(call: Callable[[], Any], device: torch.device) -> int:
    """Return the most bytes of tensors that a call had at a time, beside those before it.

    On a GPU that is torch's own count. On the CPU the profiler notes every allocation of this
    thread, so the result is exact, and the call some percent slower.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch 2.13 prints when it begins
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as trace:
        call()
    assert trace.profiler is not None
    assert trace.profiler.kineto_results is not None
    events = trace.profiler.kineto_results.events()
    moves = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    now = most = 0
    for _, size in sorted(moves, key=lambda move: move[0]):
        now += size
        most = max(most, now)
    return most


class Phase(NamedTuple):
    """Memory at one point of a step.

    Attributes:
        name: of the point.
        bytes: by kind. On a GPU: "allocated" to tensors, "reserved" from the driver, "peak" of
            allocations since the point before, and "split": free parts of blocks that are in use
            in other parts. On the CPU, whose allocator keeps no counts: "resident", of the whole
            process, and "peak" of that since the process began.
    """

    name: str
    bytes: dict[str, int]

    @property
    def fragmentation(self) -> float | None:
        """Share of what is reserved that no tensor has; None on the CPU."""
        reserved = self.bytes.get("reserved")
        return 1 - self.bytes["allocated"] / reserved if reserved else None


class Phases:
    """Memory before and after the passes of the latest step that was watched.

    Hooks of the model and of the optimizer note it, so no loop has to change. Under accumulation
    the passes are those of the last batch.

    Args:
        model, optimizer: of the loop.
        device: of the model.

    Attributes:
        most: bytes that were in use at a time so far. On a GPU torch's own count is no longer that:
            it begins anew at each point.
    """

    ORDER = ("before forward", "after forward", "after backward", "after step")

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> None:
        self._device = device
        self._found: dict[str, Phase] = {}
        self.most = 0
        names = iter(self.ORDER)
        self._hooks = [
            model.register_forward_pre_hook(self._noting(next(names))),
            model.register_forward_hook(self._noting(next(names))),
            optimizer.register_step_pre_hook(self._noting(next(names))),
            optimizer.register_step_post_hook(self._noting(next(names))),
        ]

    def close(self) -> list[Phase]:
        """Watch no more; return what was seen last, in the order of a step."""
        for hook in self._hooks:
            hook.remove()
        return [self._found[name] for name in self.ORDER if name in self._found]

    def _noting(self, name: str) -> Callable[..., None]:
        def note(*_: Any) -> None:
            if torch.is_grad_enabled() or name not in self.ORDER[:2]:
                phase = self._found[name] = Phase(name, read_memory(self._device))
                self.most = max(self.most, phase.bytes["peak"])

        return note


def read_memory(device: torch.device) -> dict[str, int]:
    """Return the bytes of `Phase` now. On a GPU the peak is counted anew from here."""
    if device.type != "cuda":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"resident": psutil.Process().memory_info().rss, "peak": peak}
    found = torch.cuda.memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {
        "allocated": found["allocated_bytes.all.current"],
        "reserved": found["reserved_bytes.all.current"],
        "peak": found["allocated_bytes.all.peak"],
        "split": found["inactive_split_bytes.all.current"],
    }


def table_of(phases: list[Phase]) -> str:
    """Phases as lines of text, in MB."""
    if not phases:
        return "memory by phase: no step was made"
    kinds = list(phases[0].bytes)
    lines = [f"{'memory by phase, MB':22}" + "".join(f"{kind:>11}" for kind in kinds)]
    for phase in phases:
        line = f"{phase.name:22}" + "".join(f"{phase.bytes[kind] / 1e6:11,.1f}" for kind in kinds)
        if phase.fragmentation is not None:
            line += f"   {phase.fragmentation:.1%} of what is reserved is unused"
        lines.append(line)
    return "\n".join(lines)
