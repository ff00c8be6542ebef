"""Every kernel of attention computes the same, and keeps segments apart."""

from __future__ import annotations

import importlib
import inspect
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.utils import counters

from examples.vlm.attention import AUTO, KERNELS, Segments, attend, choose, prepare, why_not
from examples.vlm.layers import Attention
from examples.vlm.rotary import angles

choosing = importlib.import_module("examples.vlm.attention.choose")

ON_CPU = ("plain", "sdpa", "split")
causality = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)
HEADS = st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)])


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small tensors: threads would wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_segments(lengths: Sequence[int], causal: bool, device: str = "cpu") -> Segments:
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    return Segments(bounds, max(lengths), 0, causal)


def make_inputs(
    total: int, heads: int = 4, kv_heads: int = 2, size: int = 16, dtype: Any = torch.float64
) -> list[Tensor]:
    """Queries, keys, values, and gradients of what comes out."""
    made = torch.Generator().manual_seed(total)
    shapes = [(total, number, size) for number in (heads, kv_heads, kv_heads, heads)]
    return [torch.randn(shape, generator=made, dtype=dtype) for shape in shapes]


def run(kernel: str, inputs: Sequence[Tensor], segments: Segments) -> list[Tensor]:
    """What comes out, and the gradients of queries, keys and values."""
    *leaves, upstream = (x.detach().clone().requires_grad_() for x in inputs)
    prepared = prepare(segments, len(leaves[0]), kernel)
    out = attend(*leaves, prepared, kernel)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream.detach())]


