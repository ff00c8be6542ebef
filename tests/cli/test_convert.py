"""`datapipe convert` and `datapipe pack --to memmap`: what is printed, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import datapipe
from datapipe.testing import assert_same_batches

Run = Callable[..., Any]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Twelve pictures with captions, and one that is none."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for number in range(12):
        noise = np.random.default_rng(number).integers(0, 256, (30 + number, 40, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number:02}.png")
        (folder / f"{number:02}.txt").write_text(f"Picture {number}.")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    return folder


@pytest.fixture
def shards(raw: Path, tmp_path: Path) -> Path:
    datapipe.pack_dataset(raw, tmp_path / "shards", shard_size=5, max_rejects=1)
    return tmp_path / "shards"


def test_converting_says_what_it_did(run: Run, shards: Path, tmp_path: Path) -> None:
    done = run("convert", shards, tmp_path / "arrays", "--image-size", 16)
    assert done.exit_code == 0, done.output
    assert "Converted into" in done.output
    assert "12" in done.output
    again = run("convert", shards, tmp_path / "arrays", "--image-size", 16, "--json")
    report = json.loads(again.stdout)
    assert report["samples"] == report["images"] == 12
    assert report["finished_before"]
    assert np.load(tmp_path / "arrays/images.npy", mmap_mode="r").shape == (12, 16, 16, 3)


def test_packing_straight_to_arrays(run: Run, raw: Path, shards: Path, tmp_path: Path) -> None:
    options = ("--image", "size=16x24,resize=pad,normalize=clip", "--max-rejects", 1)
    arrays = tmp_path / "arrays"
    done = run("pack", raw, arrays, "--to", "memmap", "--shard-size", 5, *options)
    assert done.exit_code == 0, done.output
    assert "broken.jpg" in done.output
    assert "broken.jpg" in (arrays / "rejects.jsonl").read_text()
    assert sorted(path.name for path in arrays.iterdir() if path.name.startswith(".")) == []
    converted = tmp_path / "converted"
    assert run("convert", shards, converted, *options).exit_code == 0
    for name in ("images.npy", "texts.npy", "dataset.json", "rejects.jsonl"):
        assert (arrays / name).read_bytes() == (converted / name).read_bytes(), name
    spec = datapipe.ImageSpec(size=(16, 24), resize="pad", normalize="clip")
    assert_same_batches(
        datapipe.make_loader(arrays, batch_size=4, image=spec),
        datapipe.make_loader(shards, batch_size=4, image=spec),
    )
    again = run("pack", raw, arrays, "--to", "memmap", "--shard-size", 5, *options)
    assert "nothing to do" in again.output
    (raw / "new.txt").write_text("Another.")
    Image.new("RGB", (40, 40)).save(raw / "new.png")
    changed = run("pack", raw, arrays, "--to", "memmap", "--shard-size", 5, *options)
    assert changed.exit_code == 1
    assert "raw data is not what this was packed from" in changed.output


def test_tokens_are_written(run: Run, shards: Path, tokenizer: Path, tmp_path: Path) -> None:
    options = ("--image", "none", "--tokenizer", tokenizer, "--template", "chatml")
    done = run("convert", shards, tmp_path / "arrays", *options)
    assert done.exit_code == 0, done.output
    offsets = np.load(tmp_path / "arrays/token_offsets.npy")
    tokens = np.load(tmp_path / "arrays/tokens.npy", mmap_mode="r")
    labels = np.load(tmp_path / "arrays/labels.npy", mmap_mode="r")
    assert len(offsets) == 13
    assert offsets[-1] == len(tokens) == len(labels)
    assert set(np.unique(labels[labels != tokens])) == {-100}
    assert not (tmp_path / "arrays/images.npy").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convert", "{tmp}/nowhere", "{tmp}/a"), "no such folder"),
        (("convert", "{shards}", "{tmp}/a", "--image-size", "wide"), "give a side such as 336"),
        (("convert", "{shards}", "{tmp}/a", "--image", "qwen2-vl"), "many sizes"),
        (("convert", "{shards}", "{tmp}/a", "--image", "8", "--image-size", "8"), "give one"),
        (("convert", "{shards}", "{tmp}/a", "--template", "llava"), "--template needs --tokenizer"),
        (("convert", "{shards}", "{shards}"), "holds the shards"),
        (("pack", "{raw}", "{tmp}/a", "--to", "tfrecord"), "neither 'shards' nor 'memmap'"),
        (("pack", "{raw}", "{tmp}/a", "--image-size", "8"), "add --to memmap"),
        (("pack", "{raw}", "{tmp}/a", "--to", "memmap", "--append"), "--append applies to shards"),
        (("pack", "{raw}", "{shards}", "--to", "memmap"), "holds shards"),
        (("pack", "{raw}", "s3://b/a", "--to", "memmap"), "must be local"),
        (("pack", "{raw}", "{raw}", "--to", "memmap"), "neither empty nor"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(
    run: Run, raw: Path, shards: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    words = [word.format(raw=raw, shards=shards, tmp=tmp_path) for word in arguments]
    before = sorted(path.name for path in shards.iterdir())
    done = run(*words)
    assert done.exit_code == 1
    assert message in done.output.replace("\n", " ")
    assert not (tmp_path / "a/dataset.json").exists()
    assert sorted(path.name for path in shards.iterdir()) == before


def test_arrays_are_no_shards(run: Run, raw: Path, shards: Path, tmp_path: Path) -> None:
    arrays = tmp_path / "arrays"
    run("convert", shards, arrays, "--image-size", 16)
    appended = run("pack", raw, arrays, "--append", "--shard-size", 5)
    assert appended.exit_code == 1
    assert "holds arrays" in appended.output


@pytest.mark.campaign
def test_interrupting_and_going_on(shards: Path, tmp_path: Path) -> None:
    """A real process, a real signal."""
    arrays = tmp_path / "arrays"
    command = [sys.executable, "-m", "datapipe", "convert", shards, arrays, "--image-size", "2000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (arrays / ".pack/images.npy").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if process.returncode:  # it may have been quicker
        # If the interrupt came within an `exec` of source, as when a dataclass is made during an
        # import, CPython ends by the signal, whatever the code. A shell shows 130 for both.
        assert process.returncode in (130, -signal.SIGINT), errors
        assert "run the same command again" in errors
        assert "Traceback" not in errors
    subprocess.run(command, check=True, capture_output=True)
    assert len(np.load(arrays / "images.npy", mmap_mode="r")) == 12
