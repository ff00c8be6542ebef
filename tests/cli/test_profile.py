"""`datapipe profile`, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import datapipe
from tests.waiting import PATIENCE, wait_until

from ..campaigns import rare

SHORT = ("--batch-size", 4, "--image", "size=32,normalize=clip", "--seconds", 0.3)
TELLING = """
import datapipe.progress
datapipe.progress.PLAIN_EVERY = 0  # each phase is told
from datapipe.cli import main
main()
"""
TEXT = ("--template", "chatml", "--image-tokens", 6)


def test_the_verdict_comes_first_and_report_and_trace_are_written(run, shards, tmp_path):
    pytest.importorskip("matplotlib")
    files = ("--report", tmp_path / "out.html", "--trace", tmp_path / "trace.json")
    result = run("profile", shards, *SHORT, "--num-workers", 2, "--decoder", "cpu", *files)
    assert result.exit_code == 0
    first = result.stdout.split("\n")[0]
    assert first.split(": ")[0] in ("read", "decode", "resize", "collate")
    assert "with 2 threads" in result.stdout
    assert "What would make it faster" in result.stdout
    assert "<svg" in (tmp_path / "out.html").read_text("utf-8")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events} >= {"read", "decode"}
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert rows == {"worker 0", "worker 1", "caller"}
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_tars_of_someone_else_can_be_profiled_as_json(run, read, tmp_path, make_tar, jpeg):
    images = [(f"{n:03d}.jpg", jpeg(n)) for n in range(9)]
    make_tar(tmp_path / "theirs" / "a.tar", images)
    document = read(run("profile", tmp_path / "theirs", *SHORT, "--step-time", "5ms", "--json"))
    assert document["paced"]["step_time"] == 0.005
    assert document["shards"] == str(tmp_path / "theirs")
    assert document["images_per_sample"] == 1


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--pack", 4096, "--image", "32"), id="packs"),
        rare(("--max-tokens", 4096, "--image", "none")),
        rare(("--batch-size", 4, "--image", "none")),
    ],
)
def test_tokenizers_are_metered(run, read, shards, tokenizer, options):
    given = ("--tokenizer", tokenizer, *TEXT, *options, "--seconds", 0.3, "--json")
    document = read(run("profile", shards, *given))
    assert document["alone"]["tokenize"]["rate"] > 0
    assert document["roofline"]["ceilings"]["tokenizer"]["rate"] > 0
    assert document["pipeline"]["stages"]["tokenize"]["seconds"] > 0


def test_damaged_samples_end_it_or_are_skipped_as_asked(run, tmp_path, make_tar, jpeg):
    images = [(f"{n}.jpg", b"no image" if n == 3 else jpeg(n)) for n in range(9)]
    make_tar(tmp_path / "0.tar", images)
    result = run("profile", tmp_path, *SHORT)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: sample ")
    assert result.stderr.count("\n") == 1
    result = run("profile", tmp_path, *SHORT, "--on-error", "skip")
    assert result.exit_code == 0
    assert "skipped, which cannot be read or decoded" in result.stdout


@pytest.mark.campaign
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_ctrl_c_ends_it_at_once_and_leaves_nobody_behind(shards, workers):
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", TELLING, "profile", str(shards), *map(str, SHORT[:4])),
            *("--seconds", "60", "--num-workers", "2", "--workers", workers),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(datapipe.__file__).parents[1],
    )
    assert any(line.endswith("the loader at work\n") for line in process.stderr)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out == ""
    assert "Interrupted" in err
    # What is interrupted while objects die Python reports by itself.
    assert "Traceback" not in err.partition("Exception ignored in")[0]
    with pytest.raises(ProcessLookupError):  # as soon as a pool's processes have followed
        wait_until(lambda: os.killpg(process.pid, 0))
