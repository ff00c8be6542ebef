"""Memory of training: by use, and the most that a call needs."""

import resource
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from datapipe.declared import Refused
from datapipe.quantities import take_bytes
from examples.vlm.measure.allocations import Allocations


def memory_report(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> dict[str, int]:
    """Bytes by use. Call it between a backward pass and the next step, while gradients are there.

    "peak" is the most that was in use at a time: on a GPU of torch's allocations since the counter
    was reset, on the CPU of the whole process since it began. What is left of it beside
    parameters, gradients and optimizer are activations and passing results ("rest"), on the CPU
    also the interpreter, libraries and the loader.
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
