"""`datapipe inspect`: what it prints of shards, of arrays, and of what is neither."""

import json
import os
import shutil
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image

import datapipe
from datapipe.index.manifest import read_manifest, write_manifest
from tests.flipping import flip


@pytest.fixture
def shards(tmp_path):
    (tmp_path / "raw").mkdir()
    for number in range(4):
        Image.new("RGB", (50, 40 + number)).save(tmp_path / "raw" / f"{number}.jpg")
    (tmp_path / "raw" / "0.txt").write_text("A caption.")
    datapipe.pack_dataset(tmp_path / "raw", tmp_path / "shards")
    return tmp_path / "shards"


def test_shards_and_arrays(run, shards, tmp_path):
    done = run("inspect", shards, "--image-size", 16)
    assert done.exit_code == 0, done.output
    for part in ("samples    4", "shards, cached decoded", "arrays", "datapipe profile"):
        assert part in done.output
    found = json.loads(run("inspect", shards, "--image-size", 16, "--json").stdout)
    packed = sum(path.stat().st_size for path in shards.glob("*.tar"))
    assert found["forms"]["shards"] == {"disk": packed, "memory": 0}
    assert found["forms"]["arrays"]["disk"] == 4 * 16 * 16 * 3 + len("A caption.")
    assert found["forms"]["shards, cached decoded"]["memory"] >= 4 * 16 * 16 * 3
    assert found["forms"]["free"]["memory"] > 0
    run("convert", shards, tmp_path / "arrays", "--image-size", 16)
    assert "shards, cached decoded" not in run("inspect", shards).output
    digits = run("inspect", shards, "1" * 5000)
    assert (digits.exit_code, "no sample has the key '1" in digits.stderr) == (1, True)
    run("convert", shards, tmp_path / "texts", "--image", "none")
    arrays, texts = (run("inspect", tmp_path / name) for name in ("arrays", "texts"))
    assert arrays.exit_code == texts.exit_code == 0
    assert "images.npy" in arrays.output
    assert "datapipe profile" not in texts.output  # it has no form to choose


def test_a_billion_samples_are_known_from_the_manifest(run, shards, tmp_path):
    """At most four of 10,000 indexes are read, and no shard and no column."""
    manifest = read_manifest(shards)
    whole = manifest.shards[0]
    many = [
        replace(whole, name=f"{number}.tar", index=f"{number}.parquet", samples=100_000)
        for number in range(10_000)
    ]
    (tmp_path / "large").mkdir()
    for number in (0, 3333, 6666, 9999):
        shutil.copy(shards / whole.index, tmp_path / "large" / f"{number}.parquet")
    write_manifest(tmp_path / "large", replace(manifest, shards=tuple(many)))
    before = sorted(path.name for path in (tmp_path / "large").iterdir())
    done = run("inspect", tmp_path / "large")
    assert done.exit_code == 0, done.output
    assert "samples    1,000,000,000\n" in done.output
    assert "mean image 0.00 MPix" in done.output
    assert sorted(path.name for path in (tmp_path / "large").iterdir()) == before


def test_a_dataset_behind_a_url_is_summarised_without_its_columns(shards, tmp_path):
    url = f"memory:/{tmp_path}/shards"
    fsspec.filesystem("memory").put(str(shards), url, recursive=True)
    here, there = datapipe.summarize_dataset(shards), datapipe.summarize_dataset(url)
    assert here == there
    assert here.mean_pixels == 50 * 41.5
    mirrored = read_manifest(shards).fingerprint[:32]
    assert not list(Path(os.environ["XDG_CACHE_HOME"]).rglob(mirrored))


@pytest.fixture
def chats(tmp_path, make_llava):
    """Chats, of which the second has two images, a control character and a score."""
    turns = [{"from": "human", "value": "Red\x1b[31m?"}, {"from": "gpt", "value": "Grün."}]
    records = [{"image": "a.jpg"}, {"image": ["bb.jpg", "a.jpg"], "score": 0.5}, {}]
    talks = [{**record, "conversations": turns} for record in records]
    datapipe.pack_dataset(make_llava(tmp_path, talks, "chats.json"), tmp_path / "shards")
    datapipe.index_fields(tmp_path / "shards", "score")
    return tmp_path / "shards"


@pytest.mark.parametrize("which", [("1",), ("000000001",), ("000000001", "--key")], ids=str)
def test_a_sample_is_shown(run, chats, tmp_path, which):
    done = run("inspect", chats, *which, "-o", tmp_path / "out.jpg")
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    for line in (
        *("sample 000000001", "source chats.json#1", "shard shard-000000.tar", "height 31"),
        *("images 2", "score 0.5", r"user: Red\x1b[31m?", "assistant: Grün."),
        '"score": 0.5,',
    ):
        assert line in lines
    with tarfile.open(chats / "shard-000000.tar") as tar:
        for info in tar:
            if info.name.startswith("000000001"):
                content = tar.extractfile(info).read()  # type: ignore[union-attr]
                sum_of = f"{zlib.crc32(content):08x}"
                assert f"{info.name} {info.offset_data:,} {info.size:,} {sum_of}" in lines
    assert (tmp_path / "out.jpg").read_bytes() == (tmp_path / "bb.jpg").read_bytes()
    assert (tmp_path / "out-1.jpg").read_bytes() == (tmp_path / "a.jpg").read_bytes()


def test_damage_of_a_sample_is_named(run, chats):
    sample = datapipe.inspect_sample(chats, 0)
    image, record = sample.members
    flip(chats / "shard-000000.tar", image.offset + 50)
    told = json.loads(run("inspect", chats, 0, "--json").stdout)
    problem = "its bytes are not those that were packed or indexed"
    assert [member["problem"] for member in told["members"]] == [problem, ""]
    assert (told["text"], told["record"]) == (sample.text, sample.record)
    assert f"{image.name} is damaged: {problem}" in run("inspect", chats, 0).output
    assert record.problem == ""


def test_a_sample_of_arrays_is_shown(run, shards, tmp_path):
    run("convert", shards, tmp_path / "arrays", "--image-size", 16)
    done = run("inspect", tmp_path / "arrays", 2, "-o", tmp_path / "a.png")
    assert done.exit_code == 0, done.output
    pixels = np.load(tmp_path / "arrays" / "images.npy")[2]
    assert (np.asarray(Image.open(tmp_path / "a.png")) == pixels).all()
    (stored,) = datapipe.inspect_sample(tmp_path / "arrays", 2).members
    content = (tmp_path / "arrays" / stored.file).read_bytes()
    assert content[stored.offset : stored.offset + stored.size] == pixels.tobytes()
    assert stored.crc32 == zlib.crc32(pixels)


def test_counted_tokens_are_shown(run, chats, tokenizer):
    text = datapipe.TextSpec(tokenizer=tokenizer, template="chatml", image_tokens=4)
    datapipe.make_loader(chats, batch_size=1, text=text, num_workers=0)
    values = json.loads(run("inspect", chats, 2, "--json").stdout)["columns"]
    counts = {name.partition(" ")[0]: n for name, n in values.items() if "tokens" in name}
    assert counts["text_tokens"] > counts["label_tokens"] > 0
