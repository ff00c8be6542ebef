"""LLaVA and ShareGPT records, out of every container that they come in."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe import PackError, pack_dataset
from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.readers.conversations import LLAVA as READER

from .reading import read_all


def turns(*texts):
    return [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]


def index_of(out):
    return [
        row for path in sorted(out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]


RECORDS = [
    {"id": "one", "image": "a.jpg", "conversations": turns("<image>\nWhat?", "A cat."), "x": 1.5},
    {"id": 2, "image": ["a.jpg", "sub/b.jpg"], "conversations": turns("<image><image>", "Ü")},
    {"id": "text", "conversations": turns("1+1?", "2"), "meta": {"deep": [None, True]}},
    {"id": "none", "image": None, "conversations": turns("hi", "ho")},
    {"id": "unmarked", "image": "a.jpg", "conversations": turns("What?", "A cat.")},
]


@pytest.mark.parametrize("name", ["data.json", "data.jsonl"])
@pytest.mark.parametrize("give", ["folder", "file"])
def test_llava_records_with_one_several_and_no_images(tmp_path, make_llava, packed, name, give):
    path = make_llava(tmp_path / "raw", RECORDS, name)
    image = (tmp_path / "raw/a.jpg").read_bytes()
    samples = packed(path if give == "file" else path.parent)
    assert [sorted(sample) for sample in samples] == [
        ["jpg", "json"], ["1.jpg", "jpg", "json"], ["json"], ["json"], ["jpg", "json"]
    ]  # fmt: skip
    assert [json.loads(sample["json"]) for sample in samples] == RECORDS
    assert samples[0]["jpg"] == samples[1]["jpg"] == image
    assert samples[1]["1.jpg"] == (tmp_path / "raw/sub/b.jpg").read_bytes()
    rows = index_of(tmp_path / "out")
    assert [row["images"] for row in rows] == [1, 2, 0, 0, 1]
    assert [row["source"] for row in rows] == [f"{name}#{number}" for number in range(5)]
    assert rows[0]["text_bytes"] == len("user: <image>\nWhat?\nassistant: A cat.")


def test_images_lie_under_image_root(tmp_path, make_llava, packed):
    path = make_llava(tmp_path / "raw", RECORDS[:2])
    (tmp_path / "raw/a.jpg").rename(tmp_path / "a.jpg")
    (tmp_path / "raw/sub").rename(tmp_path / "sub")
    assert len(packed(path, image_root=tmp_path)) == 2


def test_absolute_paths_need_no_image_root(tmp_path, make_llava, packed, jpeg):
    (tmp_path / "far.jpg").write_bytes(jpeg(3))
    record = {"image": str(tmp_path / "far.jpg"), "conversations": turns("<image>", "x")}
    assert packed(make_llava(tmp_path / "raw", [record]))[0]["jpg"] == jpeg(3)


@pytest.mark.parametrize(
    ("record", "error", "reason"),
    [
        ({"image": "a.jpg", "conversations": turns("<image><image>", "x")}, "DecodeError",
         "2 <image> places for 1 images"),
        ({"conversations": turns("<image>", "x")}, "DecodeError",
         "1 <image> places for 0 images"),
        ({"image": "a.jpg"}, "MissingMember", "record has no `conversations`"),
        ({"conversations": []}, "MissingMember", "record has no `conversations`"),
        ({"conversations": [{"from": "human"}]}, "DecodeError", "neither text nor a list of parts"),
        ({"image": 5, "conversations": turns("a", "b")}, "DecodeError", "image is of type int"),
        ({"image": "a.jpg", "images": ["a.jpg"], "conversations": turns("a", "b")}, "DecodeError",
         "both in `images` and in `image`"),
        ({"image": "https://a.b/c.jpg", "conversations": turns("a", "b")}, "MissingMember",
         "does not fetch"),
        ({"image": "", "conversations": turns("\ud800", "b")}, "DecodeError", "written as UTF-8"),
        (["a list"], "DecodeError", "record is a list, not an object"),
    ],
)  # fmt: skip
def test_a_record_that_makes_no_sense_is_rejected(
    tmp_path, make_llava, packed, rejects, record, error, reason
):
    assert len(packed(make_llava(tmp_path / "raw", [RECORDS[0], record]))) == 1
    (line,) = rejects(tmp_path / "out")
    assert (line["source"], line["error"]) == ("data.json#1", error)
    assert reason in line["reason"]


def test_a_missing_image_root_is_refused(tmp_path, make_llava):
    with pytest.raises(PackError, match=r"--image-root .*nowhere: no such folder"):
        pack_dataset(
            make_llava(tmp_path / "raw", RECORDS), tmp_path / "o", image_root=tmp_path / "nowhere"
        )


def test_several_annotation_files_are_refused_by_name(tmp_path, make_llava):
    for name in ("train.json", "val.jsonl"):
        make_llava(tmp_path / "raw", RECORDS, name)
    options = ReadOptions(include="*.json*")
    assert sum(1 for _ in read_all(READER, tmp_path / "raw", options)) == 2 * len(RECORDS)
    with pytest.raises(
        PackError, match=r"files:\n *--include 'train.json' +5 rec[^\n]*\n *--include 'val.jsonl' "
    ):
        pack_dataset(tmp_path / "raw", tmp_path / "out")


def test_parquet_of_llava_onevision(tmp_path, packed, jpeg):
    rows = [
        {
            "id": f"{number}.jpg",
            "image": {"bytes": jpeg(number), "path": None} if number else None,
            "conversations": turns("<image>\nWhat?" if number else "1+1?", "x"),
            "data_source": "ai2d",
        }
        for number in range(3)
    ]
    (tmp_path / "raw" / "ai2d").mkdir(parents=True)
    for number in range(2):
        name = f"train-{number:05d}-of-00002.parquet"
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "raw" / "ai2d" / name)
    text, first, second = packed(tmp_path / "raw")[:3]
    assert text.keys() == {"json"}
    assert [first["jpg"], second["jpg"]] == [jpeg(1), jpeg(2)]
    assert json.loads(text["json"]) == rows[0]
    assert json.loads(first["json"]) == rows[1] | {"image": "image:0"}
    assert index_of(tmp_path / "out")[3]["source"] == "ai2d/train-00001-of-00002.parquet#0"


def test_sharegpt_with_images_system_and_tools(tmp_path, make_llava, packed, jpeg):
    make_llava(tmp_path / "raw", [{"image": "a.jpg"}])
    record = {
        "images": ["a.jpg", "a.jpg"],
        "conversations": turns("<image>and<image>", "x"),
        "system": "You see.",
        "tools": "[]",
    }
    (sample,) = packed(make_llava(tmp_path / "raw", [record]))
    assert sample.keys() == {"jpg", "1.jpg", "json"}
    assert json.loads(sample["json"]) == record


def test_a_key_is_taken_from_a_field(tmp_path, make_llava):
    path = make_llava(tmp_path / "raw", [*RECORDS[:2], {"conversations": turns("a", "b")}])
    samples = list(read_all(READER, path, ReadOptions(key_from="id")))
    assert [sample.key for sample in samples[:2]] == ["one", "2"]
    assert isinstance(samples[0], RawSample)
    assert samples[2] == Reject(
        "data.json#2", "`id`, which the key is taken from, is missing", "MissingMember"
    )
