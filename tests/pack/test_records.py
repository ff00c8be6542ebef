"""Records come out of every container with their places; what is broken is named."""

import datetime
import decimal
import gzip
import json
import os
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import InlineBlob, ReadOptions, Reject
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.streams import containers, parquet_records
from datapipe.pack.records.streams.record_files import find_records, is_unreadable, plain

from .record_files import fits, open_, write

ROWS = [{"a": "1", "b": "größe"}, {"a": "2", "b": 'two\n"lines"'}, {"a": "3", "b": ""}]

NAMES = ["x.json", "x.jsonl", "X.NDJSON", "x.csv", "x.tsv", "x.parquet", "x.jsonl.gz"]


@pytest.mark.parametrize("give", ["folder", "file"])
@pytest.mark.parametrize("name", NAMES)
def test_every_container_gives_the_same_records(tmp_path, name, give):
    path = write(tmp_path / "raw" / name, ROWS)
    records = open_(path if give == "file" else path.parent)
    assert list(records) == [(f"{name}#{number}", row) for number, row in enumerate(ROWS)]
    assert containers.first_record(records.files[0]) == ROWS[0]
    assert records.estimate() == 3
    assert records.images.folders == (path.parent,)
    assert find_records(Survey(tmp_path / "raw"), ReadOptions(), fits) == open_(path.parent).files


@pytest.mark.parametrize("name", ["x.json", "x.jsonl", "x.csv", "x.tsv", "x.parquet"])
def test_the_number_of_many_records_is_told_from_the_first(tmp_path, name):
    rng = np.random.default_rng(0)
    rows = [{"a": str(number), "b": rng.bytes(700).hex()} for number in range(4000)]
    assert open_(write(tmp_path / name, rows)).estimate() == pytest.approx(4000, rel=0.25)


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
def test_a_file_without_records_is_empty(tmp_path, name):
    (tmp_path / name).touch()
    assert not find_records(Survey(tmp_path), ReadOptions(), fits)
    with pytest.raises(PackError):
        open_(tmp_path)


# --- text -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.json", "x.jsonl", "x.csv", "x.tsv"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_another_encoding_is_refused_with_the_remedy(tmp_path, name, encoding):
    mark = "\ufeff" if encoding.endswith("be") else ""
    (tmp_path / name).write_text(mark + '{"a": 1}', encoding)
    assert not find_records(Survey(tmp_path / name), ReadOptions(), fits)
    assert is_unreadable(Survey(tmp_path / name), ReadOptions())
    with pytest.raises(PackError, match=r"x\..* is not UTF-8 but UTF-16 or UTF-32.*iconv"):
        open_(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    # Without the time, which would make the name of the test another in each process.
    [b"\x1f\x8b\x08", gzip.compress(b'{"a": 1}\n' * 99, mtime=0)[:-9]],
    ids=["header", "cut"],
)
def test_a_damaged_gzip_file_is_refused(tmp_path, content):
    (tmp_path / "x.jsonl.gz").write_bytes(content)
    with pytest.raises(PackError, match=r"x.jsonl.gz is damaged .*again"):
        list(open_(tmp_path / "x.jsonl.gz"))


@pytest.mark.parametrize("mark", [";", "\t", "|", ","])
@pytest.mark.parametrize("start", ["sep={}", "\ufeffsep={}", '"sep={}"', "SEP={}"])
def test_a_first_line_of_excel_says_what_parts_the_fields(tmp_path, mark, start):
    lines = [start.format(mark), f"a{mark}b", f'0{mark}"1\r\n2"', "0", f"1{mark}2"]
    (tmp_path / "x.csv").write_bytes("\r\n".join(lines).encode())
    (_, first), (source, broken), (_, last) = open_(tmp_path)
    assert (list(first.values()), list(last.values())) == (["0", "1\r\n2"], ["1", "2"])
    assert (source, isinstance(broken, Reject)) == ("x.csv:5", True)


