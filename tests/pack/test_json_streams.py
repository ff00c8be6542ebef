"""JSON comes a record at a time, as `json` reads it from the whole file, whatever its size."""

import io
import json
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Reject
from datapipe.pack.records.streams import json_stream
from datapipe.pack.records.streams.json_stream import (
    NotRecordsError,
    read_json,
    read_member_arrays,
)

from .cases import cases

texts = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
many = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES = ("images", "annotations")
OBJECT = {
    "info": {"year": 2017, "text": 'a "quoted] \\ text}', "list": [1, {"a": []}], "n": None},
    "images": [{"id": 1, "file_name": "ä.jpg"}, {"id": 2.5e3}, [], "text", -1.5],
    "licenses": [{"id": 1}, "}", True],
    "annotations": [{"caption": 'say "[ü]"\n\U0001f600'}, 7],
    "type": "captions",
}
WHOLE = json.dumps(OBJECT)
MARK = b"\xef\xbb\xbf"


@pytest.fixture(params=[1, 3, 16, 1 << 20])
def size(request, monkeypatch):
    """Number of characters that are read at once."""
    monkeypatch.setattr(json_stream, "READ_BYTES", request.param)
    return request.param


def records_of(content, name="data.json"):
    return list(read_json(io.BytesIO(content), Path(name), name))


@pytest.fixture
def entries_of(tmp_path):
    """Returns the entries of the arrays `NAMES` of a file of these bytes."""

    def read(content, **options):
        (tmp_path / "data.json").write_bytes(content)
        return list(read_member_arrays(tmp_path / "data.json", NAMES, **options))

    return read


def expected(text):
    arrays = ((name, array) for name, array in json.loads(text).items() if name in NAMES)
    return [(name, index, entry) for name, array in arrays for index, entry in enumerate(array)]


# --- records: an array, or one a line -----------------------------------------------------------


@many
@given(st.lists(values, max_size=6), st.sampled_from([None, 0, 1]), st.booleans())
def test_an_array_gives_what_json_reads_wherever_a_read_ends(size, array, indent, ascii):
    text = json.dumps(array, indent=indent, ensure_ascii=ascii)
    assert records_of(text.encode()) == array


@pytest.mark.parametrize("text", ['[{"a": 1}]', '{"a": 1}\n', ' \n[\n{"a": 1}\n]\n', '\n\n{"a":1}'])
@pytest.mark.parametrize("mark", [b"", MARK])
def test_a_byte_order_mark_and_blank_space_are_passed_over(text, mark):
    assert records_of(mark + text.encode()) == [{"a": 1}]


def test_a_record_of_another_encoding_costs_only_itself_in_an_array(size):
    content = '[{"a": "ü"},\n'.encode() + '{"a": "größe"},\n'.encode("latin-1") + b'{"a": "b"}]'
    first, broken, last = records_of(content)
    assert [first, last] == [{"a": "ü"}, {"a": "b"}]
    assert broken == Reject("data.json#1", "record is not UTF-8", "DecodeError")


@pytest.mark.parametrize(
    "text",
    [
        '{\n "images": [],\n "annotations": []\n}',
        '{"images": [{"id": 1}],\n"annotations": []}',
        '\n{"info": {"year": 2017},\n "images": []}',
        '{"info": {}, "images": [' + '{"id": 1}, ' * 10_000,
    ],
)
def test_one_object_is_not_taken_for_records(text):
    with pytest.raises(NotRecordsError, match=r"one JSON object.*an array .* or one record a line"):
        records_of(text.encode())


@pytest.mark.parametrize(("text", "reason"), cases("arrays of JSON that are broken"))
def test_a_broken_array_is_refused_with_a_remedy_behind_what_is_whole(size, text, reason):
    stream = read_json(io.BytesIO(text.encode()), Path("data.json"), "data.json")
    if text.startswith('[{"a": 1},'):
        assert next(stream) == {"a": 1}
    with pytest.raises(PackError, match=rf"expected {reason}.*write it as JSONL"):
        list(stream)


# --- entries of named arrays --------------------------------------------------------------------


