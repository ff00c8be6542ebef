"""The reference model on a GPU: the same losses by every kernel, technique and copy."""

import gc

import pytest
import torch

from examples.vlm import loop
from examples.vlm import train as program
from examples.vlm.model.attention import KERNELS, why_not
from examples.vlm.model.config import MODELS, ModelConfig, VisionConfig
from examples.vlm.options import parse
from examples.vlm.parallel.ranks import joined

from . import vlm_runs as runs

pytestmark = pytest.mark.gpu

# Heads of 64 values, which every kernel takes.
MODEL = ModelConfig(
    vision=VisionConfig(width=128, layers=2, heads=2, patch=4, image_size=16, max_pixels=640),
    width=256,
    layers=2,
    heads=4,
    kv_heads=2,
)
PACKED = ("--pack", 512, "--max-images", 16)


@pytest.fixture(autouse=True)
def _model(monkeypatch):
    monkeypatch.setitem(MODELS, "tiny", MODEL)
    torch.compiler.reset()  # blocks are compiled a few times a process, and then run as they are
    yield
    torch.use_deterministic_algorithms(False)
    gc.collect()
    torch.cuda.empty_cache()


def fit(shards, *arguments):
    common = ("--device", "cuda", "--num-workers", 2, "--steps", 6, "--lr-steps", 12)
    return runs.fit(shards, *common, *arguments)


def test_a_gpu_learns_what_the_cpu_learns(shards):
    here, there = (fit(shards, *PACKED, "--device", device) for device in ("cpu", "cuda"))
    assert there.losses == pytest.approx(here.losses, rel=2e-3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("form", [PACKED, ("--batch-size", 6), (*PACKED, "--native")], ids=str)
def test_every_kernel_learns_what_the_plain_one_does(shards, kernel, precision, form):
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    if reason := why_not(kernel, "cuda", dtype):
        pytest.skip(reason)
    plain = fit(shards, *form, "--attention", "plain")
    other = fit(shards, *form, "--attention", kernel, "--precision", precision)
    assert other.losses == pytest.approx(plain.losses, rel=2e-3 if precision == "fp32" else 0.03)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--copy-late",),
        ("--device-cache", "1GB"),
        ("--compile", "--static-shapes"),
        ("--compile",),
        ("--compile", "reduce-overhead", "--static-shapes"),
        ("--compile", "max-autotune", "--static-shapes"),
        ("--recompute",),
        ("--resident", "1GB"),
        ("--memory-phases",),
        ("--optimizer", "loop"),
        ("--tf32",),
        ("--lora", 4),
        ("--accumulate-tokens", 200),
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_technique_learns_the_same_on_a_gpu(shards, arguments, precision):
    common = (*PACKED, "--precision", precision)
    alone = ("--lora", "--accumulate-tokens")
    reference = ("--device", "cpu", *arguments) if arguments[0] in alone else ()
    plain, other = fit(shards, *common, *reference), fit(shards, *common, *arguments)
    assert other.losses == pytest.approx(plain.losses, rel=0.03)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("form", [PACKED, ("--batch-size", 6), (*PACKED, "--native")], ids=str)
def test_a_resumed_run_goes_on_where_it_was(shards, tmp_path, form, precision, exact):
    """Bit for bit where sums come in a fixed order."""
    common = (*form, "--precision", precision, *["--deterministic"] * exact)
    whole = fit(shards, *common, "--steps", 8)
    begun = fit(shards, *common, "--steps", 4, "--save", tmp_path / "run.pt")
    rest = fit(shards, *common, "--steps", 8, "--resume", tmp_path / "run.pt")
    found = begun.losses + rest.losses
    assert found == (whole.losses if exact else pytest.approx(whole.losses, rel=5e-3))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("more", [(), ("--resident", "1GB"), ("--device-cache", "1GB")], ids=str)
@pytest.mark.parametrize("form", [PACKED, ("--batch-size", 6), (*PACKED, "--native")], ids=str)
def test_no_step_waits_for_the_gpu(shards, form, more, precision, monkeypatch):
    """Nor does the loader in between; what is compiled or allocated first, may."""
    step, taken = loop.train_step, 0

    def watched(*arguments):
        nonlocal taken
        taken += 1
        try:
            return step(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("error" if 4 <= taken < 9 else "default")

    monkeypatch.setattr(loop, "train_step", watched)
    try:
        fit(shards, *form, *more, "--precision", precision, "--steps", 10, "--log-every", 10)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert taken == 10


@pytest.mark.parametrize("mode", [(), ("--compile",), ("--compile", "reduce-overhead")], ids=str)
def test_a_run_is_evaluated_on_the_way(shards, mode):
    more = ("--static-shapes", *mode, "--evaluate", shards, "--evaluate-every", 3)
    plain = fit(shards, *PACKED, "--device", "cpu", "--evaluate", shards, "--evaluate-every", 3)
    found = fit(shards, *PACKED, *more)
    for one, other in zip(found.evaluations, plain.evaluations, strict=True):
        assert one.labels == other.labels
        assert one.loss == pytest.approx(other.loss, rel=0.01)


def test_watching_phases_leaves_the_peak_as_it_is(shards):
    torch.cuda.reset_peak_memory_stats()
    plain = fit(shards, *PACKED).memory["peak"]
    torch.cuda.reset_peak_memory_stats()
    watched = fit(shards, *PACKED, "--memory-phases").memory["peak"]
    assert watched == pytest.approx(plain, rel=0.1)


def test_the_largest_batch_under_a_limit_is_found(shards):
    # Beside what tests before may have left, such as those whose failure is still to be shown.
    limit = 256_000_000 + torch.cuda.memory_allocated()
    line = [shards, "--batch-size", 2, "--num-workers", 2, "--find-batch-size", limit]
    options = parse(list(map(str, line)), "")
    with joined(options.device) as ranks:
        size = program.find_size(options, ranks)
    assert size >= 2


def test_steps_are_timed_by_the_gpu_and_memory_is_its_own(shards):
    report = fit(shards, *PACKED, "--steps", 20)
    assert 0 < report.step_p50 <= report.step_p99
    parameters = report.memory["parameters"]
    assert report.memory["peak"] > 4 * parameters == 4 * report.memory["gradients"]