def naive(
    q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int], causal: bool, scale: float | None = None
) -> Tensor:
    """Attention of one head of one segment after another, by its definition."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    columns = []
    for head in range(heads):
        rows = []
        for start, stop in pairwise(bounds):
            own, keys = q[start:stop, head], k[start:stop, head // group]
            scores = own @ keys.T * (scale or 1 / math.sqrt(q.shape[2]))
            if causal:
                hidden = torch.arange(stop - start)[:, None] < torch.arange(stop - start)
                scores = scores - torch.where(hidden, math.inf, 0.0)
            exps = (scores - scores.detach().amax(1, keepdim=True)).exp() if len(own) else scores
            rows.append(exps / exps.sum(1, keepdim=True) @ v[start:stop, head // group])
        columns.append(torch.cat(rows))
    return torch.stack(columns, dim=1)


def run_naive(inputs: Sequence[Tensor], segments: Segments) -> list[Tensor]:
    *leaves, upstream = (x.detach().clone().requires_grad_() for x in inputs)
    out = naive(*leaves, segments.bounds.tolist(), segments.causal)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream.detach())]


def assert_same(got: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float) -> None:
    for name, one, other in zip(("out", "dq", "dk", "dv"), got, wanted, strict=True):
        torch.testing.assert_close(
            one, other, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: name + text
        )


@causality
@settings(max_examples=30, deadline=None)
@given(lengths=LENGTHS, heads=HEADS)
def test_plain_is_attention_by_its_definition_in_every_segment(
    lengths: list[int], heads: tuple[int, int], causal: bool
) -> None:
    inputs = make_inputs(sum(lengths), *heads)
    segments = make_segments(lengths, causal)
    assert_same(run("plain", inputs, segments), run_naive(inputs, segments), 1e-10)


@pytest.mark.parametrize("kernel", ["sdpa", "split"])
@causality
@settings(max_examples=30, deadline=None)
@given(lengths=LENGTHS, heads=HEADS)
def test_kernels_agree_with_plain_in_outputs_and_gradients(
    kernel: str, lengths: list[int], heads: tuple[int, int], causal: bool
) -> None:
    inputs = make_inputs(sum(lengths), *heads)
    segments = make_segments(lengths, causal)
    assert_same(run(kernel, inputs, segments), run("plain", inputs, segments), 1e-10)


@pytest.mark.parametrize("kernel", ON_CPU)
@causality
@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 4), length=st.integers(1, 40), heads=HEADS)
def test_rows_of_one_length_are_segments(
    kernel: str, rows: int, length: int, heads: tuple[int, int], causal: bool
) -> None:
    inputs = make_inputs(rows * length, *heads)
    segments = Segments.of_rows(rows, length, causal=causal, device=torch.device("cpu"))
    assert segments.bounds.tolist() == [length * row for row in range(rows + 1)]
    assert_same(run(kernel, inputs, segments), run_naive(inputs, segments), 1e-10)


@pytest.mark.parametrize("kernel", ON_CPU)
def test_half_precision_stays_half_and_near(kernel: str) -> None:
    inputs = make_inputs(60)
    segments = make_segments([20, 1, 0, 39], True)
    wanted = run("plain", inputs, segments)
    got = run(kernel, [x.bfloat16() for x in inputs], segments)
    assert all(x.dtype == torch.bfloat16 for x in got)
    assert_same([x.double() for x in got], wanted, 0.06)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", ON_CPU)
@causality
def test_what_a_segment_holds_changes_no_bit_of_the_others(
    kernel: str, dtype: torch.dtype, causal: bool
) -> None:
    lengths = [33, 70, 1, 150, 0, 18]
    inputs = make_inputs(sum(lengths), dtype=dtype)
    others = [x.clone() for x in inputs]
    for x in others:
        x[33:103] = 50 * x[33:103].flip(0) + 1
    segments = make_segments(lengths, causal)
    before, after = run(kernel, inputs, segments), run(kernel, others, segments)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[:33], other[:33])
        assert torch.equal(one[103:], other[103:])
        assert not torch.equal(one[33:103], other[33:103])


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


needs_a_compiler = pytest.mark.skipif(
    not shutil.which("g++"), reason="torch.compile for the CPU needs g++"
)


def assert_flex_is_plain(inputs: Sequence[Tensor], segments: Segments) -> None:
    got, wanted = (
        attend(*inputs[:3], prepare(segments, len(inputs[0]), kernel), kernel)
        for kernel in ("flex", "plain")
    )
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@needs_a_compiler
@pytest.mark.usefixtures("fresh_compiler")
def test_flex_agrees_with_plain_and_compiles_once_for_all_lengths_of_a_row() -> None:
    inputs = make_inputs(64, dtype=torch.float32)
    for lengths in ([10, 30, 24], [1, 0, 63, 0], [16] * 4):
        assert_flex_is_plain(inputs, make_segments(lengths, True))
    assert counters["stats"]["unique_graphs"] == 1


@needs_a_compiler
@causality
@pytest.mark.usefixtures("fresh_compiler")
def test_flex_agrees_with_plain_in_rows_of_one_length(causal: bool) -> None:
    rows = Segments.of_rows(3, 20, causal=causal, device=torch.device("cpu"))
    assert_flex_is_plain(make_inputs(60, dtype=torch.float32), rows)


@pytest.mark.parametrize("kernel", ON_CPU)
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_layer_is_not_compiled_again_for_other_lengths(kernel: str) -> None:
    compiled: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    layer = Attention(width=32, heads=4, kv_heads=2)
    fast = torch.compile(layer, backend=backend)
    x, turned = torch.randn(60, 32), angles(torch.arange(60), 8)
    batches = [[20, 40], [35, 25], [7, 50, 3], [4] * 15, [1, 2, 3, 54], [11, 0, 48, 1]]
    counts = []
    for lengths in batches:
        segments = prepare(make_segments(lengths, True), 60, kernel)
        wanted = layer(x, turned, segments, kernel)
        torch.testing.assert_close(fast(x, turned, segments, kernel), wanted)
        counts.append(len(compiled))
    # Another number of segments makes that number dynamic, once.
    assert counts[2:] == [counts[2]] * 4
    assert counts[2] <= counts[0] + 1


# Stand-ins for kernels that need a GPU: signatures of the real ones, results by the definition.


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


def varlen_2_10(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    return_aux: Any = None,
) -> Tensor:
    return varlen_result(locals(), is_causal, grouped=False)


def varlen_2_11(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    return varlen_result(locals(), windowed(locals()), grouped=False)


def varlen_2_12(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    assert enable_gqa == (query.shape[1] != key.shape[1])
    return varlen_result(locals(), windowed(locals()), grouped=enable_gqa)


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
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """As in flash-attn 2.8."""
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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Tensor:
    assert query.shape == key.shape == value.shape  # [1, T, heads, D]: it knows no groups
    assert query.shape[0] == 1
    bounds = [0, *accumulate(attn_bias.lengths)]
    return naive(query[0], key[0], value[0], bounds, attn_bias.causal)[None]


def use_varlen(function: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    def use(monkeypatch: pytest.MonkeyPatch) -> None:
        module = pytest.importorskip("torch.nn.attention.varlen")
        monkeypatch.setattr(module, "varlen_attn", function)

    return use


def use_installed_varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that takes exactly what the installed release takes."""
    module = pytest.importorskip("torch.nn.attention.varlen")
    real = inspect.signature(module.varlen_attn)

    def stand_in(*args: Any, **options: Any) -> Tensor:
        given = real.bind(*args, **options)
        given.apply_defaults()
        known = given.arguments
        causal = windowed(known) if "window_size" in known else known["is_causal"]
        return varlen_result(known, causal, grouped=known.get("enable_gqa", False))

    stand_in.__signature__ = real  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "varlen_attn", stand_in)


