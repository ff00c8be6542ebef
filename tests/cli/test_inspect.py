"""`datapipe inspect`: what it prints of shards, of arrays, and of what is neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import datapipe

Run = Callable[..., Any]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(4):
        Image.new("RGB", (50, 40 + number)).save(raw / f"{number}.jpg")
    datapipe.pack_dataset(raw, tmp_path / "shards")
    return tmp_path / "shards"


def test_shards_and_arrays(run: Run, shards: Path, tmp_path: Path) -> None:
    done = run("inspect", shards, "--image-size", 16)
    assert done.exit_code == 0, done.output
    for part in ("samples    4", "shards, cached decoded", "arrays", "datapipe profile"):
        assert part in done.output
    found = json.loads(run("inspect", shards, "--image-size", 16, "--json").stdout)
    packed = sum(path.stat().st_size for path in shards.glob("*.tar"))
    assert found["forms"]["shards"] == {"disk": packed, "memory": 0}
    assert found["forms"]["arrays"]["disk"] == 4 * 16 * 16 * 3
    assert found["forms"]["shards, cached decoded"]["memory"] >= 4 * 16 * 16 * 3
    assert found["forms"]["free"]["memory"] > 0
    run("convert", shards, tmp_path / "arrays", "--image-size", 16)
    arrays = run("inspect", tmp_path / "arrays")
    assert arrays.exit_code == 0, arrays.output
    assert "images.npy" in arrays.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{tmp}/nowhere",), "no such folder"),
        (("{shards}", "--image", "qwen2-vl"), "many sizes"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(
    run: Run, shards: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = run("inspect", *(word.format(shards=shards, tmp=tmp_path) for word in arguments))
    assert done.exit_code == 1
    assert message in done.output.replace("\n", " ")


def test_texts_alone_have_no_form_to_choose(run: Run, shards: Path, tmp_path: Path) -> None:
    run("convert", shards, tmp_path / "texts", "--image", "none")
    done = run("inspect", tmp_path / "texts")
    assert done.exit_code == 0, done.output
    assert "datapipe profile" not in done.output
