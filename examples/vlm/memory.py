"""Memory of training, by use."""

from __future__ import annotations

import resource
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


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
