"""Records come one at a time, and are those that `json` reads from the whole file."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.records.streams import json_cursor, json_stream
from datapipe.pack.records.streams.json_stream import NotRecordsError, count_marks, read_json

texts = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def records_of(content, read=json_cursor._READ, name="data.json"):
    """The records of a file that is read so many characters at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_cursor, "_READ", read)
        return list(read_json(io.BytesIO(content), Path(name), name))


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


def test_an_array_of_many_reads_is_read_once():
    array = [{"id": number, "text": "ü" * (number % 50)} for number in range(40_000)]
    content = json.dumps(array, ensure_ascii=False).encode()
    assert len(content) > 2 * json_cursor._READ
    assert records_of(content) == array


@pytest.mark.parametrize("text", ['[{"a": 1}]', '{"a": 1}\n', ' \n[\n{"a": 1}\n]\n', '\n\n{"a":1}'])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_and_blank_space_are_passed_over(text, mark):
    assert records_of(mark + text.encode()) == [{"a": 1}]


BROKEN_LINES = [
    (b'{"a": ', "is not JSON"),
    (b"\xff", "is not UTF-8 at byte 0"),
    ('{"a": "größe"}'.encode("latin-1"), "is not UTF-8 at byte 9"),
    (b'{"a": "\xed\xa0\x80"}', "is not UTF-8 at byte 7"),
    (bytes(8), "holds NUL bytes"),
    ('{"a": 1}'.encode("utf-16-le"), "holds NUL bytes"),
    ('{"a": 1}'.encode("utf-32-be"), "holds NUL bytes"),
    (b'{"a": "' + bytes(3) + b'"}', "holds NUL bytes"),
    (b'\xef\xbb\xbf{"a": 1}', "is not JSON"),
    (b'{"a": ' + b"[" * 100_000, "is not JSON"),
]


@pytest.mark.parametrize(("line", "reason"), BROKEN_LINES)
@pytest.mark.parametrize("place", [0, 1])
def test_a_broken_line_costs_only_itself(line, reason, place):
    lines = [b'{"a": 1}', b'{"a": 2}']
    lines.insert(place, line)
    records = records_of(b"\n".join(lines), name="data.jsonl")
    broken = records.pop(place)
    if line.startswith(b"\xef\xbb\xbf") and place == 0:
        assert broken == {"a": 1}  # here the mark is the file's
    else:
        assert (broken.source, broken.error) == (f"data.jsonl:{place + 1}", "DecodeError")
        assert reason in broken.reason
    assert records == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("read", [1, json_cursor._READ])
def test_a_record_of_another_encoding_costs_only_itself_in_an_array(read):
    content = '[{"a": "ü"},\n'.encode() + '{"a": "größe"},\n'.encode("latin-1") + b'{"a": "b"}]'
    first, broken, last = records_of(content, read)
    assert [first, last] == [{"a": "ü"}, {"a": "b"}]
    assert broken == Reject("data.json#1", "record is not UTF-8", "DecodeError")


@pytest.mark.parametrize(
    "text",
    [
        '{\n "images": [],\n "annotations": []\n}',
        '{"images": [{"id": 1}],\n"annotations": []}',
        '{"images": [{"id": 1}], "annotations": [{"id": 1}]}',
        '\n{"info": {"year": 2017},\n "images": []}',
    ],
)
def test_one_object_is_not_taken_for_records(text):
    with pytest.raises(NotRecordsError, match=r"one JSON object.*an array .* or one record a line"):
        records_of(text.encode())


def test_an_object_of_any_size_is_refused_without_being_read(monkeypatch):
    monkeypatch.setattr(json_stream, "_LONGEST_FIRST", 64)
    file = io.BytesIO(b'{"info": {}, "images": [' + b'{"id": 1}, ' * 10_000)
    with pytest.raises(NotRecordsError):
        next(read_json(file, Path("data.json"), "data.json"))


@pytest.mark.parametrize("read", [1, 3, json_cursor._READ])
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
    stream = read_json(io.BytesIO(b'[{"a": 1}, {"a": 2}, oops]'), Path("a.json"), "a.json")
    assert [next(stream), next(stream)] == [{"a": 1}, {"a": 2}]
    with pytest.raises(PackError):
        next(stream)


def test_records_are_counted_by_their_mark(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps([{"conversations": []}] * 7))
    assert sum(count_marks(tmp_path / "data.json", b'"conversations"')) == 7
