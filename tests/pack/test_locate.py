"""Files of a folder that are one dataset, and the folders their image paths start from."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.streams.record_files import find_records, is_unreadable

from .cases import cases
from .record_files import fits, open_, write

ROWS = [{"a": "1", "b": "größe"}, {"a": "2", "b": 'two\n"lines"'}, {"a": "3", "b": ""}]


@pytest.mark.parametrize("names", [line for (line,) in cases("files that are one dataset")])
def test_files_that_are_numbered_alike_are_one_dataset(tmp_path, names):
    names = names.split()
    for name in names:
        write(tmp_path / name, ROWS)
    (tmp_path / "train").mkdir()  # a folder beside a file of its name does not hide it
    records = open_(tmp_path)
    assert [source for source, _ in records] == [f"{n}#{i}" for n in names for i in range(3)]
    assert records.estimate() == 3 * len(names)


@pytest.mark.parametrize(
    ("names", "listed"),
    [(names, listed) for names, *listed in cases("datasets that are listed by patterns")],
)
def test_splits_and_configurations_are_listed_with_the_remedy(tmp_path, names, listed):
    for name in names.split():
        write(tmp_path / name, ROWS)
    assert find_records(Survey(tmp_path), ReadOptions(), fits)
    pattern = r"[\s\S]*".join(["holds several datasets", *listed, "--include '"])
    with pytest.raises(PackError, match=pattern) as caught:
        open_(tmp_path)
    assert 3 <= len(list(open_(tmp_path, include=remedy(caught)))) < 3 * len(names.split())


def remedy(caught):
    """The pattern that a refusal gives in the end."""
    return str(caught.value).rpartition("--include ")[2].strip("'")


def test_annotation_files_are_listed_with_counts_and_the_pattern_to_copy(tmp_path):
    for name, number in (("a.json", 1), ("b.jsonl", 3), ("c [1].csv", 2)):
        write(tmp_path / name, ROWS[:number])
    with pytest.raises(PackError, match="holds several annotation files:") as caught:
        open_(tmp_path)
    assert [line.split(None, 1)[1] for line in str(caught.value).split("\n")[1:4]] == [
        "'a.json'       1 record in 1 file",
        "'b.jsonl'      3 records in 1 file",
        "'c [[]1].csv'  2 records in 1 file",
    ]
    assert len(list(open_(tmp_path, include="c [[]1].csv"))) == 2


def test_all_that_match_include_are_taken(tmp_path):
    for name in ("a.jsonl", "b.jsonl", "c.csv", "deep/d.jsonl"):
        write(tmp_path / name, ROWS)
    sources = [source for source, _ in open_(tmp_path, include="*.jsonl")]
    assert sources == [f"{n}#{i}" for n in ("a.jsonl", "b.jsonl", "deep/d.jsonl") for i in range(3)]
    with pytest.raises(PackError, match=r"that matches --include 'x\*'"):
        open_(tmp_path, include="x*")


def test_include_does_not_take_other_records_silently(tmp_path):
    write(tmp_path / "a.jsonl", ROWS)
    write(tmp_path / "b.jsonl", [{"other": 1}])
    with pytest.raises(PackError, match=r"also takes .*b.jsonl: records with 'other'.*narrow"):
        open_(tmp_path, include="*.jsonl")


def test_shards_that_are_missing_are_noticed(tmp_path):
    for number in (0, 2):
        write(tmp_path / "data" / f"train-{number:05d}-of-00003.parquet", ROWS)
    with pytest.raises(PackError, match="only 2 of 3 files are here; fetch the others") as caught:
        open_(tmp_path)
    assert open_(tmp_path, include=remedy(caught)).estimate() == 6


@pytest.mark.parametrize(
    ("second", "differing"),
    [({"a": ["1"], "c": ["1"]}, "b, c"), ({"a": [1], "b": ["1"]}, r"a \(string, int64\)")],
)
def test_files_of_other_columns_are_refused(tmp_path, second, differing):
    write(tmp_path / "0.parquet", ROWS)
    pq.write_table(pa.table(second), tmp_path / "1.parquet")
    with pytest.raises(PackError, match=rf"0.parquet and 1.parquet differ in columns: {differing}"):
        open_(tmp_path)


def test_columns_may_be_ordered_differently_null_or_of_another_string_type(tmp_path):
    large, encoded = pa.array(["x"], pa.large_string()), pa.array(["5"]).dictionary_encode()
    write(tmp_path / "0.parquet", ROWS)
    pq.write_table(pa.table({"b": [None], "a": ["4"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": large, "a": encoded}), tmp_path / "2.parquet")
    assert [record["a"] for _, record in open_(tmp_path)] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(("name", "beside"), cases("files that describe others beside them"))
def test_what_describes_other_data_is_no_candidate(tmp_path, name, beside):
    write(tmp_path / name, ROWS)
    (tmp_path / beside).parent.mkdir(exist_ok=True)
    (tmp_path / beside).touch()
    assert not find_records(Survey(tmp_path), ReadOptions(), fits)
    assert not is_unreadable(Survey(tmp_path), ReadOptions())


def test_the_nearest_files_are_taken_and_one_object_beside_them_is_passed_over(tmp_path):
    for name in ("a.jsonl", "deep/b.jsonl", ".cache/c.jsonl"):
        write(tmp_path / name, ROWS)
    (tmp_path / "info.json").write_text('{"a": 1,\n"b": 2}')
    (tmp_path / "coco.json").write_text('{"a": 1, "images": [], "annotations": []}')
    assert [path.name for path in open_(tmp_path).files] == ["a.jsonl"]
    with pytest.raises(PackError, match="one JSON object"):
        open_(tmp_path / "info.json")


def test_what_was_found_is_said_where_nothing_fits(tmp_path):
    write(tmp_path / "b.jsonl", [{"other": 1, "more": 2}])
    with pytest.raises(PackError, match=r"`a` \(found: b.jsonl: records with 'other', 'more'\)"):
        open_(tmp_path)
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "c.mp4").touch()
    with pytest.raises(PackError, match=r"found: 1 .mp4"):
        open_(tmp_path)


def test_records_of_a_json_file_that_was_named_are_judged_one_by_one(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"other": 1}, *ROWS])
    assert not find_records(Survey(path), ReadOptions(), fits)
    assert len(list(open_(path))) == 4
    with pytest.raises(PackError, match="records with 'other'"):
        open_(write(tmp_path / "a.csv", [{"other": 1}]))
