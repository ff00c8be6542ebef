"""Tensor parallelism: ranks have the heads and the hidden units of every block between them."""

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from examples.vlm.model.layers import Attention, Block, SwiGLU


def block_plan() -> dict[str, ParallelStyle]:
    """Return the layout of a block's matrices: one sum over the ranks after each half.

    The input of a half becomes a DTensor once, so its gradients are added up before the ranks sum
    them. Hidden units may divide unevenly, so they stay a DTensor.
    """
    whole = Replicate()
    hidden = ColwiseParallel(use_local_output=False)
    return {
        "attention": PrepareModuleInput(
            input_layouts=(whole, None, None, None), desired_input_layouts=(whole, None, None, None)
        ),
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "mlp": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,)),
        "mlp.gate": hidden,
        "mlp.up": hidden,
        "mlp.down": RowwiseParallel(),
    }


def divide(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the blocks of a model over "tp" of a mesh, in place, before its optimizer is made.

    Embedding, norms, projector and head stay whole on every rank, but become DTensors, because
    optimizers take no mixture with plain tensors. Weights are those of the first rank.
    """
    check_plain(model)
    for block in model.modules():
        if isinstance(block, Block):
            parallelize_module(block, mesh, block_plan())
    for module in list(model.modules()):
        own = list(module.parameters(recurse=False))
        if own and not isinstance(own[0], DTensor):
            distribute_module(module, mesh, None, _to_dtensor, _to_local)


def check_plain(model: nn.Module) -> None:
    """Check that the matrices of the blocks are what `block_plan` divides."""
    modules = dict(model.named_modules())
    for name, block in modules.items():
        for part in block_plan() if isinstance(block, Block) else ():
            kind = type(modules.get(f"{name}.{part}"))
            if kind not in (nn.Linear, Attention, SwiGLU):
                raise ValueError(
                    f"{name}.{part} is a {kind.__module__}.{kind.__qualname__}, and tensor "
                    "parallelism divides plain linear layers; train without adapters"
                )


def _to_dtensor(module: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> Any:
    return DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)


def _to_local(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
    return output.to_local()
