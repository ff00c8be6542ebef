"""Memory of training: by use, before and after the passes of a step, and the most of a call."""

import os
import resource
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function

from datapipe.declared import Refused
from datapipe.quantities import take_bytes

WATCHED = 2  # steps on the CPU; the first one makes the states of the optimizer
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
    return seen.levels()[""][1]


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

    def levels(self) -> dict[str, tuple[int, int]]:
        """Return the bytes at each mark, and at most since the mark before; from 0 at the start.

        They are those of the last mark of a name, and of the end as "".
        """
        assert self._trace.profiler is not None
        assert self._trace.profiler.kineto_results is not None
        events: list[Any] = self._trace.profiler.kineto_results.events()
        events.sort(key=lambda event: event.start_ns())
        found: dict[str, tuple[int, int]] = {}
        now = most = 0
        for event in events:
            if event.name().startswith(_MARK):
                found[event.name().removeprefix(_MARK)] = now, most
                most = now
            elif event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now)
        return found | {"": (now, most)}


class Phases:
    """Memory before and after the passes of the latest step that was watched, in bytes by kind.

    "allocated" is that of tensors, "peak" the most since the phase before. On a GPU there are
    "reserved" from the driver, and "split": free parts of blocks that are in use in other parts. On
    the CPU the tensors are parameters, gradients, states of the optimizer and what the step
    allocates, without the batch.

    Hooks of the model and of the optimizer note it, so no loop has to change. Under accumulation
    the passes are those of the last batch. On the CPU, torch's profiler is needed, so only the
    first two steps are watched. `most` replaces torch's own peak on a GPU, which each point resets.
    """

    ORDER = ("before forward", "after forward", "after backward", "after step")

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> None:
        self._model, self._optimizer, self._device = model, optimizer, device
        self._found: dict[str, dict[str, int]] = {}
        self._steps = self._held = self.most = 0
        self._allocations: Allocations | None = None  # of the step that is watched
        see = [partial(self._see, name) for name in self.ORDER]
        self._hooks = [
            model.register_forward_pre_hook(see[0]),
            model.register_forward_hook(see[1]),
            optimizer.register_step_pre_hook(see[2]),
            optimizer.register_step_post_hook(see[3]),
        ]

    def found(self) -> dict[str, dict[str, int]]:
        """Return what was seen last, in the order of a step."""
        return {name: self._found[name] for name in self.ORDER if name in self._found}

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._allocations is not None:  # an error ended the step
            self._allocations.__exit__()
            self._allocations = None

    def _see(self, name: str, *_: Any) -> None:
        if name in self.ORDER[:2] and not torch.is_grad_enabled():
            return  # an evaluation
        if self._device.type == "cuda":
            self._found[name] = read_memory(self._device)
            self.most = max(self.most, self._found[name]["peak"])
            return
        if self._allocations is None:
            if name != self.ORDER[0] or self._steps == WATCHED:
                return
            self._held = sum(held(self._model, self._optimizer).values())
            self._allocations = Allocations().__enter__()
        self._allocations.mark(name)
        if name == self.ORDER[-1]:
            self._allocations.__exit__()
            for point, level in self._allocations.levels().items():
                now, most = (self._held + size for size in level)
                self._found[point] = {"allocated": now, "peak": most}
            self._allocations = None
            self._steps += 1


def read_memory(device: torch.device) -> dict[str, int]:
    """Return the bytes of a phase on a GPU, now. The peak is counted anew from here."""
    found = torch.cuda.memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {
        "allocated": found["allocated_bytes.all.current"],
        "reserved": found["reserved_bytes.all.current"],
        "peak": found["allocated_bytes.all.peak"],
        "split": found["inactive_split_bytes.all.current"],
    }


def table_of(phases: dict[str, dict[str, int]]) -> str:
    """Phases as lines of text, in MB."""
    kinds = next(iter(phases.values()))
    lines = [f"{'memory by phase, MB':22}" + "".join(f"{kind:>11}" for kind in kinds)]
    for name, sizes in phases.items():
        line = f"{name:22}" + "".join(f"{sizes[kind] / 1e6:11,.1f}" for kind in kinds)
        if "reserved" in sizes:
            unused = 1 - sizes["allocated"] / sizes["reserved"]
            line += f"   {unused:.1%} of what is reserved is unused"
        lines.append(line)
    return "\n".join(lines)
