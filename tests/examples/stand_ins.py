"""Kernels that need a GPU: signatures of the real ones, results by the definition."""

import inspect
import sys
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from .attend import naive


def varlen_result(args: dict[str, Any], causal: bool, grouped: bool) -> Tensor:
    """Attention computed from what `varlen_attn` or `flash_attn_varlen_func` was given."""
    q, k, v, starts, key_starts, longest, key_longest = list(args.values())[:7]
    assert grouped or q.shape[1] == k.shape[1] == v.shape[1]
    assert starts.dtype == key_starts.dtype == torch.int32
    assert torch.equal(starts, key_starts)
    assert longest == key_longest >= starts.diff().max()
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    return naive(q, k, v, starts.tolist(), causal)


def windowed(options: dict[str, Any]) -> bool:
    """Whether it is causal; torch compares with a tuple to tell."""
    assert options["window_size"] in ((-1, -1), (-1, 0))
    assert isinstance(options["window_size"], tuple)
    return options["window_size"] == (-1, 0)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """As in flash-attn 2.8, up to what is not used."""
    assert not dropout_p
    return varlen_result(locals(), causal, grouped=True)


class BlockDiagonalMask:
    """As in xformers 0.0.30."""

    causal = False

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    @classmethod
    def from_seqlens(cls, q_seqlen: Any, kv_seqlen: Any = None, *, device: Any = None) -> Any:
        assert not isinstance(q_seqlen, Tensor)
        assert all(q_seqlen)
        assert kv_seqlen is None
        return cls(list(q_seqlen))


class BlockDiagonalCausalMask(BlockDiagonalMask):
    causal = True


def memory_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Any = None, p: float = 0.0
) -> Tensor:
    assert query.shape == key.shape == value.shape  # [1, T, heads, D]: it knows no groups
    assert query.shape[0] == 1
    bounds = [0, *accumulate(attn_bias.lengths)]
    return naive(query[0], key[0], value[0], bounds, attn_bias.causal)[None]


def installed_varlen() -> dict[str, Any]:
    """A stand-in that takes exactly what the installed release takes."""
    real = inspect.signature(pytest.importorskip("torch.nn.attention.varlen").varlen_attn)

    def varlen_attn(*args: Any, **options: Any) -> Tensor:
        given = real.bind(*args, **options)
        given.apply_defaults()
        known = given.arguments
        causal = windowed(known) if "window_size" in known else known["is_causal"]
        return varlen_result(known, causal, grouped=known.get("enable_gqa", False))

    return {"torch.nn.attention.varlen": SimpleNamespace(varlen_attn=varlen_attn)}


def varlen_without_groups() -> dict[str, Any]:
    """A stand-in of torch 2.11, which wants the heads of keys repeated."""

    def varlen_attn(
        *given: Any, return_aux: Any = None, scale: Any = None, window_size: Any = (-1, -1)
    ) -> Tensor:
        causal = windowed({"window_size": window_size})
        return varlen_result(dict(enumerate(given)), causal, grouped=False)

    return {"torch.nn.attention.varlen": SimpleNamespace(varlen_attn=varlen_attn)}


def flash() -> dict[str, Any]:
    return {"flash_attn": SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)}


def xformers() -> dict[str, Any]:
    masks = {each.__name__: each for each in (BlockDiagonalMask, BlockDiagonalCausalMask)}
    fmha = SimpleNamespace(attn_bias=SimpleNamespace(**masks))
    ops = SimpleNamespace(fmha=fmha, memory_efficient_attention=memory_efficient_attention)
    return {"xformers": SimpleNamespace(ops=ops), "xformers.ops": ops}


def use(monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any]) -> None:
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


STAND_INS = {
    "varlen as installed": ("varlen", installed_varlen),
    "varlen of torch 2.11": ("varlen", varlen_without_groups),
    "flash": ("flash", flash),
    "xformers": ("xformers", xformers),
}