def test_a_quote_that_is_not_closed_is_told_with_its_lines(tmp_path):
    (tmp_path / "x.csv").write_text('a,b\n0,0\n1,"open\n2,2\n3,3\n')
    _, (source, broken) = open_(tmp_path)
    assert source == "x.csv:3"
    assert broken.reason.endswith("(lines 3 to 5)")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("a,b,a", "the header has 'a' more than once"),
        ("a,,b", "column 2 of the header has no name"),
        ('a,"b"c', "header is not valid"),
    ],
)
def test_a_header_that_does_not_tell_columns_apart_is_refused(tmp_path, header, reason):
    (tmp_path / "x.csv").write_text(f"{header}\n1,2,3\n")
    with pytest.raises(PackError, match=reason):
        open_(tmp_path / "x.csv")


# --- Parquet ----------------------------------------------------------------------------------


def test_columns_of_all_types_are_read_by_name(tmp_path):
    moment = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "image": [{"bytes": b"1", "path": "1.jpg"}, None],
            "many": [[{"bytes": b"2", "path": None}], []],
            "when": pa.array([1, None], pa.timestamp("ns")),
            "clock": pa.array([1, None], pa.time64("ns")),
            "took": pa.array([1, None], pa.duration("ns")),
            "zone": pa.array([moment, None], pa.timestamp("ms", "UTC")),
            "day": [datetime.date(2024, 1, 1), None],
            "price": [decimal.Decimal("1.50"), None],
            "kind": pa.array(["cat", None]).dictionary_encode(),
            "map": pa.array([[("x", 1)], None], pa.map_(pa.string(), pa.int64())),
            "half": pa.array([np.float16(0.5), None]),
            "a": [1, 2],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    records = open_(tmp_path)
    first, second = (plain(record) for _, record in records)
    assert first[0] == {
        "image": "1.jpg", "many": [None], "when": "1970-01-01 00:00:00.000000001",
        "clock": "00:00:00.000000001", "took": 1,
        "zone": "2024-05-06T07:08:09+00:00", "day": "2024-01-01", "price": "1.50", "kind": "cat",
        "map": [["x", 1]], "half": 0.5, "a": 1,
    }  # fmt: skip
    assert first[1] == (
        ("image.bin", InlineBlob(b"1", "image")),
        ("many.bin", InlineBlob(b"2", "many")),
    )
    assert second[0] == dict.fromkeys(table.column_names) | {"many": [], "a": 2}
    json.dumps([first[0], second[0]], allow_nan=False)


def test_a_null_does_not_hide_what_its_column_holds(tmp_path):
    table = pa.table({"a": [{"bytes": b"1", "path": ""}] * 2, "b": [b"", b""], "c": ["x", "y"]})
    table = table.take(pa.array([None, 0]))
    pq.write_table(table, tmp_path / "x.parquet")
    assert containers.first_record(open_(tmp_path).files[0]) == {
        "a": {"bytes": None, "path": None},
        "b": b"",
        "c": None,
    }


def test_a_value_that_python_does_not_have_costs_only_its_row(tmp_path):
    text = pa.Array.from_buffers(
        pa.string(), 3, pa.array([b"x", b"\xff", b"y"], pa.binary()).buffers()
    )
    dates = pa.array([0, 0, 10_000_000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"a": text, "day": dates}), tmp_path / "x.parquet")
    (_, first), (source, second), (_, third) = open_(tmp_path)
    assert first == {"a": "x", "day": datetime.date(1970, 1, 1)}
    assert (source, second.error) == ("x.parquet#1", "DecodeError")
    assert "cannot be read" in third.reason


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-10], "is damaged or no Parquet file"),
        (lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1", "is damaged or no Parquet file"),
        (lambda data: b"", "is damaged or no Parquet file"),
        (lambda data: b"<html>404</html>", "is damaged or no Parquet file"),
        (
            lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
            "Git LFS pointer.*git lfs pull",
        ),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_file_is_refused_by_name(tmp_path, damage, reason, place):
    for number in range(3):
        path = write(tmp_path / f"train-{number:05d}-of-00003.parquet", ROWS)
        if number == place:
            path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PackError, match=f"train-0000{place}-of-00003.parquet.*{reason}"):
        open_(tmp_path)
    assert not is_unreadable(Survey(tmp_path), ReadOptions())
    assert is_unreadable(Survey(tmp_path / f"train-{place:05d}-of-00003.parquet"), ReadOptions())


