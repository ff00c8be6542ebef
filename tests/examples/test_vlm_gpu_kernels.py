"""Kernels that need a GPU are given what they take, and agree with the others."""

import pytest
import torch

from examples.vlm.model.attention import KERNELS, Segments, why_not
from examples.vlm.model.layers import Attention, angles

from .attend import assert_same, causality, make_inputs, make_segments, run
from .stand_ins import STAND_INS, use


@pytest.mark.parametrize("name", STAND_INS)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=["each its keys", "grouped"])
@causality
def test_what_kernels_of_a_gpu_are_given_makes_the_result_of_plain(
    name, heads, causal, monkeypatch
):
    kernel, modules = STAND_INS[name]
    use(monkeypatch, modules())
    if name == "varlen of torch 2.11":
        monkeypatch.setattr("examples.vlm.model.attention.kernels.TORCH", (2, 11))
    ragged = make_segments([7, 0, 1, 20, 12], causal)
    rows = Segments.of_rows(4, 10, causal=causal, device=torch.device("cpu"))
    roomy = ragged._replace(longest=64)  # known on the host to be this at most
    inputs = make_inputs(40, *heads)
    for segments in (ragged, rows, roomy):
        assert_same(run(kernel, inputs, segments), run("plain", inputs, segments), 1e-10)


@pytest.mark.usefixtures("fresh_compiler")
def test_varlen_compiles_into_one_graph(monkeypatch):
    pytest.importorskip("torch.nn.attention.varlen")

    def stand_in(query, key, value, *bounds, window_size, **options):
        assert options.get("enable_gqa", False) or query.shape == key.shape
        return query + value.mean() if window_size == (-1, 0) else query

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", stand_in)
    layer = Attention(width=32, heads=4, kv_heads=2)
    inputs = torch.randn(60, 32), angles(torch.arange(60), 8), make_segments([20, 40], True)
    fast = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(fast(*inputs, "varlen"), layer(*inputs, "varlen"))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "plain"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_kernels_on_a_gpu_are_as_near_to_the_truth_as_plain(kernel, dtype):
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
