"""Several processes that train together: what they learn, where they go on, who is lost."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import datapipe

from .vlm_runs import PACKED, environment, fit, start_ranks

pytestmark = [pytest.mark.campaign, pytest.mark.usefixtures("small_model")]

Found = dict[str, dict[str, Any]]

TIMEOUT = 240
COMMON = ("--num-workers", 0, "--device", "cpu", "--lr-steps", 9, "--log-every", 50)
FSDP = ("--parallel", "fsdp")
UNEVEN = ("--batch-size", 1, "--steps", 15)
"""25 samples: the 13th step of two ranks has no sample for the second one."""
GLOBAL = ("--batch-size", 2, "--global-batch-size", 8)
LONG = (*PACKED, "--steps", 12, "--lr", 5e-3, "--lr-warmup", 2, "--lr-steps", 12)

TWO: dict[str, tuple[Any, ...]] = {
    "padded ddp": UNEVEN,
    "padded fsdp": (*UNEVEN, *FSDP),
    "packed ddp": (*PACKED, "--steps", 6),
    "packed fsdp": (*PACKED, "--steps", 6, *FSDP),
    "accumulated ddp": (*GLOBAL, "--steps", 6),
    "accumulated fsdp": (*GLOBAL, "--steps", 6, *FSDP),
    "static graph": (*PACKED, "--steps", 6, "--static-graph", "--bucket-mb", 0.01),
    "recomputed fsdp": (*PACKED, "--steps", 6, *FSDP, "--recompute"),
    "bfloat16 fsdp": (*PACKED, "--steps", 6, *FSDP, "--precision", "bf16"),
    "adapters ddp": (*PACKED, "--steps", 3, "--lora", 2),
    "adapters fsdp": (*PACKED, "--steps", 3, "--lora", 2, *FSDP),
    "still": (*PACKED, "--steps", 1, "--lr", 0),
    "no hook": LONG,
    "fp16": (*LONG, "--hook", "fp16"),
    "bf16": (*LONG, "--hook", "bf16"),
    "powersgd": (*LONG, "--hook", "powersgd", "--powersgd-rank", 2),
    "differ": (*PACKED, "--steps", 1, "--clip=1@0", "--clip=2@1"),
    "save ddp": (*GLOBAL, "--steps", 3, "--save", "FILE"),
    "save fsdp": (*GLOBAL, "--steps", 3, *FSDP, "--save", "FOLDER", "--save-every", 1),
}
FOUR: dict[str, tuple[Any, ...]] = {
    "killed": (*GLOBAL, "--steps", "LAST", "--resume", "KILLED"),
    "ddp to fsdp": (*GLOBAL, "--steps", 7, "--resume", "FILE", *FSDP),
    "fsdp to ddp": (*GLOBAL, "--steps", 7, "--resume", "FOLDER"),
    "fsdp to fsdp": (*GLOBAL, "--steps", 7, "--resume", "FOLDER", *FSDP),
    "uneven": ("--batch-size", 3, "--steps", 4),
    "uneven fsdp": ("--batch-size", 3, "--steps", 4, *FSDP),
}


def together(count, jobs, folder):
    """Run jobs on some ranks; the results of each."""
    asked, results = folder / f"jobs-{count}", folder / f"results-{count}"
    asked.write_text(json.dumps(jobs))
    start_ranks(count, "rank_worker", "jobs", asked, results)
    return [json.loads(Path(f"{results}.{rank}").read_text()) for rank in range(count)]


def torchrun(shards, *arguments, **more):
    line: list[Any] = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += [
        "--nproc-per-node",
        2,
        "-m",
        "tests.examples.rank_worker",
        "main",
        shards,
        *COMMON,
        *arguments,
    ]
    return subprocess.Popen(
        list(map(str, line)), env=environment(**more), stderr=subprocess.PIPE, text=True
    )


def begin(process, ready):
    until = time.monotonic() + TIMEOUT
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def killed(shards, folder):
    """The output of a run whose second rank was killed, after it had saved `folder / "killed"`."""
    file = folder / "killed"
    run = torchrun(shards, *GLOBAL, "--steps", 9999, "--save", file, "--save-every", 1)
    try:
        begin(run, file.exists)
        ranks = psutil.Process(run.pid).children(recursive=True)
        second = next(rank for rank in ranks if rank.environ().get("RANK") == "1")
        second.send_signal(signal.SIGKILL)
        _, text = run.communicate(timeout=TIMEOUT)
    finally:
        run.kill()
    return text.replace(f"process {second.pid}", "process PID")


@pytest.fixture(scope="module")
def two(shards, folder):
    return together(2, lines(TWO, shards, folder), folder)


@pytest.fixture(scope="module")
def four(shards, folder, two, killed):
    last = str(step_of(folder / "killed") + 5)
    jobs = lines(FOUR, shards, folder)
    jobs["killed"] = [last if text == "LAST" else text for text in jobs["killed"]]
    return together(4, jobs, folder)


def lines(jobs, shards, folder):
    files = {"FILE": "run.pt", "FOLDER": "sharded", "KILLED": "killed"}
    return {
        name: [
            str(folder / files[text]) if text in files else text
            for text in map(str, (shards, *COMMON, *arguments))
        ]
        for name, arguments in jobs.items()
    }


def step_of(file):
    return int(torch.load(file, weights_only=True)["step"])


def alone(shards, *arguments):
    return fit(shards, *COMMON, *arguments).losses


def test_two_ranks_learn_what_one_process_learns(shards, two):
    first = two[0]
    padded = alone(shards, "--batch-size", 2, "--steps", 15)
    packed = alone(shards, *PACKED, "--batch-size", 2, "--steps", 6)
    accumulated = alone(shards, "--batch-size", 8, "--steps", 6)
    for kind in ("ddp", "fsdp"):
        assert first[f"padded {kind}"]["losses"] == pytest.approx(padded, rel=1e-4)
        assert first[f"packed {kind}"]["losses"] == pytest.approx(packed, rel=1e-4)
        assert first[f"accumulated {kind}"]["losses"] == pytest.approx(accumulated, rel=1e-4)
    for name in ("static graph", "recomputed fsdp"):
        assert first[name]["losses"] == pytest.approx(packed, rel=1e-4)
    assert first["bfloat16 fsdp"]["losses"] == pytest.approx(packed, rel=2e-3)
    assert first["bfloat16 fsdp"]["losses"] != pytest.approx(packed, rel=1e-6)
    adapters = alone(shards, *PACKED, "--batch-size", 2, "--steps", 3, "--lora", 2)
    for kind in ("ddp", "fsdp"):
        assert first[f"adapters {kind}"]["losses"] == pytest.approx(adapters, rel=1e-4)
    assert {name: job.get("losses") for name, job in two[1].items()} == {
        name: job.get("losses") for name, job in first.items()
    }


def test_shards_are_parts_of_the_model(two):
    whole = two[0]["packed ddp"]["parameters"]
    parts = [rank["packed fsdp"]["parameters"] for rank in two]
    assert max(parts) < 0.6 * whole
    assert sum(parts) == whole


def test_the_norm_of_a_rank_is_of_its_own_gradients(shards, two, runs, monkeypatch):
    make = datapipe.make_loader
    wanted = []
    for rank in range(2):
        monkeypatch.setattr(
            datapipe,
            "make_loader",
            functools.partial(make, rank=rank, world_size=2),
        )
        fit(shards, *COMMON, *PACKED, "--steps", 1, "--lr", 0)
        own = runs[-1].own
        assert own is not None
        # Here the labels of both ranks divide one rank's losses; there, two divides the sum too.
        wanted.append(2 * own[2].item())
    assert two[0]["still"]["norms"] == pytest.approx(wanted, rel=1e-3)
    assert wanted[0] != pytest.approx(wanted[1], rel=1e-2)
    ours, theirs = (two[0][f"padded {kind}"]["norms"] for kind in ("ddp", "fsdp"))
    assert theirs == pytest.approx(ours, rel=1e-2)


def test_compressed_gradients_teach_nearly_the_same(two):
    exact = two[0]["no hook"]["losses"]
    fallen = exact[0] - exact[-1]
    assert fallen > 0.5
    for hook, least in (("fp16", 0.99), ("bf16", 0.98), ("powersgd", 0.7)):
        losses = two[0][hook]["losses"]
        assert losses != exact
        assert losses[0] - losses[-1] > least * fallen


def test_options_that_differ_are_told_with_both_values(two):
    for rank in two:
        assert "--clip is 1.0 on rank 0 and 2.0 on rank 1" in rank["differ"]["error"]


def test_a_rank_that_is_killed_is_named(killed):
    assert "rank 1 (" in killed
    assert ", process PID) is gone, last seen " in killed


def test_runs_go_on_with_another_number_of_ranks(shards, folder, four, two):
    done = step_of(folder / "killed")
    last = max(7, done + 5)
    whole = alone(shards, "--batch-size", 8, "--steps", last)
    assert four[0]["killed"]["losses"] == pytest.approx(whole[done : done + 5], rel=1e-4)
    rest = alone(shards, *GLOBAL, "--steps", last, "--resume", folder / "killed")
    assert rest == pytest.approx(whole[done:], rel=1e-4)
    for kind in ("ddp to fsdp", "fsdp to ddp", "fsdp to fsdp"):
        assert four[0][kind]["losses"] == pytest.approx(whole[3:7], rel=1e-4)
    sharded = alone(shards, *GLOBAL, "--steps", 7, "--resume", folder / "sharded")
    assert sharded == pytest.approx(whole[3:7], rel=1e-4)
    assert [path.name for path in (folder / "sharded").glob("step-*")] == ["step-3"]


def test_samples_that_ranks_do_not_divide_hang_no_rank(shards, four):
    """25 samples make two steps of 12, and a third with one sample, on the first rank."""
    wanted = alone(shards, "--batch-size", 12, "--steps", 4)
    for name in ("uneven", "uneven fsdp"):
        assert four[0][name]["losses"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.measuring
def test_a_rank_that_hangs_in_the_data_is_named_with_its_stack(shards):
    run = torchrun(shards, *UNEVEN, "--rank-timeout", 60, HANG=1)
    try:
        _, text = run.communicate(timeout=TIMEOUT)
    finally:
        run.kill()
    assert run.returncode != 0
    assert "has been waiting for data (step 6) for" in text
    assert "the others wait for it, in the backward pass and the exchange of gradients" in text
    named = text[text.index("rank 1 is here:") :]
    assert "rank_worker.py" in named
    assert "rank 0 is here:" not in text