def use_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)


def use_xformers(monkeypatch: pytest.MonkeyPatch) -> None:
    package, ops = ModuleType("xformers"), ModuleType("xformers.ops")
    masks = SimpleNamespace(
        BlockDiagonalMask=BlockDiagonalMask, BlockDiagonalCausalMask=BlockDiagonalCausalMask
    )
    ops.fmha = SimpleNamespace(attn_bias=masks)  # type: ignore[attr-defined]
    ops.memory_efficient_attention = memory_efficient_attention  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xformers", package)
    monkeypatch.setitem(sys.modules, "xformers.ops", ops)


STAND_INS = {
    "varlen of torch 2.10": ("varlen", use_varlen(varlen_2_10)),
    "varlen of torch 2.11": ("varlen", use_varlen(varlen_2_11)),
    "varlen of torch 2.12": ("varlen", use_varlen(varlen_2_12)),
    "varlen as installed": ("varlen", use_installed_varlen),
    "flash": ("flash", use_flash),
    "xformers": ("xformers", use_xformers),
}


@pytest.mark.parametrize("name", STAND_INS)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=["each its keys", "grouped"])
@causality
def test_what_kernels_of_a_gpu_are_given_makes_the_result_of_plain(
    name: str, heads: tuple[int, int], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, use = STAND_INS[name]
    use(monkeypatch)
    ragged = make_segments([7, 0, 1, 20, 12], causal)
    rows = Segments.of_rows(4, 10, causal=causal, device=torch.device("cpu"))
    roomy = ragged._replace(longest=64)  # known on the host to be this at most
    inputs = make_inputs(40, *heads)
    for segments in (ragged, rows, roomy):
        assert_same(run(kernel, inputs, segments), run("plain", inputs, segments), 1e-10)


@pytest.mark.usefixtures("fresh_compiler")
def test_varlen_compiles_into_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("torch.nn.attention.varlen")

    def stand_in(
        query: Tensor, key: Tensor, value: Tensor, *bounds: Any, window_size: Any, enable_gqa: bool
    ) -> Tensor:
        return query + value.mean() if enable_gqa and window_size == (-1, 0) else query

    monkeypatch.setattr(module, "varlen_attn", stand_in)
    layer = Attention(width=32, heads=4, kv_heads=2)
    inputs = torch.randn(60, 32), angles(torch.arange(60), 8), make_segments([20, 40], True)
    fast = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(fast(*inputs, "varlen"), layer(*inputs, "varlen"))


# Which kernel is taken, and why another is not.


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Names of modules that are there, to add to and to take from."""
    there = {
        *("torch", "torch.nn.attention.flex_attention", "torch.nn.attention.varlen"),
        *("flash_attn.flash_attn_interface", "xformers.ops"),
    }

    def find_spec(name: str) -> Any:
        if name not in there and not name.startswith("torch"):
            raise ModuleNotFoundError(f"No module named {name.split('.')[0]!r}")
        return object() if name in there else None

    monkeypatch.setattr(choosing, "find_spec", find_spec)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    why_not.cache_clear()
    yield there
    why_not.cache_clear()


def test_an_unknown_kernel_is_an_error_that_names_the_known() -> None:
    with pytest.raises(ValueError, match="'fast' is none of") as error:
        why_not("fast", "cpu", torch.float32)
    assert all(name in str(error.value) for name in (AUTO, *KERNELS))


@pytest.mark.parametrize(
    ("kernel", "device", "dtype", "missing", "cause", "remedy"),
    [
        ("varlen", "cpu", torch.bfloat16, "", "no kernel for the CPU", "take split"),
        ("flash", "cpu", torch.bfloat16, "", "no kernel for the CPU", "take split"),
        ("xformers", "cpu", torch.float32, "", "no kernel for the CPU", "take split"),
        ("flex", "cpu", torch.float32, "", "no gradients on the CPU", "take split"),
        ("flex", "cuda", torch.float32, "torch.nn.attention.flex_attention", "2.5", "install"),
        ("varlen", "cuda", torch.float16, "torch.nn.attention.varlen", "torch 2.10", "install"),
        ("flash", "cuda", torch.float16, "flash_attn.flash_attn_interface", "flash-attn", "inst"),
        ("xformers", "cuda", torch.float32, "xformers.ops", "package xformers", "install"),
        ("varlen", "cuda", torch.float32, "", "not torch.float32", "--precision bf16"),
        ("flash", "cuda", torch.float32, "", "not torch.float32", "--precision bf16"),
    ],
)
def test_a_reason_names_cause_and_remedy(
    modules: set[str],
    kernel: str,
    device: str,
    dtype: torch.dtype,
    missing: str,
    cause: str,
    remedy: str,
) -> None:
    modules.discard(missing)
    reason = why_not(kernel, device, dtype)
    assert reason.startswith(kernel)
    assert cause in reason
    assert remedy in reason.split(";")[1]


@pytest.mark.parametrize("kernel", ["varlen", "flash"])
def test_a_gpu_older_than_ampere_is_told_to_take_sdpa(
    modules: set[str], monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert "Ampere" in why_not(kernel, "cuda", torch.float16)
    assert "sdpa" in why_not(kernel, "cuda", torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_kernel_chosen_on_the_cpu_trains(dtype: torch.dtype) -> None:
    kernel = choose(torch.device("cpu"), dtype)
    assert why_not(kernel, "cpu", dtype) == ""
    inputs = make_inputs(30, dtype=dtype)
    assert all(x.isfinite().all() for x in run(kernel, inputs, make_segments([10, 0, 20], True)))


def test_the_kernel_chosen_on_a_gpu_is_the_best_that_is_there(modules: set[str]) -> None:
    gpu = torch.device("cuda")
    choices = []
    for missing in ("", "flash_attn.flash_attn_interface", "torch.nn.attention.varlen"):
        modules.discard(missing)
        why_not.cache_clear()
        choices.append(choose(gpu, torch.bfloat16))
        assert choose(gpu, torch.float32) == "flex"
    modules.discard("torch.nn.attention.flex_attention")
    why_not.cache_clear()
    choices.append(choose(gpu, torch.float32))
    assert choices == ["flash", "varlen", "flex", "sdpa"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "plain"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_kernels_on_a_gpu_are_as_near_to_the_truth_as_plain(
    kernel: str, dtype: torch.dtype
) -> None:
    if reason := why_not(kernel, "cuda", dtype):
        pytest.skip(reason)
    inputs = [x.cuda() for x in make_inputs(512, 4, 2, 64, dtype)]
    for causal in (True, False):
        ragged = make_segments([200, 0, 1, 57, 254], causal, "cuda")
        rows = Segments.of_rows(4, 128, causal=causal, device=torch.device("cuda"))
        for segments in (ragged, rows):
            truth = run("plain", [x.double() for x in inputs], segments)
            plain = run("plain", inputs, segments)
            for one, other, true in zip(run(kernel, inputs, segments), plain, truth, strict=True):
                assert one.dtype == dtype
                error, allowed = ((x.double() - true).abs().max() for x in (one, other))
                # flash-attn's own tests allow twice the error of plain attention in the same
                # precision, and three times that of gradients. Tensor cores may take float32 for
                # TF32, whose ten bits are a thousandth of a value.
                slack = 5e-3 if dtype == torch.float32 else 1e-4
                assert error <= 3 * allowed + slack * true.abs().max()
