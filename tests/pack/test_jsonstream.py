"""Records come one at a time, and are those that `json` reads from the whole file."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import PackError
from datapipe.pack import jsonstream
from datapipe.pack.jsonstream import count_records, first_record, read_records
from datapipe.pack.raw import Reject

texts = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def records_of(content, read=jsonstream._READ):
    """The records of a file that is read so many characters at a time."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonstream, "_READ", read)
        path = Path(folder) / "data.json"
        path.write_bytes(content)
        return list(read_records(path))


@pytest.mark.parametrize("read", [1, 2, 3, 16])
@settings(max_examples=30, deadline=None)
@given(st.lists(values, max_size=6), st.sampled_from([None, 0, 1]), st.booleans())
def test_an_array_gives_what_json_reads_wherever_a_read_ends(read, array, indent, ascii):
    text = json.dumps(array, indent=indent, ensure_ascii=ascii)
    assert records_of(text.encode(), read) == array


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(texts, values, max_size=3), max_size=6))
def test_json_lines_give_what_json_reads(records):
    assert records_of("\n".join(map(json.dumps, records)).encode()) == records


def test_an_array_of_many_reads_is_read_once(tmp_path):
    array = [{"id": number, "text": "ü" * (number % 50)} for number in range(40_000)]
    content = json.dumps(array, ensure_ascii=False).encode()
    assert len(content) > 2 * jsonstream._READ
    (tmp_path / "data.json").write_bytes(content)
    assert list(read_records(tmp_path / "data.json")) == array


@pytest.mark.parametrize("text", ['[{"a": 1}]', '{"a": 1}\n', ' \n[\n{"a": 1}\n]\n', '\n\n{"a":1}'])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_and_blank_space_are_passed_over(text, mark):
    assert records_of(mark + text.encode()) == [{"a": 1}]


def test_a_broken_line_costs_only_itself():
    records = records_of(b'{"a": 1}\n{"a": \n\xff\n{"a": 2}\n')
    assert [records[0], records[3]] == [{"a": 1}, {"a": 2}]
    assert [(record.source, record.error) for record in records[1:3]] == [
        ("data.json:2", "DecodeError"),
        ("data.json:3", "DecodeError"),
    ]
    assert all(isinstance(record, Reject) for record in records[1:3])


@pytest.mark.parametrize("read", [1, 3, jsonstream._READ])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'[{"a": 1} {"a": 2}]', "a comma"),
        (b'[{"a": 1}, {"a": 2}', "the end of the array"),
        (b'[{"a": 1}, {"a": ', "a record"),
        (b'[{"a": 1}, nonsense]', "a record"),
        (b'[{"a": 1}] [{"a": 2}]', "nothing behind"),
        (b"[1.5.5]", "a comma"),
    ],
)
def test_a_broken_array_is_refused_with_a_remedy(read, content, expected):
    with pytest.raises(PackError, match=rf"expected {expected}.*write it as JSONL"):
        records_of(content, read)


def test_records_before_the_damage_are_given():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.json"
        path.write_bytes(b'[{"a": 1}, {"a": 2}, oops]')
        stream = read_records(path)
        assert [next(stream), next(stream)] == [{"a": 1}, {"a": 2}]
        with pytest.raises(PackError):
            next(stream)


def test_another_encoding_is_refused_with_a_remedy():
    with pytest.raises(PackError, match=r"not UTF-8.*iconv"):
        records_of('["größe"]'.encode("latin-1"))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PackError, match="cannot be read: No such file"):
        list(read_records(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("content", "first"), [(b'[{"a": 1}, oops', {"a": 1}), (b"", None), (b"[oops", None)]
)
def test_the_first_record_is_told_without_reading_the_rest(tmp_path, content, first):
    (tmp_path / "data.json").write_bytes(content)
    assert first_record(tmp_path / "data.json") == first


def test_records_are_counted_by_their_mark(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps([{"conversations": []}] * 7))
    assert count_records(tmp_path / "data.json", b'"conversations"') == 7
