"""Training the reference model: its switches, its checkpoints, its command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.vlm import loop
from examples.vlm import train as program
from examples.vlm.accumulate import LABELS, groups_of
from examples.vlm.config import MODELS, ModelConfig, VisionConfig
from examples.vlm.layers import Block
from examples.vlm.loop import Run
from examples.vlm.measures import Report, busy
from examples.vlm.options import parse
from examples.vlm.ranks import joined
from examples.vlm.schedule import rate_at

SMALL = ModelConfig(
    vision=VisionConfig(width=16, layers=2, heads=2, patch=4, image_size=16, max_pixels=640),
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
)


@pytest.fixture(autouse=True)
def _small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", SMALL)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Every run that is begun in a test."""
    seen: list[Run] = []
    build = program.build

    def remember(*arguments: Any) -> Run:
        seen.append(build(*arguments))
        return seen[-1]

    monkeypatch.setattr(program, "build", remember)
    return seen


def fit(shards: Path, *arguments: Any) -> Report:
    line = [shards, "--num-workers", 0, "--device", "cpu", "--lr-steps", 9, *arguments]
    options = parse(list(map(str, line)), "")
    with joined(options.device) as ranks:
        return program.run(options, ranks)


PACKED = ("--pack", 300)


@pytest.mark.parametrize(
    "arguments",
    [
        PACKED,
        ("--batch-size", 4),
        (*PACKED, "--accumulate", 2),
        (*PACKED, "--accumulate-tokens", 150),
        (*PACKED, "--precision", "bf16"),
        (*PACKED, "--precision", "fp16"),
        (*PACKED, "--optimizer", "foreach"),
        (*PACKED, "--lora", 4),
        (*PACKED, "--native", "--recompute", "--freeze-vision"),
        ("--batch-size", 6, "--buckets", 2, "--num-workers", 2, "--cache", "1GB"),
    ],
    ids=lambda arguments: " ".join(map(str, arguments)),
)
def test_a_resumed_run_repeats_the_losses_of_an_uninterrupted_one_bit_for_bit(
    shards: Path, tmp_path: Path, arguments: tuple[Any, ...]
) -> None:
    file = tmp_path / "folder" / "run.pt"
    whole = fit(shards, *arguments, "--steps", 9)
    begun = fit(shards, *arguments, "--steps", 4, "--save", file)
    rest = fit(shards, *arguments, "--steps", 9, "--resume", file)
    assert begun.losses + rest.losses == whole.losses
    assert len(set(whole.losses)) == 9
    assert not list(file.parent.glob("*.tmp"))


