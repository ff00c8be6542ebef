"""The model on several ranks: copies that exchange gradients (DDP), shards (FSDP2), or stages."""

import argparse
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from examples.vlm.model.vlm import VLM
from examples.vlm.parallel.mesh import exchange_gradients
from examples.vlm.parallel.pipeline import Pipeline
from examples.vlm.parallel.ranks import Ranks
from examples.vlm.techniques import Techniques

Kind = Literal["ddp", "fsdp", "pipeline"]
Hook = Literal["none", "fp16", "bf16", "powersgd"]


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Ways to train on several ranks; all learn what one process with the whole step learns."""

    # "ddp": every rank has the whole model, and gradients are averaged; "fsdp": every rank has a
    # part of each block's weights, gradients and states of the optimizer; "pipeline": every rank
    # has some layers, and passes activations on.
    kind: Kind = "ddp"
    # What gradients become on their way in DDP: "fp16" and "bf16" halve the bytes, "powersgd" sends
    # factors of a low rank (arXiv 1905.13727).
    hook: Hook = "none"
    powersgd_rank: int = 4
    powersgd_start: int = 10  # first step, 2 or more: DDP rearranges its buckets after the first
    bucket_mb: float | None = None  # megabytes of gradients sent at a time; None for torch's 25
    # DDP relies on the same parameters in every step. Here every batch runs the encoder, even
    # without images.
    static_graph: bool = False


def parallel_of(options: argparse.Namespace, techniques: Techniques, ranks: Ranks) -> Parallel:
    of_ddp = {
        "--hook": options.hook,
        "--powersgd-rank": options.powersgd_rank,
        "--bucket-mb": options.bucket_mb,
        "--static-graph": options.static_graph or None,
    }
    of_ranks = {"--parallel": options.parallel, **of_ddp, "--rank-timeout": options.rank_timeout}
    accumulates = options.accumulate != 1 or options.accumulate_tokens or options.accumulate_samples
    if options.global_batch_size and accumulates:
        raise ValueError(
            "--global-batch-size says how many batches a step accumulates; leave --accumulate, "
            "--accumulate-tokens and --accumulate-samples out"
        )
    if ranks.world_size == 1 and (name := first_given(of_ranks)):
        raise ValueError(
            f"{name}: one process exchanges nothing; start several with torchrun "
            f"--nproc-per-node N -m examples.vlm.train, or leave {name} out"
        )
    if options.parallel in ("fsdp", "pipeline") and (name := first_given(of_ddp)):
        raise ValueError(
            f"{name} configures DDP and has no effect with --parallel {options.parallel}; leave "
            "one of them out"
        )
    if options.parallel == "fsdp":
        if techniques.precision == "fp16":
            raise ValueError(
                "--precision fp16 under --parallel fsdp: values between blocks would be float16 "
                "too, and overflow; give --precision bf16"
            )
        if techniques.optimizer == "8bit":
            raise ValueError(
                "--optimizer 8bit under --parallel fsdp: bitsandbytes takes no sharded parameters; "
                "give --optimizer fused, whose states are sharded"
            )
        if options.generate:
            raise ValueError(
                "--generate under --parallel fsdp: one process generates, and it has a part of "
                "the model; run examples.vlm.generate on what --save writes"
            )
    if options.hook == "powersgd" and options.bucket_mb and ranks.device.type == "cpu":
        raise ValueError(
            "--bucket-mb with --hook powersgd on CPUs: gloo would mix up the exchanges of several "
            "buckets, so it gets one; leave --bucket-mb out"
        )
    if options.powersgd_rank is not None and options.hook != "powersgd":
        raise ValueError("--powersgd-rank only applies to --hook powersgd; give both or neither")
    for name in ("--powersgd-rank", "--bucket-mb"):
        if of_ddp[name] is not None and of_ddp[name] <= 0:
            raise ValueError(f"{name} {of_ddp[name]}: give more than 0")
    if options.static_graph and accumulates:
        # The first backward pass of a static graph sends gradients in any case, and torch 2.13
        # fails there with an internal assertion.
        raise ValueError(
            "--static-graph does not go together with accumulation: its first step sends the "
            "gradients of every batch; leave one of them out"
        )
    return Parallel(
        kind=options.parallel or "ddp",
        hook=options.hook or "none",
        powersgd_rank=options.powersgd_rank or 4,
        powersgd_start=max(2, options.lr_warmup),
        bucket_mb=options.bucket_mb,
        static_graph=options.static_graph,
    )


def first_given(options: dict[str, Any]) -> str | None:
    return next((name for name, value in options.items() if value is not None), None)


class Norms:
    """Norm of this rank's own gradients, summed over the batches of a step, before the exchange."""

    def __init__(self) -> None:
        self._squares: list[Tensor] = []

    def note(self, gradients: Tensor) -> None:
        """Note some of the gradients, before they are exchanged."""
        self._squares.append(gradients.detach().float().square().sum())

    def take(self) -> Tensor | None:
        """Return the norm of all that was noted since it was last taken, on the device."""
        if not self._squares:
            return None
        norm = torch.stack(self._squares).sum().sqrt()
        self._squares.clear()
        return norm


