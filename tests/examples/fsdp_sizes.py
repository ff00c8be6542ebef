"""One rank of a step under FSDP2 with gloo: prints the bytes that it holds, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from examples.vlm.measure.memory import peak_of
from examples.vlm.model.inputs import make_inputs
from examples.vlm.techniques.switches import Techniques

from .test_vlm_budget import CPU, LOAD, TINY, make, make_batch
from .vlm_runs import group_of


def held(tensor: Any) -> int:
    """Bytes on this rank."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.nbytes)


def main() -> None:
    techniques = Techniques()
    model = make(TINY, techniques)
    mesh = init_device_mesh("cpu", (2,))
    for block in [*model.vision.transformer.blocks, *model.language.blocks]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = techniques.make_optimizer(model, rate=1e-3, decay=0.1)
    batch = make_batch(TINY, LOAD)

    def step() -> None:
        model(make_inputs(batch, TINY, "split")).mean().backward()
        optimizer.step()

    step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    found = {
        "parameters": sum(held(p) for p in model.parameters()),
        "gradients": sum(held(p.grad) for p in model.parameters()),
        "optimizer": sum(held(value) for value in states),
    }
    techniques.zero(optimizer)
    given = sum(value.nbytes for value in batch.values() if isinstance(value, torch.Tensor))
    found["peak"] = peak_of(step, CPU) + found["parameters"] + found["optimizer"] + given
    print(json.dumps(found))


if __name__ == "__main__":
    with group_of(2, *sys.argv[1:]):
        main()