def test_damage_behind_the_first_rows_is_refused_when_it_is_met(tmp_path):
    rows = [{"a": os.urandom(2000).hex()} for _ in range(200)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=50)
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    half = len(data) // 2
    data[half : half + 60_000] = bytes(60_000)
    (tmp_path / "x.parquet").write_bytes(data)
    with pytest.raises(PackError, match=r"x\.parquet is damaged"):
        list(open_(tmp_path))


# --- records ----------------------------------------------------------------------------------


def test_a_plain_record_loses_nothing():
    record = {
        "image": {"bytes": b"i", "path": "i.jpg"},
        "mask": {"bytes": b"m", "path": None},
        "deep": {"raw": [b"1", b"2"], "n": np.int64(3), "array": np.eye(2), "pair": (1, 2)},
        "id": uuid.UUID(int=1),
        "took": datetime.timedelta(seconds=3),
    }
    sizes = {"a": {"bytes": -1}, "b": {"bytes": 3}, "c": {"bytes": "3"}, "d": {"bytes": [1]}}
    kept, others = plain(record | sizes)
    assert kept == sizes | {
        "image": "i.jpg", "mask": None,
        "deep": {"raw": [None, None], "n": 3, "array": [[1, 0], [0, 1]], "pair": [1, 2]},
        "id": "00000000-0000-0000-0000-000000000001", "took": "0:00:03",
    }  # fmt: skip
    assert [(name, inline.data) for name, inline in others] == [
        ("image.bin", b"i"), ("mask.bin", b"m"), ("deep.bin", b"1"), ("deep.bin", b"2")
    ]  # fmt: skip


# --- conversations without a record around them -------------------------------------------------

TURNS = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
SHARED = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
CALL = [TURNS[0], {"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}]


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.jsonl.gz"])
def test_a_list_of_turns_is_a_record_of_them(tmp_path, name):
    path = write(tmp_path / name, [TURNS, SHARED, CALL])
    expected = [{"messages": TURNS}, {"conversations": SHARED}, {"messages": CALL}]
    assert [record for _, record in containers.read_file(path, name)] == expected
    assert list(containers.first_records(path)) == expected
    assert containers.estimate_file(path) == 3


@pytest.mark.parametrize("value", [[], [1], ["a"], [{"role": "user"}], [{"from": "x"}], [TURNS]])
def test_other_lists_are_no_records(tmp_path, value):
    path = write(tmp_path / "x.jsonl", [{"a": 1}, value])
    (_, record), (source, reject) = containers.read_file(path, "x")
    assert (record, source) == ({"a": 1}, "x#1")
    assert reject.reason == "record is a list, not an object"


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(PackError, match="columns of one name: a"):
        open_(tmp_path / "x.parquet")


def test_memory_stays_flat_over_a_row_group_of_images(tmp_path):
    image = pa.array([{"bytes": os.urandom(4000), "path": f"{i}.jpg"} for i in range(8000)])
    pq.write_table(pa.table({"a": image}), tmp_path / "x.parquet")
    assert pq.ParquetFile(tmp_path / "x.parquet").num_row_groups == 1
    del image
    before = pa.total_allocated_bytes()
    peak = max(
        pa.total_allocated_bytes()
        for _ in parquet_records.read_parquet(tmp_path / "x.parquet", "x.parquet")
    )
    assert peak - before < 20_000_000  # the row group has 32 million
