"""Tables as their usual writers leave them: an image and a text a row, and what else there is."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe import PackError, pack_dataset
from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.readers.table import READER

from .reading import choose_reader, estimate, read_all, recognises
from .record_files import write


@pytest.fixture
def packed(tmp_path, members):
    """Packs what is recognised as a table; gives the members of its samples in order."""

    def pack(raw, **options):
        assert choose_reader(raw).name == "table"
        pack_dataset(raw, tmp_path / "out", max_rejects=1000, **options)
        return list(members(tmp_path / "out").values())

    return pack


@pytest.fixture
def raw(tmp_path, put):
    """A folder with images 0.jpg, 1.jpg and 2.jpg."""
    return put(tmp_path / "raw", {f"{number}.jpg": number for number in range(3)})


def read(raw, **options):
    return list(read_all(READER, raw, ReadOptions(**options)))


# --- as datasets and pandas write them ---------------------------------------------------------


@pytest.mark.parametrize("how", ["jsonl", "csv"])
def test_what_datasets_reads_as_an_imagefolder_is_read_the_same(raw, packed, how):
    datasets = pytest.importorskip("datasets")
    rows = [{"file_name": f"{i}.jpg", "text": f'a "photograph",\nnumber {i}'} for i in (2, 0, 1)]
    if how == "jsonl":
        write(raw / "metadata.jsonl", rows)
    else:
        pytest.importorskip("pandas").DataFrame(rows).to_csv(raw / "metadata.csv", index=False)
    samples = packed(raw)
    assert [sample.keys() for sample in samples] == [{"jpg", "txt"}] * 3
    theirs = datasets.load_dataset(
        "imagefolder", data_dir=str(raw), split="train", cache_dir=str(raw.parent / "cache")
    ).cast_column("image", datasets.Image(decode=False))
    assert {(row["text"], (raw / f"{row['text'][-1]}.jpg").read_bytes()) for row in theirs} == {
        (sample["txt"].decode(), sample["jpg"]) for sample in samples
    }


def test_a_file_may_have_a_comma_in_its_name(raw, packed, jpeg):
    (raw / "a.jpg,b.jpg").write_bytes(jpeg(3))
    (raw / "train.csv").write_text('image,caption\n"a.jpg,b.jpg",A cat\n0.jpg,A dog\n')
    assert [m["jpg"] for m in packed(raw)] == [jpeg(3), jpeg(0)]


@pytest.mark.parametrize("how", ["parquet", "csv", "csv with index", "tsv", "json", "jsonl"])
def test_tables_of_pandas(raw, packed, jpeg, how):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "image_path": ["0.jpg", "1.jpg", "2.jpg"],
            "caption": ["größe", 'say "a",\nor b', None],
            "score": [0.5, 1.0, None],
        }
    )
    match how:
        case "parquet":
            frame.to_parquet(raw / "data.parquet")
        case "csv" | "csv with index":
            frame.to_csv(raw / "data.csv", index=how == "csv with index")
        case "tsv":
            frame.to_csv(raw / "data.tsv", index=False, sep="\t")
        case "json":
            frame.to_json(raw / "data.json", orient="records")
        case "jsonl":
            frame.to_json(raw / "data.jsonl", orient="records", lines=True)
    samples = packed(raw)
    assert [sample["jpg"] for sample in samples] == [jpeg(i) for i in range(3)]
    assert [sample.get("txt") for sample in samples] == [
        "größe".encode(), b'say "a",\nor b', None
    ]  # fmt: skip
    records = [json.loads(sample["json"]) for sample in samples]
    text = how.startswith(("csv", "tsv"))
    assert [record["score"] for record in records] == (
        ["0.5", "1.0", ""] if text else [0.5, 1.0, None]
    )
    assert ("" in records[0]) == (how == "csv with index")


# --- columns ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "image", "caption", "record"),
    [
        ({"image": "0.jpg", "text": "a"}, 1, "a", False),
        ({"img": "0.jpg"}, 1, None, False),
        ({"images": ["0.jpg", "1.jpg"], "text": "a"}, 2, "a", False),
        ({"images": [], "text": "a"}, 0, "a", False),
        ({"Image_Path": "0.jpg", "TEXT": "a"}, 1, "a", False),
        ({"path": "0.jpg", "prompt": "a", "seed": 1}, 1, "a", True),
        ({"file_name": "0.jpg", "captions": ["a", "b"]}, 1, "a", True),
        ({"file_name": "0.jpg", "captions": []}, 1, None, True),
        ({"file_name": "0.jpg", "description": None}, 1, None, True),
        ({"file_name": "0.jpg", "description": ""}, 1, None, True),
        ({"file_name": "0.jpg", "description": {"en": "a"}}, 1, None, True),
        ({"image": "0.jpg", "filename": 5, "text": "a"}, 1, "a", True),
        ({"text": "a"}, 0, "a", False),
    ],
)
def test_columns_are_known_by_their_usual_names(raw, row, image, caption, record):
    (sample,) = read(write(raw / "data.jsonl", [row]), captions="first")
    assert (len(sample.images), sample.caption) == (image, caption)
    assert sample.record == (row if record else None)


@pytest.mark.parametrize("column", ["image", "picture"])
def test_a_column_that_holds_images_goes_before_one_that_names_files(tmp_path, jpeg, column):
    rows = [{"filename": "x.jpg", column: {"bytes": jpeg(0), "path": "a.jpg"}, "text": "a"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    (sample,) = read(tmp_path)
    assert sample.images[0].blob.read() == jpeg(0)
    assert sample.record == {"filename": "x.jpg", column: "a.jpg", "text": "a"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"image": "0.jpg", "path": "1.jpg"}],
         "images may be in any of the columns 'image', 'path'; name one with --image-column"),
        ([{"image": "0.jpg", "caption": "a", "text": "b", "x": 1}],
         r"the text may be in any of the columns 'caption', 'text'; .*--text-column.*"
         r"\(all columns: 'image', 'caption', 'text', 'x'\)"),
        ([{"shown": 7, "label": 1}],
         r"a column of images or of text .*--image-column.*records with 'shown', 'label'"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_told_apart_are_asked_about(raw, rows, message):
    write(raw / "data.jsonl", rows)
    with pytest.raises(PackError, match=message):
        read(raw)


def test_columns_can_be_named(raw, jpeg):
    rows = [{"photo": "0.jpg", "image": "1.jpg", "alt": "a", "text": "b"}]
    write(raw / "data.jsonl", rows)
    options = ReadOptions(image_column="photo", text_column="alt")
    assert recognises(READER, raw, options)
    (sample,) = read_all(READER, raw, options)
    assert sample.images[0].blob.read() == jpeg(0)
    assert (sample.caption, sample.record) == ("a", rows[0])


@pytest.mark.parametrize("option", ["image_column", "text_column"])
def test_a_named_column_that_is_not_there_is_refused_with_those_that_are(raw, option):
    write(raw / "data.jsonl", [{"image": "0.jpg", "text": "a"}])
    with pytest.raises(PackError, match=r"'photo'[\s\S]*'image', 'text'"):
        read(raw, **{"image_column": "image", "text_column": "text"} | {option: "photo"})


def test_a_column_may_be_missing_from_the_first_record(raw):
    write(raw / "data.jsonl", [{"image": "0.jpg"}, {"image": "1.jpg", "alt": "a"}])
    assert [sample.caption for sample in read(raw, text_column="alt")] == [None, "a"]


@pytest.mark.parametrize(
    ("value", "caption"), [(5, "5"), (0.5, "0.5"), (True, None), ({}, None), ([1], "1")]
)
def test_numbers_are_texts_and_other_values_are_not(raw, value, caption):
    (sample,) = read(write(raw / "d.jsonl", [{"image": "0.jpg", "t": value}]), text_column="t")
    if caption is None:
        assert isinstance(sample, Reject)
        assert "column `t` holds a " in sample.reason
    else:
        assert sample.caption == caption


def test_other_columns_of_bytes_become_members(tmp_path, jpeg, encode, packed):
    rows = [
        {
            "image": {"bytes": jpeg(0), "path": None},
            "Mask 1": {"bytes": encode(kind="PNG"), "path": "m.png"},
            "emb": b"123",
        }
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    (sample,) = read(tmp_path)
    assert [(name, inline.data) for name, inline in sample.others] == [
        ("Mask 1.bin", encode(kind="PNG")), ("emb.bin", b"123")
    ]  # fmt: skip
    assert sample.record == {"image": "image:0", "Mask 1": "m.png", "emb": None}


def test_a_key_is_taken_from_a_column(raw):
    write(raw / "data.jsonl", [{"image": "0.jpg", "id": 7}, {"image": "1.jpg"}])
    first, second = read(raw, key_from="id")
    assert (first.key, second.error) == ("7", "MissingMember")


# --- what a table is --------------------------------------------------------------------------


def test_a_file_of_texts_is_a_table_if_it_is_named(raw):
    write(raw / "data.jsonl", [{"text": "a"}, {"text": None}])
    assert choose_reader(raw / "data.jsonl").name == "table"
    first, second = read(raw)
    assert first == RawSample("data.jsonl#0", caption="a")
    assert second.caption is None


def test_rows_are_estimated(raw):
    write(raw / "data.jsonl", [{"image": "0.jpg"}] * 9)
    assert estimate(READER, raw, ReadOptions()) == 9


def test_a_table_whose_images_are_urls_is_refused_unless_text_alone_is_meant(tmp_path):
    path = tmp_path / "cc3m.csv"
    path.write_text("caption,url\nA dog,https://a.b/1\n")
    with pytest.raises(PackError, match=r"img2dataset.*--image-column ''"):
        list(read_all(READER, path, ReadOptions()))
    for options in (ReadOptions(text_column="caption"), ReadOptions(image_column="")):
        (sample,) = read_all(READER, path, options)
        assert (sample.caption, sample.images) == ("A dog", ())


def test_images_that_are_missing_are_told_from_those_that_are_broken(raw, packed, rejects):
    missing = [None, "", "https://a.b/c.jpg", "none.jpg"]
    broken = ["data:image/jpeg;base64,%", 5, "/dev/zero"]
    values = ["0.jpg", "1.jpg", "2.jpg", "0.jpg", *missing, *broken]
    write(raw / "data.jsonl", [{"image": value, "text": "a"} for value in values])
    assert len(packed(raw)) == 4
    errors = [line["error"] for line in rejects(raw.parent / "out")]
    assert errors == ["MissingMember"] * 4 + ["DecodeError"] * 3
