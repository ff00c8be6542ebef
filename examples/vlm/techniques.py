"""The switches of training, each thrown by itself: `python -m benchmarks.ladder` does that."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

Precision = Literal["fp32", "bf16", "fp16"]
Optimizer = Literal["loop", "foreach", "fused", "8bit"]

_AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Techniques:
    """Ways to compute a step. The model learns the same, but for rounding, under any of them.

    Attributes:
        precision: of matrix products: "fp32", or automatic mixed precision in "bf16" or "fp16",
            the latter with scaled gradients (arXiv 1710.03740).
        tf32: whether float32 products on a GPU round their factors to 10 bits of mantissa.
        compile: whether blocks go through `torch.compile`.
        static_shapes: whether all batches have the same shapes, on which compiled blocks then
            count; otherwise they are compiled for changing ones.
        optimizer: AdamW a parameter at a time ("loop"), over lists of them ("foreach"), in one
            kernel ("fused"), or with states of 8 bits ("8bit", from bitsandbytes; arXiv
            2110.02861).
        set_to_none: whether gradients are freed after a step, rather than set to zero.
        recompute: activation checkpointing (arXiv 1604.06174): less memory, a forward pass more.
        freeze_vision: whether the encoder stays as it is; the projector learns.
        lora: rank of low-rank adapters (arXiv 2106.09685) on the language model, whose own weights
            then stay as they are, as the encoder's do; 0 for none.
        accumulate: batches whose gradients are added up for a step.
        accumulate_tokens: instead: so many batches that they have at least this number of labels.
        clip: most that the norm of all gradients may be; 0 for no limit.
        ahead: whether batches reach a GPU ahead of the loop, through page-locked memory on a stream
            of its own; otherwise each step copies its own.
        keep_losses: whether losses stay on the device until they are logged; otherwise each step
            waits for its own.

    Raises:
        ValueError: a value is not one of these.
    """

    precision: Precision = "fp32"
    tf32: bool = False
    compile: bool = False
    static_shapes: bool = False
    optimizer: Optimizer = "fused"
    set_to_none: bool = True
    recompute: bool = False
    freeze_vision: bool = False
    lora: int = 0
    accumulate: int = 1
    accumulate_tokens: int = 0
    clip: float = 1.0
    ahead: bool = True
    keep_losses: bool = True

    def __post_init__(self) -> None:
        for name, known in (("precision", get_args(Precision)), ("optimizer", get_args(Optimizer))):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} {getattr(self, name)!r} is none of {', '.join(known)}; give one"
                )
        for name, least in (("accumulate", 1), ("accumulate_tokens", 0), ("lora", 0), ("clip", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: give {least} or more")
        if self.accumulate > 1 and self.accumulate_tokens:
            raise ValueError(
                f"accumulate={self.accumulate} and accumulate_tokens={self.accumulate_tokens}: "
                "give one of them"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Of queries, keys and values."""
        return _AMP.get(self.precision, torch.float32)

    def autocast(self, device: torch.device) -> Any:
        """Return a context in which matrix products have the precision asked for."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(device.type, dtype=self.dtype)

    def scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """Scales losses so that float16 gradients do not vanish; does nothing otherwise."""
        return torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")

    def apply(self, model: Any) -> None:
        """Change a `VLM` in place as asked, before its optimizer is made.

        Raises:
            ValueError: peft, which makes adapters, is not installed.
        """
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.allow_tf32 = self.tf32
        if self.freeze_vision or self.lora:
            model.vision.requires_grad_(False)
        if self.lora:
            add_adapters(model, self.lora)
        for transformer in (model.vision.transformer, model.language):
            transformer.recompute = self.recompute
            if self.compile:
                # All blocks are one piece of code: it is compiled once, and not once a layer.
                for block in transformer.blocks:
                    block.compile(dynamic=False if self.static_shapes else None)

    def make_optimizer(
        self, model: nn.Module, *, rate: float, decay: float
    ) -> torch.optim.Optimizer:
        """AdamW with weight decay on matrices alone.

        Raises:
            ValueError: bitsandbytes is not installed.
        """
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in learning if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in learning if p.ndim <= 1], "weight_decay": 0.0},
        ]
        options: dict[str, Any] = {"lr": rate, "betas": (0.9, 0.95)}
        if self.optimizer == "8bit":
            try:
                from bitsandbytes.optim import AdamW8bit
            except ImportError as error:
                raise ValueError(
                    "optimizer '8bit' needs bitsandbytes: pip install bitsandbytes"
                ) from error
            made: torch.optim.Optimizer = AdamW8bit(groups, **options)
            return made
        kind = self.optimizer
        return torch.optim.AdamW(
            groups, **options, foreach=kind == "foreach", fused=kind == "fused"
        )

    def zero(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget the gradients of the step that was made."""
        optimizer.zero_grad(set_to_none=self.set_to_none)


def add_adapters(model: Any, rank: int) -> None:
    """Put low-rank adapters beside all matrices of the language model, and freeze these.

    Raises:
        ValueError: peft is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError("adapters (lora) need peft: pip install peft") from error
    names = ["q", "k", "v", "out", "gate", "up", "down"]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names)
    inject_adapter_in_model(config, model.language)
    model.embedding.requires_grad_(False)
    model.head.requires_grad_(False)
