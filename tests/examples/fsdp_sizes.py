"""One rank of a step under FSDP2 with gloo: prints the bytes that it holds, as JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["KINETO_LOG_LEVEL"] = "99"

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from examples.vlm.measure.memory import peak_of
from examples.vlm.model.inputs import make_inputs
from examples.vlm.techniques.switches import Techniques
from tests.examples.test_vlm_budget import CPU, LOAD, TINY, make, make_batch


def held(tensor: Any) -> int:
    """Bytes on this rank."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.nbytes)


def main(rank: int, store: str) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
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
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
