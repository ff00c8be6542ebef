"""Choice of a kernel, and its preparations."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from examples.vlm.model.attention.kernels import (
    HALF,
    KERNELS,
    TORCH,
    WITH_DROPOUT,
    Segments,
    allow_variants,
)
from examples.vlm.model.attention.table import Table

AUTO = "auto"
# What each kernel imports, and where that comes from.
_NEEDS = {
    "flex": ("torch.nn.attention.flex_attention", "torch 2.5 or newer"),
    "varlen": ("torch.nn.attention.varlen", "torch 2.11 or newer"),
    "flash": ("flash_attn.flash_attn_interface", "the package flash-attn, version 2"),
    "xformers": ("xformers.ops", "the package xformers"),
}
_AMPERE = (8, 0)  # compute capability from which on Flash Attention 2 runs


@cache
def why_not(kernel: str, device: str, dtype: torch.dtype, dropout: bool = False) -> str:
    """Return the reason why a kernel cannot train here, and what to do; empty if it can."""
    if kernel not in KERNELS:
        raise ValueError(f"attention {kernel!r} is none of {', '.join([AUTO, *KERNELS])}")
    if dropout and kernel not in WITH_DROPOUT:
        return f"{kernel} knows no dropout; take one of {', '.join(WITH_DROPOUT)}, or --dropout 0"
    if device == "cpu" and kernel in ("varlen", "flash", "xformers"):
        return f"{kernel} has no kernel for the CPU; take split there"
    if device == "cpu" and kernel == "flex":
        return "flex has no gradients on the CPU; take split there"
    module, source = _NEEDS.get(kernel, ("torch", ""))
    if not _is_there(module):
        return f"{kernel} needs {source}, and {module} is not there; install it or take another"
    if kernel == "varlen" and TORCH < (2, 11):  # it takes no `window_size` there
        return f"varlen needs torch 2.11 or newer, and this is {torch.__version__}; update torch"
    if kernel in ("varlen", "flash"):
        if dtype not in HALF:
            return f"{kernel} takes bfloat16 and float16, not {dtype}; train with --precision bf16"
        if torch.cuda.is_available() and torch.cuda.get_device_capability() < _AMPERE:
            return f"{kernel} needs a GPU of Ampere (A100) or newer; take sdpa on this one"
    return ""


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # of the package that it is in
        return False


def choose(device: torch.device, dtype: torch.dtype, dropout: bool = False) -> str:
    """Return the kernel that is mostly the fastest of those that can train here.

    On the CPU that is one call a sample, `split`, as a mask costs the scores between samples too:
    on one core with 4 heads, 1,024 tokens in 16 samples take 9.6 ms forward and backward, and 69
    with a mask. Only very short samples (8 in 128 tokens, 256 in 512) are faster with one. On a GPU
    the kernels of Flash Attention know the bounds; float32, which they refuse, goes to
    `flex_attention`, which skips blocks without a visible score. A `Table` of this machine's own
    figures (`python -m benchmarks.attention`) chooses by length.
    """
    order = ("split",) if device.type == "cpu" else ("flash", "varlen", "flex", "sdpa")
    return next(kernel for kernel in order if not why_not(kernel, device.type, dtype, dropout))


def choose_by(
    table: Table, device: torch.device, dtype: torch.dtype, dropout: bool = False
) -> Table:
    """Return a table of the kernels alone that can train here."""
    if table.device != device.type:
        raise ValueError(
            f"{table.source} was measured on {table.device}, and this run is on {device.type}; "
            f"measure it: python -m benchmarks.attention --device {device.type} --json FILE"
        )
    if table.dropout != dropout:
        raise ValueError(
            f"{table.source} was measured {'with' if table.dropout else 'without'} dropout, which "
            "changes what is fast; measure it: python -m benchmarks.attention "
            f"{'--dropout 0.1 ' * dropout}--json FILE"
        )
    reasons = {name: why_not(name, device.type, dtype, dropout) for name in table.kernels}
    left = table.only([name for name, reason in reasons.items() if not reason])
    if not left.kernels:
        raise ValueError(f"{table.source}: none of its kernels: {'; '.join(reasons.values())}")
    return left


def prepare(segments: Segments, total: int, kernel: str | Table) -> Segments:
    """Return segments of a row with their kernel and its mask, for all layers of a batch."""
    if isinstance(kernel, Table):
        kernel = kernel.fastest(segments)
    segments = segments._replace(kernel=kernel)
    if kernel in ("plain", "sdpa") and not segments.same:
        return segments._replace(mask=segments.visible(total))
    if kernel == "plain" and segments.causal:  # one mask for all rows
        return segments._replace(mask=segments.visible(segments.same))
    if kernel == "flex":
        allow_variants()
        return segments._replace(mask=_block_mask(segments, total))
    if kernel == "xformers":
        return segments._replace(mask=_xformers_mask(segments))
    return segments


def _block_mask(segments: Segments, total: int) -> object:
    from torch.nn.attention.flex_attention import create_block_mask

    device = segments.bounds.device

    def before(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query >= key

    if segments.same:
        if not segments.causal:
            return None
        return create_block_mask(before, None, None, segments.same, segments.same, device=device)
    owners = segments.owners(total)

    def within(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return owners[query] == owners[key]

    def within_before(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (owners[query] == owners[key]) & (query >= key)

    rule = within_before if segments.causal else within
    return create_block_mask(rule, None, None, total, total, device=device)


def _xformers_mask(segments: Segments) -> object:
    from xformers.ops import fmha

    lengths = segments.bounds.diff().tolist()  # xformers wants them on the host
    kinds = fmha.attn_bias
    kind = kinds.BlockDiagonalCausalMask if segments.causal else kinds.BlockDiagonalMask
    return kind.from_seqlens([length for length in lengths if length])
