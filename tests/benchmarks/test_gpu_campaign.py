"""The campaign on a GPU: its command line, and a rehearsal of it on the CPU."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks/gpu_campaign.sh"


def call(*arguments):
    return subprocess.run(
        [SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHON": sys.executable},
    )


def load(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "STAGE..."),
        (("dance",), "there is no stage or option dance"),
        (("--minutes", "soon", "smoke"), "--minutes soon: give a number above 0"),
        (("--minutes", "0", "smoke"), "--minutes 0: give a number above 0"),
        (("--out",), "--out needs a folder"),
    ],
    ids=str,
)
def test_wrong_options_are_said(arguments, said):
    done = call(*arguments)
    assert done.returncode
    assert said in done.stderr
    assert not done.stdout


def test_help_names_every_stage():
    done = call("--help")
    assert done.returncode == 0
    stages = ("smoke", "decode", "feed", "attention", "ladder", "asides", "profile", "suite", "all")
    found = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert [name for name in found if name in stages] == list(stages)


@pytest.mark.campaign
def test_a_stage_that_is_out_of_time_ends_and_the_next_one_begins(tmp_path):
    done = call("--rehearse", "--minutes", 0.02, "--out", tmp_path, "ladder", "feed")
    assert done.returncode == 1
    assert "ladder: out of time" in done.stdout
    assert "not whole: ladder (out of time) feed (out of time)" in done.stdout
    assert (tmp_path / "ladder.log").exists()


@pytest.mark.campaign
def test_ctrl_c_ends_a_campaign_with_all_that_it_started(tmp_path):
    campaign = subprocess.Popen(
        [SCRIPT, "--rehearse", "--out", tmp_path, "decode", "feed"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHON": sys.executable},
        start_new_session=True,  # so that all of it can be found
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for line in campaign.stdout:
        if line.startswith("$ "):  # a benchmark was started
            break
    campaign.send_signal(signal.SIGINT)
    rest = campaign.stdout.read()
    assert campaign.wait(300) == 130
    assert "decode: interrupted" in rest
    assert "feed" not in rest
    for _ in range(1500):
        left = subprocess.run(
            ["ps", "-s", str(campaign.pid), "-o", "pid="], capture_output=True, text=True
        ).stdout
        if not left.strip():
            return
        time.sleep(0.2)
    pytest.fail(f"these run on: {left}")


@pytest.mark.campaign
def test_every_stage_can_be_rehearsed_without_a_gpu(tmp_path):
    done = call("--rehearse", "--out", tmp_path, "all")
    assert done.returncode == 0, done.stdout + done.stderr

    checks = load(tmp_path, "smoke")["checks"]
    assert {check["state"] for check in checks.values()} == {"ok", "absent"}
    assert checks["decoder: dali"]["state"] == checks["a process group"]["state"] == "ok"
    assert " skipped in" in (tmp_path / "smoke.log").read_text()  # the tests that need a GPU

    heats = load(tmp_path, "decode")["heats"]
    assert len(heats) == 4
    for heat in heats.values():
        assert {"cpu"} < {result["name"] for result in heat}
        for result in heat:
            assert result["runs"] or result["name"].startswith("nvjpeg"), result["missing"]
    assert load(tmp_path, "decode")["latency_ms"]["cpu"]["median"] > 0

    feed = load(tmp_path, "feed")
    assert all("img/s" in loader for loader in feed["loader"].values())
    assert len(feed["reference"]) == 3
    assert all(run["tokens_per_s"] > 0 for run in feed["reference"].values())

    settings = load(tmp_path, "attention")["settings"]
    assert [at["length"] for at in settings["rows of one length"]] == [64, 128]
    assert [rung["aside"] for rung in load(tmp_path, "ladder")["results"]] == [False] * 3
    assert [rung["aside"] for rung in load(tmp_path, "asides")["results"]] == [False, True]
    assert load(tmp_path, "profile-reference")["report"]["stages"]
    assert load(tmp_path, "profile-memory")["report"]["memory_phases"]
    assert (tmp_path / "profile-loader.html").stat().st_size > 10_000
    assert (tmp_path / "profile-trace.json.gz").stat().st_size > 10_000

    aims = [load(tmp_path, name)["aims"] for name in ("decode", "feed", "attention", "ladder")]
    assert aims == [[]] * 4
