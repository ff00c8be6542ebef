"""Memory of training: by use, and the most that a call needs."""

import os
import resource
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function

from datapipe.declared import Refused
from datapipe.quantities import take_bytes

_MARK = "memory:"


def memory_report(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> dict[str, int]:
    """Return bytes by use; to be called after a backward pass, while there are gradients.

    "peak" is the most in use at a time: of torch's allocations on a GPU since the counter was
    reset, of the whole process on the CPU. "rest" of it are activations and temporary results, on
    the CPU also the interpreter, libraries and the loader.
    """
    found = held(model, optimizer)
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**found, "rest": max(0, peak - sum(found.values())), "peak": peak}


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the bytes of parameters, gradients and states of the optimizer, as they are now."""
    states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": _size(model.parameters()),
        "gradients": _size(p.grad for p in model.parameters() if p.grad is not None),
        "optimizer": _size(value for value in states if isinstance(value, Tensor)),
    }


def _size(tensors: Any) -> int:
    # Of a sharded tensor this rank has a part.
    return sum(t.to_local().nbytes if isinstance(t, DTensor) else t.nbytes for t in tensors)


def bytes_of(text: str) -> int:
    """Return the bytes of "80GB", "512MiB" or "1000000"."""
    try:
        return take_bytes(text)
    except Refused as error:
        raise ValueError(f"size {text!r}: give a number with a unit, such as 80GB") from error


def peak_of(call: Callable[[], Any], device: torch.device) -> int:
    """Return the most bytes of tensors that a call had at a time, beside those before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with Allocations() as seen:
        call()
    return seen.levels()[""].most


class Level(NamedTuple):
    """Bytes of tensors at a mark, and at most since the mark before; from 0 at the start."""

    now: int
    most: int


class Allocations:
    """Profiler of what this thread allocates: the CPU's allocator itself keeps no counts.

    The figures are exact. What is allocated and freed takes some percent longer.
    """

    def __init__(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch 2.13 prints when it begins
        cpu = [ProfilerActivity.CPU]
        self._trace = profile(activities=cpu, profile_memory=True, acc_events=False)

    def __enter__(self) -> Self:
        self._trace.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._trace.stop()

    def mark(self, name: str) -> None:
        with record_function(_MARK + name):
            pass

    def levels(self) -> dict[str, Level]:
        """Return the bytes at each mark, the last one of a name, and at the end as ""."""
        assert self._trace.profiler is not None
        assert self._trace.profiler.kineto_results is not None
        events: list[Any] = self._trace.profiler.kineto_results.events()
        events.sort(key=lambda event: event.start_ns())
        found: dict[str, Level] = {}
        now = most = 0
        for event in events:
            if event.name().startswith(_MARK):
                found[event.name().removeprefix(_MARK)] = Level(now, most)
                most = now
            elif event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now)
        return found | {"": Level(now, most)}
