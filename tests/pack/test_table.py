"""Tables as their usual writers leave them: an image and a text a row, and what else there is."""

import json

import pytest

from datapipe import pack_dataset

from .cases import record_cases
from .reading import choose_reader, estimate
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


# --- as pandas writes them ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "write", "options"),
    [
        ("data.parquet", "to_parquet", {}),
        ("data.csv", "to_csv", {"index": False}),
        ("indexed.csv", "to_csv", {}),
        ("data.tsv", "to_csv", {"index": False, "sep": "\t"}),
        ("data.json", "to_json", {"orient": "records"}),
        ("data.jsonl", "to_json", {"orient": "records", "lines": True}),
    ],
)
def test_tables_of_pandas(raw, packed, jpeg, name, write, options):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "image_path": ["0.jpg", "1.jpg", "2.jpg"],
            "caption": ["größe", 'say "a",\nor b', None],
            "score": [0.5, 1.0, None],
        }
    )
    getattr(frame, write)(raw / name, **options)
    samples = packed(raw)
    assert [sample["jpg"] for sample in samples] == [jpeg(i) for i in range(3)]
    assert [sample.get("txt") for sample in samples] == [
        "größe".encode(), b'say "a",\nor b', None
    ]  # fmt: skip
    records = [json.loads(sample["json"]) for sample in samples]
    scores = ["0.5", "1.0", ""] if write == "to_csv" else [0.5, 1.0, None]
    assert [record["score"] for record in records] == scores
    assert ("" in records[0]) == (name == "indexed.csv")


# --- columns ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "found"), record_cases("columns by their usual names"))
def test_columns_are_known_by_their_usual_names(raw, packed, jpeg, row, found):
    images, caption, is_kept = json.loads(found)
    (sample,) = packed(write(raw / "data.jsonl", [row]), captions="first")
    assert [data for ext, data in sample.items() if ext.endswith("jpg")] == [
        jpeg(number) for number in range(images)
    ]
    assert sample.get("txt", b"").decode() == (caption or "")
    assert json.loads(sample.get("json", "null")) == (row if is_kept else None)


def test_a_file_of_texts_is_a_table_if_it_is_named(raw):
    path = write(raw / "data.jsonl", [{"text": "a"}, {"text": None}])
    reader = choose_reader(path)
    assert (reader.name, estimate(reader, path)) == ("table", 2)