def test_a_run_that_is_resumed_twice_goes_on_the_same(shards: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    whole = fit(shards, *PACKED, "--steps", 9)
    losses = fit(shards, *PACKED, "--steps", 2, "--save", file).losses
    for stop in (5, 9):
        losses += fit(shards, *PACKED, "--steps", stop, "--resume", file, "--save", file).losses
    assert losses == whole.losses


def test_random_numbers_and_the_scale_of_gradients_go_on_too(
    shards: Path, tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No layer here draws any, but one that is put in may."""
    drawn: list[float] = []
    step = loop.train_step

    def draw(*arguments: Any) -> Any:
        drawn.append(torch.rand(()).item())
        return step(*arguments)

    monkeypatch.setattr(loop, "train_step", draw)
    half = (*PACKED, "--precision", "fp16")
    fit(shards, *half, "--steps", 6)
    whole, drawn[:] = list(drawn), []
    fit(shards, *half, "--steps", 4, "--save", tmp_path / "run.pt")
    fit(shards, *half, "--steps", 6, "--resume", tmp_path / "run.pt")
    assert drawn == whole
    scales = [run.scaler.state_dict() for run in runs]
    assert scales[0] == scales[2] != scales[1]


def test_ctrl_c_ends_after_the_step_and_saves(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.pt"
    whole = fit(shards, *PACKED, "--steps", 6)
    monkeypatch.setattr(
        program,
        "log_line",
        lambda line: os.kill(os.getpid(), signal.SIGINT) if line.step == 3 else None,
    )
    stopped = fit(shards, *PACKED, "--steps", 6, "--save", file, "--log-every", 1)
    assert "stopping after this step" in capfd.readouterr().err
    monkeypatch.undo()
    monkeypatch.setitem(MODELS, "tiny", SMALL)
    assert stopped.losses == whole.losses[:3]
    rest = fit(shards, *PACKED, "--steps", 6, "--resume", file)
    assert stopped.losses + rest.losses == whole.losses
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("arguments", "tolerance"),
    [
        (("--zero-gradients",), 0),
        (("--wait-for-losses",), 0),
        (("--recompute",), 0),
        (("--tf32",), 0),
        (("--num-workers", 2, "--prefetch", 1), 0),
        (("--cache", "1GB"), 0),
        (("--device-cache", "1GB"), 1e-5),
        (("--optimizer", "loop"), 1e-4),
        (("--optimizer", "foreach"), 1e-4),
        (("--attention", "sdpa"), 1e-4),
        (("--attention", "plain"), 1e-4),
        (("--static-shapes", "--max-images", 8), 1e-4),
        (("--precision", "bf16"), 0.03),
        (("--precision", "fp16"), 0.03),
    ],
    ids=str,
)
def test_a_switch_changes_how_a_step_is_computed_and_not_what_is_learnt(
    shards: Path, arguments: tuple[Any, ...], tolerance: float
) -> None:
    plain = fit(shards, *PACKED, "--max-images", 8, "--steps", 9)
    other = fit(shards, *PACKED, "--max-images", 8, "--steps", 9, *arguments)
    assert other.losses == pytest.approx(plain.losses, rel=tolerance, abs=0)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradients_are_clipped_to_the_norm_asked_for(
    shards: Path, runs: list[Run], precision: str
) -> None:
    for most in (0, 0.01):
        fit(shards, *PACKED, "--steps", 2, "--clip", most, "--precision", precision)
    free, clipped = (
        torch.stack([p.grad.norm() for p in run.model.parameters()]).norm().item() for run in runs
    )
    assert free > 0.1
    assert clipped == pytest.approx(0.01, rel=0.01)


def test_recomputed_blocks_run_twice(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    forward = Block.forward

    def count(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return forward(*arguments)

    monkeypatch.setattr(Block, "forward", count)
    fit(shards, *PACKED, "--steps", 1)
    once = calls
    fit(shards, *PACKED, "--steps", 1, "--recompute")
    assert calls - once == 2 * once == 8


def test_losses_are_read_when_they_are_logged_and_not_before(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    item = torch.Tensor.item

    def count(tensor: torch.Tensor) -> Any:
        nonlocal reads
        reads += tensor.ndim == 0 and tensor.is_floating_point()
        return item(tensor)

    monkeypatch.setattr(torch.Tensor, "item", count)
    common = (*PACKED, "--steps", 6, "--warm-up", 0, "--clip", 0)
    fit(shards, *common)
    kept = reads
    fit(shards, *common, "--wait-for-losses")
    assert reads - kept == kept + 6


def test_switches_reach_what_they_are_for(
    shards: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        torch.optim.AdamW, "zero_grad", lambda self, set_to_none=True: asked.append(set_to_none)
    )
    two = (*PACKED, "--steps", 2)
    plain = fit(shards, *two, "--optimizer", "loop")
    fit(shards, *two, "--optimizer", "foreach", "--zero-gradients", "--attention", "sdpa")
    fit(shards, *two, "--tf32")
    assert torch.backends.cuda.matmul.allow_tf32
    assert fit(shards, *two, "--precision", "bf16").losses != plain.losses
    assert not torch.backends.cuda.matmul.allow_tf32
    assert asked == [True] * 2 + [False] * 2 + [True] * 4
    kinds = [(r.optimizer.defaults["foreach"], r.optimizer.defaults["fused"]) for r in runs]
    assert kinds[:3] == [(False, False), (True, False), (False, True)]
    assert [run.model.kernel for run in runs[:2]] == ["split", "sdpa"]
    scaled = [run.scaler.is_enabled() for run in runs]
    fit(shards, *two, "--precision", "fp16")
    assert [*scaled, runs[-1].scaler.is_enabled()] == [False] * 4 + [True]


def test_compiled_blocks_learn_the_same_and_are_compiled_once(shards: Path) -> None:
    from torch._dynamo.utils import counters

    pack = (*PACKED, "--max-images", 8, "--static-shapes", "--attention", "sdpa")
    plain = fit(shards, *pack, "--steps", 2)
    counters.clear()
    compiled = fit(shards, *pack, "--steps", 2, "--compile")
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-4)
    torch._dynamo.reset()
    counters.clear()
    fit(shards, *pack, "--steps", 6, "--compile")
    assert counters["stats"]["unique_graphs"] == graphs


def test_accumulated_batches_teach_what_one_large_batch_does(shards: Path) -> None:
    large = fit(shards, "--batch-size", 8, "--steps", 3)
    small = fit(shards, "--batch-size", 2, "--accumulate", 4, "--steps", 3)
    assert small.losses == pytest.approx(large.losses, rel=1e-4)


@given(
    labels=st.lists(st.integers(1, 50), max_size=30),
    count=st.integers(1, 5),
    least=st.integers(0, 120),
)
def test_groups_are_as_small_as_they_can_be(labels: list[int], count: int, least: int) -> None:
    taken = 0

    def batches() -> Any:
        nonlocal taken
        for number in labels:
            taken += 1
            yield {LABELS: number}

    seen: list[int] = []
    groups = []
    for group in groups_of(batches(), count=count, labels=least):
        numbers = [batch[LABELS] for batch in group]
        seen += numbers
        assert taken == len(seen)  # none is taken before it is needed
        groups.append(numbers)
    assert seen == labels
    for numbers in groups[:-1]:
        if least:
            assert sum(numbers) >= least > sum(numbers[:-1])
        else:
            assert len(numbers) == count


def test_frozen_parts_stay_and_the_others_learn(shards: Path, runs: list[Run]) -> None:
    for arguments in ((), ("--freeze-vision",), ("--lora", "2")):
        fit(shards, *PACKED, "--steps", 1, *arguments)
        fit(shards, *PACKED, "--steps", 4, *arguments)
    before, after = runs[-2:]
    was, now = before.model.state_dict(), after.model.state_dict()
    moved = {name for name in was if not torch.equal(was[name], now[name])}
    assert moved == {name for name in was if "lora_" in name or name.startswith("projector")}
    before, after = runs[-4:-2]
    was, now = before.model.state_dict(), after.model.state_dict()
    moved = {name for name in was if not torch.equal(was[name], now[name])}
    assert moved == {name for name in was if not name.startswith("vision")}


def test_memory_is_told_by_use(shards: Path) -> None:
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


def test_the_loss_falls(shards: Path) -> None:
    report = fit(shards, *PACKED, "--steps", 25, "--lr", 5e-3, "--lr-steps", 25)
    assert report.losses[-1] < 0.75 * report.losses[0]


def test_what_was_measured_is_of_what_follows_the_warm_up(shards: Path) -> None:
    report = fit(shards, "--batch-size", 5, "--steps", 8, "--warm-up", 3)
    assert (report.steps, report.measured, len(report.losses)) == (8, 5, 8)
    assert report.samples_per_s == pytest.approx(25 / report.seconds)
    assert 0.3 < report.fill < 1
    packed = fit(shards, *PACKED, "--static-shapes", "--max-images", 8, "--steps", 8)
    assert 0.7 < packed.fill < 1
    assert packed.tokens_per_s == pytest.approx(
        packed.fill * 300 * packed.measured / packed.seconds
    )


def test_how_busy_a_gpu_is_comes_from_whoever_knows_best() -> None:
    def times(step: float, transfer: float, idle: float) -> SimpleNamespace:
        named = {"step": step, "transfer": transfer, "idle": idle}
        return SimpleNamespace(**{k: SimpleNamespace(total=v) for k, v in named.items()})

    nvml = SimpleNamespace(utilization=0.93)
    assert busy(SimpleNamespace(gpu=nvml, device=times(1, 0, 1))) == 0.93
    assert busy(SimpleNamespace(gpu=None, device=times(6, 1, 3))) == pytest.approx(0.7)
    assert busy(SimpleNamespace(gpu=None, device=None)) is None


def test_a_trace_of_some_steps_is_written(
    shards: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    fit(shards, *PACKED, "--steps", 11, "--profile", file)
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert "aten::linear" in names
    fit(shards, *PACKED, "--steps", 3, "--profile", tmp_path / "other.json")
    assert "no trace: it needs 10 steps" in capfd.readouterr().err


def main(capfd: pytest.CaptureFixture[str], *arguments: Any) -> tuple[str, str]:
    capfd.readouterr()
    program.main([str(argument) for argument in arguments])
    read = capfd.readouterr()
    return read.out, read.err


def test_the_command_line_prints_and_writes_what_it_measured(
    shards: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    common = (shards, "--device", "cpu", *PACKED, "--steps", 3)
    out, err = main(capfd, *common)
    assert "3 steps, loss" in out
    assert "parameters learn; attention: split" in err
    out, _ = main(capfd, *common, "--json", "-")
    printed = json.loads(out)
    main(capfd, *common, "--json", tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert printed["report"]["losses"] == written["report"]["losses"]
    assert printed["options"]["pack"] == 300


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nowhere",), "nowhere"),
        (("SHARDS", "--resume", "nowhere.pt"), "nowhere.pt: there is no checkpoint"),
        (("SHARDS", "--resume", "SHARDS/dataset.json"), "this is no checkpoint"),
        (("SHARDS", "--tokenizer", "nowhere.json"), "there is no tokenizer"),
        (("SHARDS", "--tokenizer", "SHARDS/dataset.json"), "this is no tokenizer.json"),
        (("SHARDS", "--attention", "flex"), "flex has no gradients on the CPU"),
        (("SHARDS", "--attention", "varlen"), "varlen has no kernel for the CPU"),
        (("SHARDS", "--accumulate", "2", "--accumulate-tokens", "9"), "give one of them"),
        (("SHARDS", "--pack", "40", "--overlong", "raise"), "40"),
        (("SHARDS", "--profile", "nowhere/trace.json"), "there is no folder nowhere"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_in_a_line(
    shards: Path, arguments: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [argument.replace("SHARDS", str(shards)) for argument in arguments]
    with pytest.raises(SystemExit) as stopped:
        program.main([*line, "--device", "cpu", "--steps", "2"])
    assert str(stopped.value).startswith("train: ")
    assert reason in str(stopped.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said_to_be_missing(shards: Path) -> None:
    with pytest.raises(SystemExit, match="finds no GPU here; give --device cpu"):
        program.main([str(shards), "--device", "cuda"])


def test_a_checkpoint_of_another_model_is_refused(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.pt"
    fit(shards, *PACKED, "--steps", 1, "--save", file)
    with pytest.raises(ValueError, match=r"a run with lora 0, and this one has 4"):
        fit(shards, *PACKED, "--steps", 2, "--lora", 4, "--resume", file)
    with pytest.raises(ValueError, match="pack"):
        fit(shards, "--pack", 350, "--steps", 2, "--resume", file)
    with pytest.raises(ValueError, match=r"steps=1: the run has made 1 already"):
        fit(shards, *PACKED, "--steps", 1, "--resume", file)


def test_missing_packages_are_named(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, arguments in {
        "bitsandbytes.optim": ("--optimizer", "8bit"),
        "peft": ("--lora", 2),
    }.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ValueError, match=f"pip install {module.partition('.')[0]}"):
            fit(shards, *PACKED, "--steps", 1, *arguments)


def test_an_optimizer_of_8_bits_gets_the_same_groups(
    shards: Path, monkeypatch: pytest.MonkeyPatch, runs: list[Run]
) -> None:
    standing_in = ModuleType("bitsandbytes.optim")
    standing_in.AdamW8bit = torch.optim.AdamW  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", standing_in)
    other = fit(shards, *PACKED, "--steps", 4, "--optimizer", "8bit")
    plain = fit(shards, *PACKED, "--steps", 4, "--optimizer", "foreach")
    assert other.losses == plain.losses
    for group, flat in zip(runs[0].optimizer.param_groups, (False, True), strict=True):
        assert all((p.ndim <= 1) == flat for p in group["params"])
        assert (group["weight_decay"] == 0) == flat


def test_ranks_learn_together_what_one_process_learns(shards: Path, tmp_path: Path) -> None:
    """With a sample each, some step has a rank without any image."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "examples.vlm.train", str(shards), "--device", "cpu"]
    command += ["--batch-size", "1", "--accumulate", "2", "--steps", "5", "--json", "-"]
    ranks = [
        subprocess.Popen(
            [*command, "--num-workers", "1", "--save", str(tmp_path / "run.pt")],
            env=os.environ | common | {"RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    first, second = (process.communicate(timeout=300)[0] for process in ranks)
    assert [process.returncode for process in ranks] == [0, 0]
    assert second == ""
    alone = subprocess.run(
        [arg if arg != "1" else "2" for arg in command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    together, wanted = (json.loads(text)["report"] for text in (first, alone.stdout))
    assert together["losses"] == pytest.approx(wanted["losses"], rel=2e-3)
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    assert len(saved["random"]["cpu"]) == 2


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [rate_at(step, steps=20, warmup=4, peak=2.0) for step in range(30)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[4:21] == sorted(rates[4:21], reverse=True)
    assert rates[20:] == pytest.approx([0.2] * 10)
