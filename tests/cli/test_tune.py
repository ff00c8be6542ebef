"""`datapipe tune-workers`: what it prints, where, and how it ends."""

import json
import signal
import subprocess
import sys

import psutil
import pytest

import datapipe
from datapipe.cli.values import parse_seconds, parse_share
from tests.waiting import PATIENCE

SCRIPT = """
import time
import torch

class Sleeps(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.tensor([index])

def make(num_workers, prefetch_factor):
    if num_workers == 3:
        raise RuntimeError("three is [bold] too many")
    return torch.utils.data.DataLoader(
        Sleeps(), batch_size=2, num_workers=num_workers, prefetch_factor=prefetch_factor
    )

def step(batch):
    time.sleep(0.03)
"""


QUICK = ("--num-workers", "1", "--prefetch-factor", "2", "--budget", "300s")  # one, so it ends


def test_a_dataset_is_tuned_and_the_result_kept(run, read, shards):
    options = ("--batch-size", 4, "--image", 32, *QUICK)
    document = read(run("tune-workers", shards, *options, "--json"))
    assert document["tuned"] == str(shards)
    assert [row["num_workers"] for row in document["settings"]] == [document["num_workers"]] == [1]
    assert document["samples_rate"] == pytest.approx(4 * document["rate"], rel=0.1)
    loader = datapipe.make_loader(
        shards, batch_size=4, image=datapipe.ImageSpec(size=32), num_workers="auto"
    )
    assert loader.options.num_workers == document["num_workers"]


@pytest.mark.campaign
def test_the_report_is_plain_when_piped(run, shards, tmp_path):
    options = ("--batch-size", 4, "--image", 32, *QUICK, "--report", tmp_path / "r.html")
    result = run("tune-workers", shards, *options)
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{shards}: num_workers=")
    assert "make_loader(num_workers='auto', prefetch_factor='auto')" in result.stdout
    assert f"datapipe profile {shards} --batch-size 4 --image 32" in result.stdout
    assert ["workers", "prefetch", "batches/s"] in [line.split()[:3] for line in lines]
    assert any(line.split()[:1] == ["1"] for line in lines)
    assert lines[-1].split()[1] == "trials"
    assert (tmp_path / "r.html").read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.campaign
def test_a_loader_of_ones_own_is_tuned_for_a_step_of_training(run, tmp_path, monkeypatch):
    script = tmp_path / "train_it.py"
    script.write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path / "other")  # and the path is as before at the end
    result = run(
        *("tune-workers", "--target", f"{script}:make", "--train", f"{script}:step", "--json"),
        *("--num-workers", "0,2,3", "--prefetch-factor", "2", "--budget", "20s"),
        *("--max-wait", "20%"),
    )
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["num_workers"] == 2  # without workers, a batch takes 20 of every 50 ms
    assert document["step_time"] == pytest.approx(0.03, rel=0.5)
    failed = [row for row in document["settings"] if row["num_workers"] == 3]
    assert [row["out"] for row in failed] == ["raised RuntimeError: three is [bold] too many"]


HANGS = """
import itertools, sys, time
import torch

made = itertools.count()

class Numbers(torch.utils.data.Dataset):
    def __init__(self, hangs):
        self.hangs = hangs
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        if self.hangs and index > 10:
            print("hangs", file=sys.stderr, flush=True)
            time.sleep(300)
        time.sleep(0.001)
        return index

def make(num_workers, prefetch_factor):
    return torch.utils.data.DataLoader(
        Numbers(next(made) == 2), batch_size=2, collate_fn=list, num_workers=num_workers,
        prefetch_factor=prefetch_factor,
    )
"""


@pytest.mark.campaign
@pytest.mark.parametrize("workers", ["0", "2"])
def test_ctrl_c_says_what_is_known_and_leaves_no_process(tmp_path, workers):
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "datapipe", "tune-workers", "--target", f"{script}:make"),
            *("--num-workers", f"{workers},3", "--prefetch-factor", "2", "--budget", "300s"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "hangs\n" in iter(process.stderr.readline, "")  # behind lines of progress, if it is slow
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    # Python itself reports what is interrupted while torch's loader ends.
    assert "Traceback" not in stderr.partition("Exception ignored in")[0]
    assert "Interrupted; these are the results so far." in stderr
    assert "num_workers=" in stdout
    assert not psutil.wait_procs(children, timeout=PATIENCE)[1]


def test_units_are_read_as_people_write_them():
    seconds = {"60s": 60, "120ms": 0.12, "2min": 120, "1.5": 1.5}
    assert {text: parse_seconds(text, "-x") for text in seconds} == seconds
    shares = {"1%": 0.01, "0.01": 0.01, "20 %": 0.2}
    assert {text: parse_share(text, "-x") for text in shares} == shares
