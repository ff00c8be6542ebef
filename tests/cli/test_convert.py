"""`datapipe convert` and `datapipe pack --to memmap`: what is printed, and what is refused."""

import json

import numpy as np
import pytest
from PIL import Image

import datapipe
from datapipe.testing import assert_same_batches


@pytest.fixture
def raw(tmp_path, make_folder):
    """Twelve pictures with captions, and one that is none."""
    folder = make_folder(tmp_path / "raw", 12)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    return folder


@pytest.fixture
def shards(raw, tmp_path):
    datapipe.pack_dataset(raw, tmp_path / "shards", shard_size=5, max_rejects=1)
    return tmp_path / "shards"


def test_images_and_tokens_are_converted_with_a_word_on_what_was_done(
    run, shards, tokenizer, tmp_path
):
    arrays = tmp_path / "arrays"
    text = ("--tokenizer", tokenizer, "--template", "chatml")
    command = ("convert", shards, arrays, "--image-size", 16, *text)
    done = run(*command)
    assert done.exit_code == 0, done.output
    assert "Converted into" in done.output
    assert "12" in done.output
    report = json.loads(run(*command, "--json").stdout)
    assert report["samples"] == report["images"] == 12
    assert report["finished_before"]
    assert run("plan", arrays, "--batch-size", 4).exit_code == 0  # of images as they are stored
    assert np.load(arrays / "images.npy").shape == (12, 16, 16, 3)
    offsets, tokens, labels = (
        np.load(arrays / f"{name}.npy") for name in ("token_offsets", "tokens", "labels")
    )
    assert len(offsets) == 13
    assert offsets[-1] == len(tokens) == len(labels)
    assert set(np.unique(labels[labels != tokens])) == {-100}


def test_packing_straight_to_arrays(run, raw, shards, tmp_path):
    options = ("--image", "size=16x24,resize=pad,normalize=clip", "--max-rejects", 1)
    packing = ("pack", raw, tmp_path / "arrays", "--to", "memmap", "--shard-size", 5, *options)
    done = run(*packing)
    assert done.exit_code == 0, done.output
    assert "broken.jpg" in done.output
    assert run("convert", shards, tmp_path / "converted", *options).exit_code == 0
    for name in ("images.npy", "texts.npy", "dataset.json", "rejects.jsonl"):
        made = (tmp_path / folder / name for folder in ("arrays", "converted"))
        assert len({path.read_bytes() for path in made}) == 1, name
    assert not list((tmp_path / "arrays").glob(".*"))
    spec = datapipe.ImageSpec(size=(16, 24), resize="pad", normalize="clip")
    assert_same_batches(
        datapipe.make_loader(tmp_path / "arrays", batch_size=4, image=spec),
        datapipe.make_loader(shards, batch_size=4, image=spec),
    )
    assert "nothing to do" in run(*packing).output
    Image.new("RGB", (40, 40)).save(raw / "new.png")
    changed = run(*packing)
    assert changed.exit_code == 1
    assert "raw data is not what this was packed from" in changed.output
