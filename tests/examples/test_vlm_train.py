"""Training the reference model: what it measures, its command line, several ranks."""

import json
from types import SimpleNamespace

import pytest
import torch

from examples.vlm import train as program
from examples.vlm.measure.report import busy
from examples.vlm.options import in_options
from examples.vlm.techniques import rate_at

from .vlm_runs import PACKED, fit

pytestmark = pytest.mark.usefixtures("small_model")


def main(capfd, *arguments):
    capfd.readouterr()
    program.main([str(argument) for argument in arguments])
    read = capfd.readouterr()
    return read.out, read.err


def test_memory_is_told_by_use(shards):
    whole, adapters = (
        fit(shards, *PACKED, "--steps", 2, *more).memory for more in ((), ("--lora", 2))
    )
    assert whole["gradients"] == whole["parameters"]
    # AdamW keeps two numbers for each, and a count of steps for each tensor.
    assert 2 * whole["parameters"] <= whole["optimizer"] < 2.1 * whole["parameters"]
    assert adapters["gradients"] < whole["gradients"] / 2
    assert adapters["optimizer"] < whole["optimizer"] / 2
    for memory in (whole, adapters):
        assert sum(memory.values()) - memory["peak"] == memory["peak"]


def test_what_was_measured_is_of_what_follows_the_warm_up(shards):
    report = fit(shards, "--batch-size", 5, "--steps", 8, "--warm-up", 3)
    assert (report.steps, report.measured, len(report.losses)) == (8, 5, 8)
    assert report.samples_per_s == pytest.approx(25 / report.seconds)
    assert 0.3 < report.fill < 1
    packed = fit(shards, *PACKED, "--static-shapes", "--max-images", 8, "--steps", 8)
    assert 0.7 < packed.fill < 1
    assert packed.tokens_per_s == pytest.approx(
        packed.fill * 300 * packed.measured / packed.seconds
    )


@pytest.mark.parametrize(
    "more",
    [("--resident", "1GB"), ("--num-workers", 1, "--workers", "processes")],
    ids=lambda more: more[-1],
)
def test_where_batches_come_from_changes_no_loss(shards, more):
    plain, other = (fit(shards, *PACKED, "--steps", 9, *options) for options in ((), more))
    assert other.losses == plain.losses


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            "give TextSpec(overlong='drop') or max_length=9",
            "give --overlong drop or --max-length 9",
        ),
        ("of a batch; give CacheSpec(memory=...)", "of a batch; give --cache"),
        ("cannot grow; use workers='threads'", "cannot grow; use --workers threads"),
        ("keep CacheSpec(plan=...), 'a=b' and x = 3", "keep CacheSpec(plan=...), 'a=b' and x = 3"),
    ],
)
def test_advice_names_options_of_the_program(message, wanted):
    assert in_options(message) == wanted


def test_a_run_shorter_than_the_warm_up_has_times_of_its_last_steps(shards, capfd):
    report = fit(shards, *PACKED, "--steps", 5, "--warm-up", 5)
    assert report.measured == 1
    assert 0 < report.step_p50 <= report.seconds
    out, err = main(capfd, shards, "--device", "cpu", *PACKED, "--steps", 1)
    assert "no step was timed: give more --steps" in out
    assert "0 ms" not in out
    assert "waiting" not in out + err


def test_how_busy_a_gpu_is_comes_from_whoever_knows_best():
    def times(step, transfer, idle):
        named = {"step": step, "transfer": transfer, "idle": idle}
        return SimpleNamespace(**{k: SimpleNamespace(total=v) for k, v in named.items()})

    nvml = SimpleNamespace(utilization=0.93)
    assert busy(SimpleNamespace(gpu=nvml, device=times(1, 0, 1))) == 0.93
    assert busy(SimpleNamespace(gpu=None, device=times(6, 1, 3))) == pytest.approx(0.7)
    assert busy(SimpleNamespace(gpu=None, device=None)) is None


def test_the_command_line_prints_and_writes_what_it_measured(shards, tmp_path, capfd):
    common = (shards, "--device", "cpu", *PACKED, "--steps", 3)
    out, err = main(capfd, *common)
    assert "3 steps, loss" in out
    assert "parameters learn; attention: split" in err
    out, _ = main(capfd, *common, "--json", "-")
    printed = json.loads(out)
    main(capfd, *common, "--json", tmp_path / "new" / "report.json")
    written = json.loads((tmp_path / "new" / "report.json").read_text())
    assert printed["report"]["losses"] == written["report"]["losses"]
    assert printed["options"]["pack"] == 300


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said_to_be_missing(shards):
    with pytest.raises(SystemExit, match="finds no GPU here; give --device cpu"):
        program.main([str(shards), "--device", "cuda"])


def test_the_learning_rate_rises_and_falls():
    rates = [rate_at(step, steps=20, warmup=4, peak=2.0) for step in range(30)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[4:21] == sorted(rates[4:21], reverse=True)
    assert rates[20:] == pytest.approx([0.2] * 10)