@pytest.mark.parametrize("mark", [b"", MARK])
@many
@given(
    st.dictionaries(st.sampled_from([*NAMES, "a", "é"]), st.lists(values, max_size=4)),
    values,
    st.sampled_from([None, 0, 1]),
    st.booleans(),
)
@example(OBJECT, 0, None, True)
@example(OBJECT, 0, 2, False)
def test_entries_are_what_json_reads_wherever_a_read_ends(
    size, entries_of, mark, whole, other, indent, ascii
):
    text = json.dumps({"other": other} | whole, indent=indent, ensure_ascii=ascii)
    assert entries_of(mark + f"\n {text}\r\n".encode()) == expected(text)


def test_a_file_cut_off_anywhere_is_refused_naming_the_byte(entries_of):
    content = json.dumps(OBJECT, ensure_ascii=False).encode()
    for size in range(len(content)):
        with pytest.raises(PackError, match=r"data.json is not .*\d") as caught:
            entries_of(content[:size])
        place = int(str(caught.value).partition("about byte ")[2].split()[0].strip(",;"))
        assert size - 32 < place <= size


def test_a_file_broken_anywhere_is_refused_or_read_as_json_reads_it(entries_of):
    for place in range(len(WHOLE)):
        broken = WHOLE[:place] + "#" + WHOLE[place + 1 :]
        try:
            correct = expected(broken)
        except ValueError:
            continue
        assert entries_of(broken.encode()) == correct
    for place in range(WHOLE.index('"images"'), WHOLE.index('"licenses"')):
        broken = WHOLE[:place] + "\0" + WHOLE[place + 1 :]
        with pytest.raises(PackError, match="about byte"):
            entries_of(broken.encode())


@pytest.mark.parametrize(
    ("text", "reason", "place"), cases("objects of JSON that are broken at a byte")
)
def test_broken_json_is_refused_at_its_place(size, entries_of, text, reason, place):
    with pytest.raises(PackError, match=reason) as caught:
        entries_of(text.encode())
    assert re.search(rf"about byte {place}\b", str(caught.value))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"images": [], "images": []}', "`images` stands in it twice"),
        (b'{"images": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", "nested as deeply"),
        (b'{"images": [' + b"1" * 5000 + b"]}", "at most 4,300 digits"),
        ('{"images": ["größe"]}'.encode("latin-1"), r"not UTF-8 at about byte 15; .*iconv"),
        (WHOLE.encode("utf-16"), "iconv -f UTF-16"),
        (b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
    ],
    ids=["twice", "deep", "digits", "latin-1", "utf-16", "pointer"],
)
def test_what_cannot_be_read_is_refused_with_its_cause(entries_of, content, reason):
    with pytest.raises(PackError, match=reason):
        entries_of(content)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PackError, match="cannot be read: No such file"):
        list(read_member_arrays(tmp_path / "none.json", NAMES))


@pytest.mark.parametrize("size", [64], indirect=True)
def test_looking_ends_where_it_may_look_no_further(size, entries_of):
    text = json.dumps({"other": "x" * 1000, "images": [1]}).encode()
    assert entries_of(text, most=2000) == [("images", 0, 1)]
    with pytest.raises(PackError, match=r"first \d+ bytes do not hold it"):
        entries_of(text, most=500)


@pytest.fixture
def within_5_mb():
    """Fails a test that held more at a time."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 2**20


@pytest.mark.parametrize("name", ["images", "other"])
def test_memory_holds_a_chunk_however_large_the_file(tmp_path, within_5_mb, name):
    path = tmp_path / "data.json"
    with path.open("w") as file:
        file.write(f'{{"{name}": [')
        file.writelines(f'{{"id": {n}, "text": "{"x" * 2000}"}},\n' for n in range(6_000))
        file.write("0]}")
    assert path.stat().st_size > 10 * 2**20
    count = sum(1 for _ in read_member_arrays(path, {"images"}))
    assert count == (6_001 if name == "images" else 0)


def test_damage_in_the_middle_is_found_without_reading_the_rest(tmp_path, within_5_mb):
    with (tmp_path / "data.json").open("wb") as file:
        file.write(b'{"images": [{"a" 1}, ')
        file.writelines([b" " * (1 << 20)] * 20)
    with pytest.raises(PackError, match="about byte 17"):
        list(read_member_arrays(tmp_path / "data.json", {"images"}))
