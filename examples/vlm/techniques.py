"""Techniques of training: switches, each thrown by itself, as `python -m benchmarks.ladder` does.

Then what some of them need: activation checkpointing, `torch.compile`, the learning rate.
"""

import math
import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from torch import nn
from torch._dynamo.utils import calculate_time_spent, counters

Precision = Literal["fp32", "bf16", "fp16"]
Optimizer = Literal["loop", "foreach", "fused", "8bit"]
Mode = Literal["", "default", "reduce-overhead", "max-autotune"]
Rule = Literal["linear", "sqrt"]

_AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}
KNOWN = "all, N (every N-th block), blocks such as 0,3,7 (a single one: 3,), or sequential:N"


@dataclass(frozen=True, kw_only=True)
class Techniques:
    """Ways to compute a step. But for rounding, most leave what the model learns as it is."""

    # Of matrix products: "fp32", or automatic mixed precision in "bf16" or "fp16", the latter with
    # scaled gradients (arXiv 1710.03740).
    precision: Precision = "fp32"
    tf32: bool = False  # round the factors of float32 products on a GPU to 10 bits of mantissa
    # Equal steps give equal bits on a GPU, as they do on the CPU; operators that cannot do that
    # raise an error.
    deterministic: bool = False
    compile: Mode = ""  # mode of `torch.compile` for every block; "" for none
    static_shapes: bool = False  # all batches have the same, and blocks are compiled for them
    # AdamW a parameter at a time ("loop"), over lists of them ("foreach"), in one kernel ("fused"),
    # or with states of 8 bits ("8bit", arXiv 2110.02861).
    optimizer: Optimizer = "fused"
    set_to_none: bool = True  # free gradients after a step, rather than set them to zero
    recompute: str = ""  # blocks of activation checkpointing (arXiv 1604.06174), `read_recompute`
    # Share of attention set to zero (arXiv 1706.03762). It alone changes what is learnt.
    dropout: float = 0.0
    freeze_vision: bool = False  # train the projector, but not the encoder
    # Rank of low-rank adapters (arXiv 2106.09685) on the language model, whose own weights are
    # frozen then, as the encoder's are; 0 for none.
    lora: int = 0
    accumulate: int = 1  # batches whose gradients are added up for a step
    accumulate_tokens: int = 0  # least labels of a step, instead
    accumulate_samples: int = 0  # least samples of a step, instead
    clip: float = 1.0  # largest norm of all gradients; 0 for no limit
    # Copy batches to a GPU ahead of the loop, through page-locked memory on another stream, rather
    # than in each step.
    ahead: bool = True
    keep_losses: bool = True  # on the device until they are logged; else every step waits

    def __post_init__(self) -> None:
        for name, kind in (("precision", Precision), ("optimizer", Optimizer), ("compile", Mode)):
            if getattr(self, name) not in get_args(kind):
                known = ", ".join(filter(None, get_args(kind)))
                raise ValueError(f"{name} {getattr(self, name)!r} is none of {known}; give one")
        counts = ("accumulate", "accumulate_tokens", "accumulate_samples")
        for name, least in zip((*counts, "lora", "clip"), (1, 0, 0, 0, 0), strict=True):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name}={getattr(self, name)}: give {least} or more")
        given = [
            f"{name}={getattr(self, name)}"
            for name, unset in zip(counts, (1, 0, 0), strict=True)
            if getattr(self, name) != unset
        ]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one of them")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: give a share from 0 to below 1")

    @property
    def keeps_gradients(self) -> bool:
        """True if gradients of a batch are there when the next one begins."""
        several = self.accumulate > 1 or self.accumulate_tokens or self.accumulate_samples
        return bool(several) or not self.set_to_none

    @property
    def group(self) -> dict[str, int]:
        """Bounds of the batches of a step, as `groups_of` takes them."""
        labels, samples = self.accumulate_tokens, self.accumulate_samples
        return {"count": self.accumulate, "labels": labels, "samples": samples}

    @property
    def dtype(self) -> torch.dtype:
        """Type of queries, keys and values."""
        return _AMP.get(self.precision, torch.float32)

    def autocast(self, device: torch.device) -> Any:
        return torch.autocast(device.type, self.dtype, enabled=self.precision != "fp32")

    def scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """Scales losses so that float16 gradients do not vanish; does nothing otherwise."""
        return torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")

    def apply(self, model: Any) -> None:
        """Change a `VLM` in place as asked, before its optimizer is made."""
        torch.backends.cuda.matmul.allow_tf32 = self.tf32
        torch.backends.cudnn.allow_tf32 = self.tf32
        torch.use_deterministic_algorithms(self.deterministic)
        if self.deterministic:
            # cuBLAS reads it with the first product (its manual, "Results reproducibility").
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if self.freeze_vision or self.lora:
            model.vision.requires_grad_(False)
        if self.lora:
            add_adapters(model, self.lora)
        for transformer in (model.vision.transformer, model.language):
            transformer.recompute = read_recompute(
                self.recompute, len(transformer.blocks), whole=transformer is model.language
            )
            for block in transformer.blocks:
                block.attention.dropout = self.dropout
                if self.compile:
                    # All blocks share one piece of code, which is compiled once.
                    block.compile(mode=self.compile, dynamic=False if self.static_shapes else None)

    def make_optimizer(
        self, model: nn.Module, *, rate: float, decay: float
    ) -> torch.optim.Optimizer:
        """AdamW with weight decay on matrices alone."""
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in learning if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in learning if p.ndim <= 1], "weight_decay": 0.0},
        ]
        given: dict[str, Any] = {"lr": rate, "betas": (0.9, 0.95)}
        if self.optimizer == "8bit":
            try:
                from bitsandbytes.optim import AdamW8bit
            except ImportError as error:
                raise ValueError(
                    "optimizer '8bit' needs bitsandbytes: pip install bitsandbytes, or "
                    "'datapipe-vlm[train]'"
                ) from error
            made: torch.optim.Optimizer = AdamW8bit(groups, **given)
            return made
        kind = self.optimizer
        return torch.optim.AdamW(groups, **given, foreach=kind == "foreach", fused=kind == "fused")

    def zero(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=self.set_to_none)


