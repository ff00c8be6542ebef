"""Token counts of the commands that pack and index."""

from pathlib import Path

import numpy as np
import pytest

from .conftest import SAMPLES


@pytest.mark.parametrize("command", ["index", "pack"])
def test_tokens_are_counted_at_pack_time_and_afterwards(
    read, run, raw, shards, tmp_path, tokenizer, lengths, command
):
    options = ("--tokenizer", tokenizer, "--template", "chatml")
    places = (shards,) if command == "index" else (raw, tmp_path / "new")
    report = read(run(command, *places, *options, "--json"))["tokens"]
    ordered = np.sort(lengths)
    assert report["failed"] == 0
    assert report["text"] == {
        "total": lengths.sum(),
        "mean": pytest.approx(lengths.mean()),
        "p50": ordered[SAMPLES // 2 - 1],
        "p90": ordered[SAMPLES * 9 // 10 - 1],
        "p99": ordered[-1],
        "most": ordered[-1],
    }
    assert 0 < report["labels"]["total"] < lengths.sum()
    shown = run(command, *places, *options).stdout
    assert f"  text tokens  {lengths.sum():,} (mean {lengths.mean():,.1f}, median" in shown
    assert f"  label tokens {report['labels']['total']:,} (mean" in shown


def test_foreign_tars_are_indexed_and_counted(read, run, tmp_path, make_tar, jpeg, tokenizer):
    members = [("0.jpg", jpeg(0)), ("0.txt", b"hello"), ("1.txt", b"\xff\xfe no text")]
    make_tar(tmp_path / "0.tar", members)
    options = ("--tokenizer", tokenizer, "--template", "caption")
    report = read(run("index", tmp_path, *options, "--json"))
    assert (report["samples"], report["tokens"]["failed"]) == (2, 1)
    lines = run("index", tmp_path, *options).stdout.splitlines()
    assert lines[0] == f"Indexed {tmp_path}"
    assert ["failed", "texts", "1"] in [line.split() for line in lines]
    assert lines[-2].startswith("failed 1: 1.txt: ")
    assert lines[-1].startswith("all failures: ")
    assert Path(lines[-1].removeprefix("all failures: ")).exists()


def test_a_dry_run_counts_nothing(read, run, raw, tmp_path, tokenizer):
    options = ("--tokenizer", tokenizer, "--template", "chatml", "--dry-run", "--json")
    assert "tokens" not in read(run("pack", raw, tmp_path / "out", *options))
    assert not (tmp_path / "out").exists()
