"""Labels as texts: columns of classes."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe import pack_dataset

NAMES = ["cat", "dog"]


@pytest.fixture
def packed(raw, tmp_path, members):
    def pack(out="out", **options):
        report = pack_dataset(raw, tmp_path / out, workers=1, **options)
        return report, list(members(tmp_path / out).values())

    return pack


@pytest.fixture
def table(raw, jpeg):
    """Write a table of images and labels; `feature` names classes as `datasets` does."""

    def write(labels, feature=None, name="label", metadata=None):
        rows = [{"image": {"bytes": jpeg(0), "path": None}, name: label} for label in labels]
        data = pa.Table.from_pylist(rows)
        if feature is not None:
            features = {"image": {"_type": "Image"}, name: feature}
            metadata = json.dumps({"info": {"features": features}})
        if metadata is not None:
            data = data.replace_schema_metadata({"huggingface": metadata})
        pq.write_table(data, raw / "data.parquet")

    return write


def texts(samples):
    return [sample["txt"].decode() if "txt" in sample else None for sample in samples]


@pytest.mark.parametrize(("labels", "expected"), [([0, 1], ["0", "1"]), (NAMES, NAMES)])
@pytest.mark.parametrize("name", ["label", "labels", "fine_class"])
def test_a_table_without_text_names_the_map_that_takes_its_labels(
    table, packed, labels, expected, name
):
    table(labels, name=name)
    report, samples = packed()
    assert texts(samples) == [None, None]
    assert f"no column is taken as text; --map 'caption={name}' takes labels" in report.notes
    (warning,) = report.teaching.warnings()
    assert "`image`" not in warning
    report, samples = packed("mapped", map=f"caption={name}")
    assert texts(samples) == expected
    assert report.images == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"map": "caption=label"}, "{}"),
        ({"text_column": "label"}, "{}"),
        ({"map": "caption=A photo of a {label}."}, "A photo of a {}."),
    ],
)
def test_numbers_of_classes_are_written_as_their_names(
    table, packed, rejects, tmp_path, options, said
):
    table([0, 1, -1, 7], {"names": NAMES, "_type": "ClassLabel"})
    report, samples = packed(**options, max_rejects=1)
    assert texts(samples) == [*map(said.format, NAMES), None]
    assert "`label` is written as the names of its classes (cat, dog)" in report.notes
    (line,) = rejects(tmp_path / "out")
    assert line["reason"] == "`label` is 7, and only 2 classes have names"


def test_a_class_may_be_an_answer_and_its_record_keeps_the_number(table, packed):
    table([1], {"names": NAMES, "_type": "ClassLabel"})
    report, (sample,) = packed(map="user='What is it?',assistant=label")
    assert report.shown[0].turns[1] == ("assistant", "dog", True)
    assert json.loads(sample["json"])["label"] == 1


def test_a_list_of_classes_is_a_list_of_names(table, packed):
    table([[0, 1]], {"feature": {"names": NAMES, "_type": "ClassLabel"}, "_type": "List"})
    _, samples = packed(map="caption=label", captions="join")
    assert texts(samples) == ["cat\ndog"]


@pytest.mark.parametrize("metadata", [b"{", b'{"info": 1}', b'{"info": {"features": [1]}}'])
def test_metadata_that_is_broken_is_none(table, packed, metadata):
    table([0], metadata=metadata)
    assert texts(packed(map="caption=label")[1]) == ["0"]