@dataclass(kw_only=True)
class Exchange:
    """A model whose gradients are averaged over the ranks; `module` is called in its place."""

    module: nn.Module
    norms: Norms = field(default_factory=Norms)  # of this rank's own gradients
    # Called after the last backward pass of a step, to send the rest.
    finish: Callable[[], None] = lambda: None
    pipeline: Pipeline | None = None  # runs the passes of a step if ranks share the layers

    @property
    def divided(self) -> bool:
        parameters = self.module.parameters()
        return self.pipeline is not None or any(isinstance(p, DTensor) for p in parameters)

    def sending(self, last: bool) -> AbstractContextManager[Any]:
        """Return a context for a batch: gradients are sent only with the last one of a step."""
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)
        elif isinstance(self.module, DistributedDataParallel) and not last:
            context: AbstractContextManager[Any] = self.module.no_sync()
            return context
        return nullcontext()

    def autocast(self, techniques: Techniques, device: torch.device) -> Any:
        """Return the context of a forward pass; shards are gathered in their precision already."""
        shards = isinstance(self.module, FSDPModule)
        return nullcontext() if shards else techniques.autocast(device)


def connect(
    model: VLM, parallel: Parallel, techniques: Techniques, ranks: Ranks, *, tokens: int = 0
) -> Exchange:
    """Connect the model with those of the other ranks, before its optimizer is made.

    A pipeline must know the most `tokens` of a batch.
    """
    if ranks.world_size == 1:
        return Exchange(module=model)
    if parallel.kind == "pipeline":
        autocast = partial(techniques.autocast, ranks.device)
        pipeline = Pipeline(model, ranks, tokens=tokens, autocast=autocast)
        return Exchange(module=model, pipeline=pipeline)
    if parallel.kind == "fsdp":
        return shard(model, techniques, ranks)
    if ranks.mesh is not None and ranks.mesh["tp"].size() > 1:  # DDP takes no DTensors
        return Exchange(module=model, finish=partial(exchange_gradients, model, ranks))
    copies = DistributedDataParallel(
        model,
        bucket_cap_mb=bucket_of(model, parallel, ranks),
        gradient_as_bucket_view=True,  # else every gradient is in memory twice
        static_graph=parallel.static_graph,
    )
    exchange = Exchange(module=copies)
    copies.register_comm_hook(None, make_hook(parallel, exchange.norms))
    return exchange


def make_hook(parallel: Parallel, norms: Norms) -> Callable[[Any, Any], Future[Tensor]]:
    """Make a hook for `DistributedDataParallel.register_comm_hook(None, hook)`.

    DDP refuses torch's own bf16 hook on a CPU by its name, for lack of NCCL 2.10; gloo adds
    bfloat16 itself, so this hook works on both.
    """
    state: Any = None
    send: Callable[[Any, Any], Future[Tensor]]
    if parallel.hook == "powersgd":
        # It logs every setting and every step it counts.
        logging.getLogger(powerSGD_hook.__name__).setLevel(logging.WARNING)
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=parallel.powersgd_rank,
            start_powerSGD_iter=parallel.powersgd_start,
        )
        send = powerSGD_hook.powerSGD_hook
    else:
        send = {
            "none": default_hooks.allreduce_hook,
            "fp16": default_hooks.fp16_compress_hook,
            "bf16": default_hooks.bf16_compress_hook,
        }[parallel.hook]

    def hook(_: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        norms.note(bucket.buffer())
        return send(state, bucket)

    return hook


def bucket_of(model: nn.Module, parallel: Parallel, ranks: Ranks) -> float | None:
    """Return the megabytes of gradients that DDP sends at a time; None for torch's default.

    PowerSGD begins exchanges in callbacks, which gloo runs in any order. Ranks would mix up several
    buckets, and hang or abort. So there it gets all gradients in one.
    """
    if parallel.hook != "powersgd" or ranks.device.type != "cpu":
        return parallel.bucket_mb
    return 1 + sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20


def shard(model: VLM, techniques: Techniques, ranks: Ranks) -> Exchange:
    """Divide the weights of each block, and then all others, between the ranks.

    Weights are gathered, and the model computes, in the precision asked for; gradients are summed
    and weights updated in float32. Inputs are not cast: angles of positions need float32.
    """
    dtype = torch.bfloat16 if techniques.precision == "bf16" else None
    policy = MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=None if dtype is None else torch.float32,
        cast_forward_inputs=False,
    )
    norms = Norms()
    blocks = [*model.vision.transformer.blocks, *model.language.blocks]
    for part in (*blocks, model):
        fully_shard(part, mesh=ranks.learners, mp_policy=policy)
        part.set_custom_reduce_scatter(_NotingReduceScatter(norms))
    return Exchange(module=model, norms=norms)


class _NotingReduceScatter:
    """Reduce-scatter of FSDP that notes the norm of what this rank sends."""

    def __init__(self, norms: Norms) -> None:
        self._norms = norms

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **how: Any) -> Any:
        self._norms.note(input_tensor)
        # Before torch 2.13 it has another name.
        send = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return send(output_tensor, input_tensor, **how)
