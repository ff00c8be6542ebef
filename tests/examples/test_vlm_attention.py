"""Every kernel of attention computes the same, and keeps segments apart."""

import shutil
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import flex_attention

from examples.vlm.model.attention import Segments, attend, kernels, prepare
from examples.vlm.model.layers import Attention, angles

from .attend import assert_same, causality, make_inputs, make_segments, naive, run

ON_CPU = ("plain", "sdpa", "split")


LENGTHS = st.one_of(
    st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any),
    st.builds(lambda rows, length: [length] * rows, st.integers(1, 4), st.integers(1, 40)),
)
HEADS = st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)])


@pytest.mark.parametrize("kernel", ON_CPU)
@causality
@settings(max_examples=30, deadline=None)
@given(lengths=LENGTHS, heads=HEADS)
def test_kernels_are_attention_by_its_definition_in_every_segment(kernel, lengths, heads, causal):
    inputs = make_inputs(sum(lengths), *heads)
    segments = make_segments(lengths, causal)
    if len({*lengths}) == 1:
        rows = len(lengths), lengths[0]
        segments = Segments.of_rows(*rows, causal=causal, device=torch.device("cpu"))
    *leaves, upstream = (x.detach().clone().requires_grad_() for x in inputs)
    out = naive(*leaves, [0, *accumulate(lengths)], causal)
    wanted = [out.detach(), *torch.autograd.grad(out, leaves, upstream.detach())]
    assert_same(run(kernel, inputs, segments), wanted, 1e-10)


@pytest.mark.parametrize("kernel", ON_CPU)
def test_half_precision_stays_half_and_near(kernel):
    inputs = make_inputs(60)
    segments = make_segments([20, 1, 0, 39], True)
    wanted = run("plain", inputs, segments)
    got = run(kernel, [x.bfloat16() for x in inputs], segments)
    assert all(x.dtype == torch.bfloat16 for x in got)
    assert_same([x.double() for x in got], wanted, 0.06)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", ON_CPU)
@causality
def test_what_a_segment_holds_changes_no_bit_of_the_others(kernel, dtype, causal):
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


needs_a_compiler = pytest.mark.skipif(
    not shutil.which("g++"), reason="torch.compile for the CPU needs g++"
)


def assert_flex_is_plain(inputs, segments):
    got, wanted = (
        attend(*inputs[:3], prepare(segments, len(inputs[0]), kernel), kernel)
        for kernel in ("flex", "plain")
    )
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.campaign
@needs_a_compiler
@pytest.mark.usefixtures("fresh_compiler")
def test_flex_agrees_with_plain_and_compiles_once_for_all_lengths_of_a_row():
    inputs = make_inputs(64, dtype=torch.float32)
    for lengths in ([10, 30, 24], [1, 0, 63, 0], [16] * 4):
        assert_flex_is_plain(inputs, make_segments(lengths, True))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.campaign
@needs_a_compiler
@causality
@pytest.mark.usefixtures("fresh_compiler")
def test_flex_agrees_with_plain_in_rows_of_one_length(causal):
    rows = Segments.of_rows(3, 20, causal=causal, device=torch.device("cpu"))
    assert_flex_is_plain(make_inputs(60, dtype=torch.float32), rows)


@pytest.mark.campaign
@pytest.mark.usefixtures("fresh_compiler")
def test_flex_is_compiled_for_all_that_a_run_meets(monkeypatch):
    """On a GPU these are numbers of tokens, one image, float32, and all that without gradients."""
    eager = torch.compile(flex_attention, backend="eager", fullgraph=True, dynamic=False)
    monkeypatch.setattr(kernels, "compiled_flex", lambda device: eager)
    with torch._dynamo.config.patch(recompile_limit=2):
        for number in range(1, 12):
            segments = make_segments([5, 16 * number], True)
            assert_flex_is_plain(make_inputs(5 + 16 * number, dtype=torch.float32), segments)
    assert counters["stats"]["unique_graphs"] == 11


@pytest.mark.parametrize("kernel", ON_CPU)
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_layer_is_not_compiled_again_for_other_lengths(kernel):
    compiled = []

    def backend(graph, _):
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


@pytest.mark.parametrize("kernel", ON_CPU)
@causality
def test_dropped_weights_leave_the_mean_as_it_is(kernel, causal):
    """Over many draws; and a share of the weights of one token is zero in each."""
    torch.manual_seed(0)
    q, k, _, _ = make_inputs(40)
    v = torch.eye(40, dtype=torch.float64)[:, None].expand(-1, 2, -1)  # the outputs are the weights
    q, k = (torch.cat([x, x, x[:, :, :8]], dim=-1) for x in (q, k))
    segments = prepare(make_segments([40], causal), 40, kernel)
    whole = attend(q, k, v, segments, kernel)
    draws = torch.stack([attend(q, k, v, segments, kernel, 0.25) for _ in range(400)])
    there = whole > 0
    dropped = (draws == 0) & there
    assert dropped.sum() / there.sum() / 400 == pytest.approx(0.25, abs=0.01)
    kept = torch.where(dropped, whole / 0.75, draws)
    torch.testing.assert_close(kept, (whole / 0.75).expand_as(kept), rtol=1e-9, atol=1e-12)
