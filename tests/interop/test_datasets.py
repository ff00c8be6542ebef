"""Hugging Face datasets opens our shards as they are, from disk and as a stream."""

import json

import pytest

datasets = pytest.importorskip("datasets")
wds = pytest.importorskip("datasets.packaged_modules.webdataset.webdataset")


@pytest.fixture(params=[False, True], ids=["from disk", "streaming"])
def load(request, tmp_path):
    """A function that opens a folder of shards and gives its rows."""

    def rows(folder, **options):
        return list(
            datasets.load_dataset(
                "webdataset",
                data_files={"train": [str(path) for path in sorted(folder.glob("*.tar"))]},
                split="train",
                streaming=request.param,
                cache_dir=str(tmp_path / "cache"),
                **options,
            )
        )

    return rows


def test_images_and_captions_need_nothing_said(load, packed_captions, members):
    rows = load(packed_captions)
    expected = members(packed_captions)
    assert [row["__key__"] for row in rows] == list(expected)
    for row, sample in zip(rows, expected.values(), strict=True):
        assert row["txt"].encode() == sample["txt"]
        assert row["jpg"].size[0] > 0  # a decoded picture


def test_every_member_is_read_where_the_columns_are_named(
    load, packed_mixture, members, monkeypatch
):
    monkeypatch.setattr(wds.WebDataset, "DECODERS", {})  # JSON would come as a parsed record
    extensions = ["jpg", "1.jpg", "json"]
    features = {name: datasets.Value("string") for name in ("__key__", "__url__")}
    features |= {"json": datasets.Value("binary")}
    features |= {ext: datasets.Image(decode=False) for ext in ("jpg", "1.jpg")}
    found = {}
    for row in load(packed_mixture, features=datasets.Features(features)):
        contents = ((ext, row[ext]) for ext in extensions if row[ext] is not None)
        found[row["__key__"]] = {
            ext: content["bytes"] if isinstance(content, dict) else content
            for ext, content in contents
        }
    expected = members(packed_mixture)
    assert found == expected
    assert json.loads(found["000000001"]["json"])["conversations"]