def add_adapters(model: Any, rank: int) -> None:
    """Put low-rank adapters beside all matrices of the language model, and freeze these."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError(
            "adapters (lora) need peft: pip install peft, or 'datapipe-vlm[train]'"
        ) from error
    names = ["qkv", "out", "gate", "up", "down"]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names)
    inject_adapter_in_model(config, model.language)
    model.embedding.requires_grad_(False)
    model.head.requires_grad_(False)


class Recompute(NamedTuple):
    """Blocks of a transformer, from 0, whose activations are computed again: each keeps its input.

    `segments`, if not 0, are runs of blocks, each of which but the last keeps its input alone.
    """

    blocks: frozenset[int] = frozenset()
    segments: int = 0


NONE = Recompute()


def read_recompute(text: str, layers: int, *, whole: bool = True) -> Recompute:
    """Return the blocks that `--recompute` names, of a transformer with so many layers.

    The text is "" for none, or one of `KNOWN`. A list of blocks means the `whole` model's language
    model alone.
    """
    if not text:
        return NONE
    if text == "all":
        text = "1"
    kind, _, number = text.rpartition(":")
    chosen = number.removesuffix(",").split(",")
    if kind not in ("", "sequential") or not all(each.isdecimal() for each in chosen):
        raise ValueError(f"recompute {text!r}: give {KNOWN}")
    most = max(map(int, chosen))
    if kind:
        if "," in number or not 1 <= most <= layers:
            raise ValueError(f"recompute {text!r}: {layers} blocks make 1 to {layers} runs")
        return Recompute(segments=most)
    if "," in text:
        if whole and most >= layers:
            raise ValueError(
                f"recompute {text!r}: there are {layers} blocks; give numbers from 0 to "
                f"{layers - 1}"
            )
        return Recompute(frozenset(map(int, chosen))) if whole else NONE
    if not most:
        raise ValueError("recompute '0': give 1 or more; every N-th block is computed again")
    if whole and most > layers:
        raise ValueError(
            f"recompute {text!r}: there are {layers} blocks; give 1 to {layers} for every N-th of "
            "them, or '0,' for the first alone"
        )
    return Recompute(frozenset(range(0, layers, most)))


class Compiled(NamedTuple):
    """Work of the compiler in this process: seconds, and graphs that it made."""

    seconds: float
    graphs: int

    @classmethod
    def so_far(cls) -> Self:
        """Return the figures since the process began, as torch counts them."""
        return cls(calculate_time_spent()["total_wall_time"], counters["stats"]["unique_graphs"])

    def since(self, before: Self) -> Self:
        return type(self)(self.seconds - before.seconds, self.graphs - before.graphs)


def check_compiler(mode: Mode, device: torch.device, *, keeps_gradients: bool = False) -> None:
    """Refuse what cannot be compiled here, before there is a model; see `Techniques`."""
    if not mode:
        return
    if device.type == "cpu":
        if mode == "reduce-overhead":
            raise ValueError(
                "--compile reduce-overhead replays CUDA graphs, and on the CPU it would be the "
                "default; give --compile default"
            )
        compiler = os.environ.get("CXX", "g++")
        if not shutil.which(compiler):
            raise ValueError(
                f"--compile needs a C++ compiler on the CPU, and there is no {compiler}; install "
                "g++ (apt-get install g++), or name another in the variable CXX"
            )
        return
    if find_spec("triton") is None:
        raise ValueError(
            "--compile needs triton on a GPU, and it is not there; install it: pip install triton"
        )
    if mode != "default" and keeps_gradients:
        # They lie in the memory of the graphs, which the next batch's pass takes again
        # (https://github.com/pytorch/pytorch/issues/169545).
        raise ValueError(
            f"--compile {mode} replays CUDA graphs, which overwrite the gradients of a batch that "
            "are kept for the next one (by --accumulate, --accumulate-tokens, "
            "--accumulate-samples, --global-batch-size or --zero-gradients); give --compile default"
        )


def rate_at(step: int, *, steps: int, warmup: int, peak: float, end: float = 0.1) -> float:
    """Learning rate of a step: a line up to `peak`, then half a cosine to `end * peak`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (end + (1 - end) * 0.5 * (1 + math.cos(math.pi * done)))


def scaled_rate(rate: float, *, rule: Rule, samples: float, base: int) -> float:
    """Return the learning rate for steps of another number of samples than `base`, which it suits.

    "linear" multiplies it by the ratio of the sizes, for SGD (arXiv 1706.02677). "sqrt" multiplies
    it by the root of the ratio, for Adam, whose steps do not grow with the gradient (arXiv
    2205.10287). Samples are over all ranks and accumulated batches.
    """
    if base < 1:
        raise ValueError(
            f"--scale-lr {rule} needs the batch that --lr was found with; give --base-batch SAMPLES"
        )
    ratio = samples / base
    return rate * (ratio if rule == "linear" else math.sqrt(ratio))
