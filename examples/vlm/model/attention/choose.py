"""Choice of a kernel, also by a table of what is fastest here, and its preparations."""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

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

AUTO = "auto"
# What each kernel imports, and where that comes from.
_NEEDS = {
    "flex": ("torch.nn.attention.flex_attention", "torch 2.5 or newer"),
    "varlen": ("torch.nn.attention.varlen", "torch 2.11 or newer"),
    "flash": ("flash_attn.flash_attn_interface", "the package flash-attn, version 2"),
    "xformers": ("xformers.ops", "the package xformers"),
}
# Settings of the benchmark by name, and what the names of kernels end with there.
_SETTINGS = {"rows of one length": "", "captions and conversations": " packed"}
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


class Row(NamedTuple):
    """Kernels at one length, the fastest first; of mixed lengths it is the longest."""

    packed: bool
    causal: bool
    length: int
    kernels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Order of kernels by length, as `python -m benchmarks.attention --json FILE` measured it."""

    source: str  # the files
    device: str  # "cpu" or "cuda"
    dropout: bool
    rows: tuple[Row, ...]

    @classmethod
    def read(cls, paths: list[Path]) -> Self:
        """Read one file or several of `benchmarks.attention`, such as causal and other ones."""
        contents = [_content(path) for path in paths]
        source = ", ".join(map(str, paths))
        kinds = {
            ("cpu" if c["machine"]["gpu"] == "not used" else "cuda", bool(c.get("dropout")))
            for c in contents
        }
        if len(kinds) > 1:
            raise ValueError(
                f"{source}: they differ in their device, or only one is with dropout; give tables "
                "of one kind"
            )
        device, dropout = kinds.pop()
        rows = tuple(row for content in contents for row in _rows(content))
        return cls(source=source, device=device, dropout=dropout, rows=rows)

    def __str__(self) -> str:
        return f"by length from {self.source}"

    @property
    def kernels(self) -> list[str]:
        """All kernels that ran at some length."""
        return list(dict.fromkeys(name for row in self.rows for name in row.kernels))

    def only(self, kernels: Collection[str]) -> Self:
        """Return the table without other kernels."""
        kept = (
            row._replace(kernels=tuple(name for name in row.kernels if name in kernels))
            for row in self.rows
        )
        return replace(self, rows=tuple(row for row in kept if row.kernels))

    def fastest(self, segments: Segments) -> str:
        """Return the fastest kernel at the measured length that is nearest, by ratio.

        A row of the same setting (one length or mixed, causal or not) is preferred to a nearer one.
        """

        def distance(row: Row) -> tuple[bool, bool, float]:
            length = max(1, segments.longest)
            return (
                row.packed == bool(segments.same),
                row.causal != segments.causal,
                max(row.length / length, length / row.length),
            )

        return min(self.rows, key=distance).kernels[0]


def _content(path: Path) -> Any:
    again = f"python -m benchmarks.attention --json {path}"
    try:
        content = json.loads(path.read_text())
        content["machine"]["gpu"]
        rows = _rows(content)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no table; write it: {again}") from error
    except (ValueError, KeyError, TypeError, OSError, AttributeError) as error:
        raise ValueError(f"{path}: this is no table ({error!r}); write one: {again}") from error
    if not rows:
        raise ValueError(f"{path}: no kernel ran in it; write another: {again}")
    if content.get("rehearsal"):
        raise ValueError(f"{path}: figures of a rehearsal mean nothing; write one: {again}")
    return content


def _rows(content: Any) -> list[Row]:
    causal = bool(content.get("causal", True))  # older files were all causal
    rows = []
    for setting, ending in _SETTINGS.items():
        for at in content["settings"].get(setting, ()):
            times = {
                one["name"].removesuffix(ending): median(
                    run["seconds"] / run["samples"] for run in one["runs"]
                )
                for one in at["results"]
                if one["runs"] and one["name"].endswith(ending)
            }
            if times:
                order = tuple(sorted(times, key=lambda name: times[name]))
                rows.append(Row(bool(ending), causal, at["length"], order))
    return rows


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

    causal, device = segments.causal, segments.bounds.device
    if segments.same and not causal:
        return None
    owners = None if segments.same else segments.owners(total)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        before = query >= key
        if owners is None:
            return before
        together = owners[query] == owners[key]
        return together & before if causal else together

    length = segments.same or total
    return create_block_mask(visible, None, None, length, length, device=device)


def _xformers_mask(segments: Segments) -> object:
    from xformers.ops import fmha

    lengths = segments.bounds.diff().tolist()  # xformers wants them on the host
    kinds = fmha.attn_bias
    kind = kinds.BlockDiagonalCausalMask if segments.causal else kinds.BlockDiagonalMask
    return kind.from_seqlens([length for length in lengths if length])
