"""The largest batch that fits: found by bisection, with real steps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.vlm import train as program
from examples.vlm.data.texts import Vocabulary
from examples.vlm.measure import find_batch
from examples.vlm.measure.find_batch import bisect, find_batch_size, heaviest, ran_out
from examples.vlm.measure.memory import bytes_of, peak_of
from examples.vlm.options import parse
from tests.programs import python

from .vlm_runs import PACKED, fit

pytestmark = pytest.mark.usefixtures("small_model")
LIMIT = 8_000_000


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([1, 7, 64]))
def test_bisection_finds_the_largest(most, start, unit):
    trials = bisect(lambda size: size <= most, start, unit=unit)
    assert len({size for size, _ in trials}) == len(trials) < 30
    if most >= unit:
        found = max(size for size, fits in trials if fits)
        assert found <= most < found + 2 * unit


def test_an_error_that_says_that_memory_ran_out_is_known():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)  # what the CPU's allocator says
    assert ran_out(raised.value)
    said = ("CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when")
    cuda = torch.OutOfMemoryError("CUDA out of memory")
    for error in (cuda, MemoryError(), *map(RuntimeError, said)):
        assert ran_out(error)
    with pytest.raises(RuntimeError, match="size of tensor") as raised:
        torch.ones(2) + torch.ones(3)
    assert not ran_out(raised.value)


def test_a_step_that_runs_out_of_memory_is_survived(shards, runs):
    fit(shards, *PACKED, "--steps", 1)
    (run,) = runs
    shape = find_batch.Shape((8,), 0, True)

    def fail(error):
        def forward(*_):
            raise error

        hook = run.model.register_forward_pre_hook(forward)
        try:
            return find_batch.peak_of_step(run, shape, native=False)
        finally:
            hook.remove()

    assert fail(torch.OutOfMemoryError("CUDA out of memory")) is None
    with pytest.raises(RuntimeError, match="shapes differ"):
        fail(RuntimeError("shapes differ"))


def test_the_peak_of_a_call_is_that_of_its_tensors():
    def call():
        first = torch.empty(1_000_000)
        second = torch.empty(500_000)
        del first
        torch.empty(100_000).add_(second[:100_000])

    assert peak_of(call, torch.device("cpu")) == 6_000_000


def test_gradients_of_the_batch_before_count(shards, runs):
    kept = [(f"--accumulate{kind}", 9) for kind in ("", "-tokens", "-samples")]
    for option in ((), *kept, ("--zero-gradients",)):
        fit(shards, *PACKED, "--steps", 1, *option)
    shape = find_batch.Shape((60,), 0, True)
    alone, *found = (find_batch.peak_of_step(run, shape, native=False) for run in runs)
    assert min(found) > alone


def test_the_heaviest_batches_are_those_of_the_plan(shards, runs):
    fit(shards, "--batch-size", 4, "--steps", 1)
    fit(shards, *PACKED, "--steps", 1)
    padded, packed = (run.loader for run in runs)
    views = [padded.plan.step(step).ranks[0] for step in range(6)]
    (rows, *_), *_ = heaviest(padded, 4, packed=False)
    assert rows == (max(max(view.tokens or []) for view in views),) * 4
    most = max(sum(view.images or []) for view in views)
    assert most == max(shape.images for shape in (heaviest(padded, 4, packed=False)))
    (lengths, _, _), *_ = heaviest(packed, 300, packed=True)
    assert 250 < sum(lengths) <= 300
    assert len(lengths) > 1
    assert heaviest(padded, 64, packed=False) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--batch-size", 2),
        pytest.param((*PACKED, "--accumulate", 2), marks=pytest.mark.campaign),
        pytest.param((*PACKED, "--native"), marks=pytest.mark.campaign),
    ],
    ids=str,
)
def test_the_largest_batch_under_a_limit_is_found(shards, arguments, runs):
    common = (*arguments, "--overlong", "drop", "--steps", 2)
    fit(shards, *common)
    run = runs[-1]
    lines = []
    packed = "--pack" in arguments
    made = []

    def loader_of(size):
        made.append(size)
        name = "--pack" if packed else "--batch-size"
        sized = parse([str(shards), name, str(size), "--overlong", "drop"], "")
        sized.native = "--native" in arguments
        return program.make_loader(sized, Vocabulary.of(None), run.ranks)

    options = {"packed": packed, "native": "--native" in arguments}
    found = find_batch_size(run, loader_of, arguments[1], limit=LIMIT, log=lines.append, **options)
    assert len(lines) == len(made) + 1
    assert f"{found:,}" in lines[-1]
    # The answer is what steps need: it fits with the margin, and the next size does not.
    peaks = {int(line.split()[2].replace(",", "")): line for line in lines[:-1]}
    assert peaks[found].endswith(": fits")
    assert max(peaks) > found
    assert all(
        ("does not fit" in line) == (size > found) for size, line in peaks.items() if "MB" in line
    )


def test_the_command_prints_what_it_tried(shards, capsys):
    common = [str(shards), "--device", "cpu", "--batch-size", "1", "--find-batch-size"]
    program.main([*common, "8MB", "--global-batch-size", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("batch of 1 (")
    assert lines[-1].endswith("is the largest that fits, with 10% to spare")
    assert [bytes_of(text) for text in ("80GB", "1.5 MiB", "7")] == [80 * 10**9, 3 * 2**19, 7]


CHILD = """
import resource, sys
from examples.vlm.measure import find_batch
from examples.vlm import train
import torch
torch.set_num_threads(1)
peak = find_batch.peak_of_step
def limited(*args, **options):
    size = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1])
    if not limited.done:
        limited.done = True
        peak(*args, **options)
        most = size * 1024 + 500_000_000
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return peak(*args, **options)
limited.done = False
find_batch.peak_of_step = limited
train.main(sys.argv[1:])
"""


@pytest.mark.campaign
def test_a_process_whose_memory_is_limited_goes_on(shards):
    """The limit given is far too high; the system's own ends the steps that do not fit."""
    line = (shards, "--device", "cpu", "--pack", 512, "--find-batch-size", "100GB")
    done = python(CHILD, *line, check=True, timeout=300)
    assert "out of memory: does not fit" in done.stdout
    assert "is the largest that fits" in done.stdout.splitlines()[-1]
