"""Data, pipeline, context and tensor parallelism together, over a mesh of ranks.

The mesh has the dimensions "dp", "pp", "cp" and "tp". Ranks along "dp" have different batches. The
others are peers: they have the same batch, and divide the layers ("pp"), its tokens ("cp"), or the
heads and hidden units of every block ("tp").
"""

from argparse import Namespace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from examples.vlm.model.config import ModelConfig
from examples.vlm.model.layers import Attention, Block, SwiGLU
from examples.vlm.model.vlm import VLM
from examples.vlm.parallel.ranks import Ranks


def join_mesh(ranks: Ranks, options: Namespace) -> Ranks:
    """Return the ranks with the mesh of --tensor, --context and --parallel pipeline, if any."""
    tensor, context, multiple = options.tensor, options.context, options.multiple_of
    if multiple is not None and (options.pack is None or multiple % context):
        raise ValueError(
            f"--multiple-of {multiple} pads the samples of packs so that --context {context} "
            "divides them; give --pack, and a multiple of --context"
        )
    if options.parallel == "pipeline" and ranks.world_size > 1:
        stages, groups = ranks.world_size, "--parallel pipeline"
        refused = [
            ("padded batches", options.pack is None, "give --pack"),
            ("--tensor", tensor > 1, "leave it out"),
            ("--context", context > 1, "leave it out"),
            ("--precision fp16", options.precision == "fp16", "give --precision bf16"),
            ("--optimizer 8bit", options.optimizer == "8bit", "give --optimizer fused"),
            ("--accumulate auto", options.accumulate == "auto", "give a number"),
            ("--on-error skip", options.on_error == "skip", "give --on-error raise"),
            ("--generate", options.generate, "run examples.vlm.generate on what --save writes"),
        ]
    elif (tensor, context) == (1, 1):
        return ranks
    else:
        stages, groups = 1, f"--tensor {tensor} --context {context}"
        remedy = "see docs/distributed.md, and leave one of them out"
        refused = [
            ("--context without --pack", context > 1 and options.pack is None, remedy),
            ("--compile", options.compile, remedy),
            ("--on-error skip", options.on_error == "skip", remedy),
            ("--generate", tensor > 1 and options.generate, remedy),
            # LoRA and 8-bit states know no DTensors. The others belong to DDP, which takes none.
            ("--lora", tensor > 1 and options.lora, remedy),
            ("--optimizer 8bit", tensor > 1 and options.optimizer == "8bit", remedy),
            ("--hook", tensor > 1 and options.hook, remedy),
            ("--bucket-mb", tensor > 1 and options.bucket_mb, remedy),
            ("--static-graph", tensor > 1 and options.static_graph, remedy),
        ]
    for name, given, remedy in refused:
        if given:
            raise ValueError(f"{name} does not go together with {groups}; {remedy}")
    return ranks._replace(mesh=make_mesh(ranks, tensor, context, stages))


def make_mesh(ranks: Ranks, tensor: int = 1, context: int = 1, pipeline: int = 1) -> DeviceMesh:
    """Make a mesh of all ranks; those along "dp" are as many as there are groups of peers."""
    if tensor < 1 or context < 1:
        raise ValueError(f"tensor={tensor}, context={context}: give 1 or more")
    peers = tensor * context
    if ranks.world_size % peers:
        raise ValueError(
            f"{ranks.world_size} ranks do not divide into groups of tensor {tensor} x context "
            f"{context} = {peers}; start {-(-ranks.world_size // peers) * peers} (torchrun "
            "--nproc-per-node), or give smaller groups"
        )
    shape = (ranks.world_size // (peers * pipeline), pipeline, context, tensor)
    # A tensor group sends most, so its ranks are neighbours: on one machine, if they fit there.
    return init_device_mesh(ranks.device.type, shape, mesh_dim_names=("dp", "pp", "cp", "tp"))


def check_heads(config: ModelConfig, tensor: int, context: int) -> None:
    """Check that the heads of a model divide over the ranks; `context` leaves the encoder whole."""
    for whose, heads, number in (
        ("heads of the encoder", config.vision.heads, tensor),
        ("heads of keys in the language model", config.kv_heads, tensor),
        ("heads of the language model", config.heads, tensor * context),
    ):
        if heads % number:
            raise ValueError(
                f"{heads} {whose} do not divide over {number} ranks (tensor {tensor}, context "
                f"{context}); give smaller groups, or another model"
            )


def distribute(model: VLM, mesh: DeviceMesh) -> None:
    """Divide a model over the "tp" and "cp" of a mesh, in place; before its optimizer is made."""
    tensor, context = mesh["tp"].size(), mesh["cp"].size()
    check_heads(model.config, tensor, context)
    if tensor > 1:
        divide(model, mesh["tp"])
    if context > 1:
        model.context = mesh.get_group("cp")


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
    """Divide the blocks of a model over "tp" of a mesh, in place.

    Embedding, norms, projector and head stay whole on every rank, but become DTensors, because
    optimizers take no mixture with plain tensors. Weights are those of the first rank.
    """
    check_plain(model)

    def into(module: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> Any:
        return DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)

    def out_of(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
        return output.to_local()

    for block in model.modules():
        if isinstance(block, Block):
            parallelize_module(block, mesh, block_plan())
    for module in list(model.modules()):
        own = list(module.parameters(recurse=False))
        if own and not isinstance(own[0], DTensor):
            distribute_module(module, mesh, None, into, out_of)


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


def exchange_gradients(model: nn.Module, ranks: Ranks) -> None:
    """Average gradients over the ranks that have other tokens; after the last backward pass.

    It replaces `DistributedDataParallel`, which takes no DTensors. Along "tp", gradients of shards
    are whole, and DTensors have summed the others.
    """
    assert ranks.learners is not None
    group = ranks.learners.get_group()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    own = [each.to_local() if isinstance(each, DTensor) else each for each in gradients]
    works = [dist.all_reduce(each.div_(ranks.shares), group=group, async_op=True) for each in own]
    for work in works:
        work.wait()


def whole_loss(loss: Tensor, ranks: Ranks) -> Tensor:
    """Sum a loss over the ranks that have the tokens of a row, or the layers, between them."""
    for name in ("pp", "cp"):
        if ranks.mesh is not None and ranks.mesh[name].size() > 1:
            dist.all_reduce(loss, group=ranks.mesh.get_group(name))
    return loss


def clip_gradients(model: nn.Module, most: float, ranks: Ranks) -> Tensor:
    """Scale gradients so that the norm of all is at most `most`; return the norm before that."""
    if ranks.mesh is None or ranks.mesh["pp"].size() == 1:
        norm = nn.utils.clip_grad_norm_(model.parameters(), most)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm
    squares = get_total_norm([p.grad for p in model.parameters() if p.grad is not None]) ** 2
    dist.all_reduce(squares, group=ranks.mesh.get_group("pp"))
    norm = squares.sqrt()
    clip_grads_with_norm_(model.parameters(), most, norm)
    return norm
