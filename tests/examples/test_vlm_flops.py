"""FLOPs by the model's formula, compared with what torch counts in a real step."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from examples.vlm.measure.flops import Formula, Meter, Peak, Sizes
from examples.vlm.model.inputs import make_inputs
from examples.vlm.model.vlm import VLM
from examples.vlm.techniques import Techniques

from .test_vlm_model import FORMS, WORDS, load
from .vlm_runs import PACKED, SMALL, fit


def forward(q, k, v, *_, out_shape=None, **__):
    return sdpa_flop_count(q, *over_heads(q, k, v))


def backward(upstream, q, k, v, *_, out_shape, **__):
    return sdpa_backward_flop_count(upstream, q, *over_heads(q, k, v))


def over_heads(q, k, v):
    """Shapes of keys and values with a head for each of queries, as torch 2.11 wants them."""
    return [(*shape[:1], q[1], *shape[2:]) for shape in (k, v)]


# FlopCounterMode does not know the CPU's kernel of attention; it is counted as those of GPUs are.
CPU_KERNEL = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
}


def step(shards, form, kernel, techniques, words=WORDS.size, **sizes):
    """Forward and backward of a batch: FLOPs that torch counts, and a meter that saw it."""
    torch.manual_seed(0)
    model = VLM(SMALL, words, WORDS.image_id, kernel)
    techniques.apply(model)
    loader = load(shards, FORMS[form], **sizes)
    inputs = make_inputs(next(iter(loader)), SMALL, kernel)
    meter = Meter(model)
    meter.formula = Formula(model, whole=True)
    with FlopCounterMode(display=False, custom_mapping=CPU_KERNEL) as counted:
        model(inputs).sum().backward()
    with torch.no_grad():
        model(inputs)  # evaluation is no training
    meter.close()
    model(inputs)
    return counted.get_total_flops(), meter


@pytest.mark.parametrize(
    ("form", "kernel", "sizes"),
    [
        ("fixed", "plain", {"batch_size": 6}),
        ("fixed", "split", {"batch_size": 6}),
        ("fixed", "split", {"pack": 300}),
        ("native", "split", {"pack": 300}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "techniques",
    [{"recompute": "all"}, {"freeze_vision": True}, {"lora": 2, "recompute": "all"}],
    ids=str,
)
def test_flops_are_those_that_torch_counts(shards, form, kernel, sizes, techniques):
    counted, meter = step(shards, form, kernel, Techniques(**techniques), **sizes)
    assert meter.flops().computed == pytest.approx(counted, rel=1e-3)


def test_logits_in_parts_are_computed_again(shards):
    """With 80,000 words, logits of 52 tokens are computed at a time; with 8,000, all."""
    again = []
    for words in (8_000, 80_000):
        counted, meter = step(shards, "fixed", "split", Techniques(), words, pack=300)
        assert meter.flops().computed == pytest.approx(counted, rel=1e-3)
        again.append(meter.flops().computed - meter.flops().total)
    assert 250 < (again[1] - again[0]) / (2 * SMALL.width * 80_000) <= 300  # tokens


def test_tokens_that_causal_attention_hides_count_nothing():
    torch.manual_seed(0)
    model = VLM(SMALL, WORDS.size, WORDS.image_id, "split")
    sizes = Sizes(tokens=300, patches=64, token_squares=300**2, patch_squares=4 * 16**2)
    half, whole = (Formula(model, whole=whole).of(sizes).total for whole in (False, True))
    hidden = 300 * 299 / 2
    # Queries x keys and scores x values, forward and twice backward, 2 layers, width 32.
    assert whole - half == 3 * 2 * 4 * 32 * hidden


def test_a_run_tells_its_flops_and_their_share_of_the_peak(shards, small_model, capfd):
    common = (*PACKED, "--steps", 6, "--warm-up", 2, "--log-every", 3)
    report = fit(shards, *common, "--peak-flops", 1e12)
    assert report.mfu == pytest.approx(report.flops_per_s / 1e12)
    # Each token goes through every weight of the language model three times, twice a FLOP.
    least = 6 * 19_000 * report.tokens_per_s
    assert least < report.flops_per_s < 6 * least
    assert report.mfu < report.hfu < 1.2 * report.mfu
    again = fit(shards, *common, "--peak-flops", 1e12, "--recompute")
    assert again.hfu > 1.2 * again.mfu
    assert capfd.readouterr().err.count("MFU") == 4
    # No share of a peak is above all of it.
    above = fit(shards, *common, "--peak-flops", 10)
    assert (above.mfu, above.hfu) == (None, None)
    assert above.flops_per_s > 10
    assert "MFU" not in capfd.readouterr().err


def test_steps_may_exceed_a_peak_that_was_measured_and_none_that_was_given(caplog):
    """Another process may have had the CPU when it was measured."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)  # a number not measured yet
    try:
        measured = Peak(torch.device("cpu"), torch.float32)
        assert 0 < (measured.share(1e6) or 0) < 1
        assert (measured.share(1e15), measured.share(5e14)) == (1, 0.5)
    finally:
        torch.set_num_threads(threads)
    given = Peak(torch.device("cpu"), torch.float32, given=1e10)
    assert given.share(5e9) == 0.5
    assert given.share(2e10) is given.share(2e10) is None
    assert caplog.text.count("no MFU is shown; give the peak of a device as --peak-flops") == 1
