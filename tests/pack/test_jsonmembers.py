"""Entries of named arrays come one at a time, as `json` reads them from the whole file."""

import json
import re
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import PackError
from datapipe.pack.records.streams import json_cursor
from datapipe.pack.records.streams.json_stream import read_member_arrays

texts = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
NAMES = ("images", "annotations")
WHOLE = json.dumps(
    {
        "info": {"year": 2017, "text": 'a "quoted] \\ text}', "list": [1, {"a": []}], "n": None},
        "images": [{"id": 1, "file_name": "ä.jpg"}, {"id": 2.5e3}, [], "text", -1.5],
        "licenses": [{"id": 1}, "}", True],
        "annotations": [{"caption": 'say "[ü]"\n\U0001f600'}, 7],
        "type": "captions",
    }
)


def entries_of(content, read=json_cursor._READ, names=NAMES, **options):
    """Return the entries of a file that is read so many bytes at a time."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_cursor, "_READ", read)
        path = Path(folder) / "data.json"
        path.write_bytes(content)
        return list(read_member_arrays(path, names, **options))


def expected(text):
    return [
        (name, index, entry)
        for name, array in json.loads(text).items()
        if name in NAMES
        for index, entry in enumerate(array)
    ]


@pytest.mark.parametrize("read", [1, 2, 3, 16, 100])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_arrays_come_entry_by_entry_wherever_a_read_ends(read, mark):
    assert entries_of(mark + WHOLE.encode(), read) == expected(WHOLE)
    spaced = json.dumps(json.loads(WHOLE), indent=2, ensure_ascii=False)
    assert entries_of(mark + f"\n {spaced}\r\n".encode(), read) == expected(WHOLE)


@pytest.mark.parametrize("read", [1, 2, 3, 16])
@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*NAMES, "a", "é"]), st.lists(values, max_size=4)),
    st.sampled_from([None, 0, 1]),
    st.booleans(),
)
def test_entries_are_what_json_reads(read, whole, indent, ascii):
    text = json.dumps(whole, indent=indent, ensure_ascii=ascii)
    assert entries_of(text.encode(), read) == expected(text)


@settings(max_examples=50, deadline=None)
@given(values)
def test_values_of_any_kind_are_walked_through(value):
    text = json.dumps({"other": value, "images": [1]}, ensure_ascii=False)
    assert entries_of(text.encode(), 2) == [("images", 0, 1)]


@pytest.mark.parametrize("text", ["{}", '{"a": 1}', '{"images": []}', ' {"images":[ ] } '])
def test_without_entries_nothing_comes(text):
    assert entries_of(text.encode()) == []


def test_a_file_cut_off_anywhere_is_refused_naming_the_byte():
    content = json.dumps(json.loads(WHOLE), ensure_ascii=False).encode()
    for size in range(len(content)):
        with pytest.raises(PackError, match=r"data.json is not .*\d") as caught:
            entries_of(content[:size], 7)
        place = int(str(caught.value).partition("about byte ")[2].split()[0].strip(",;"))
        assert size - 32 < place <= size


def test_a_file_broken_anywhere_is_refused_or_read_as_json_reads_it():
    for place in range(len(WHOLE)):
        broken = WHOLE[:place] + "#" + WHOLE[place + 1 :]
        try:
            correct = expected(broken)
        except ValueError:
            continue
        assert entries_of(broken.encode(), 7) == correct
    inside = WHOLE.index('"images"'), WHOLE.index('"licenses"')
    for place in range(*inside):
        broken = WHOLE[:place] + "\0" + WHOLE[place + 1 :]
        with pytest.raises(PackError, match="about byte"):
            entries_of(broken.encode(), 7)


@pytest.mark.parametrize("read", [1, 3, json_cursor._READ])
@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("[1]", "expected an object", 0),
        ("", "expected an object at about byte 0, where the file ends", 0),
        ('{"images": {}}', "expected an array as `images`", 11),
        ('{"images": [1 2]}', "expected a comma or the end of the array", 14),
        ('{"images": [1, ]}', "expected a value", 15),
        ('{"images": [1.5.5]}', "expected a comma or the end of the array", 15),
        ('{"images": [nonsense]}', "expected a value", 12),
        ('{"images": [1], }', "expected the name of a member", 16),
        ('{"images" [1]}', "expected a colon", 10),
        ('{"images": [1]} x', "expected nothing behind", 16),
        ('{"a": [1}', "expected a comma or the end of the array", 8),
        ('{"images": ["ü" 1]}', "expected a comma", 17),
    ],
)
def test_broken_json_is_refused_at_its_place(read, text, reason, place):
    with pytest.raises(PackError, match=reason) as caught:
        entries_of(text.encode(), read)
    assert re.search(rf"about byte {place}\b", str(caught.value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"images": [], "images": []}', "`images` stands in it twice"),
        ('{"images": [' + "[" * 100_000 + "]" * 100_000 + "]}", "nested as deeply"),
        ('{"images": [' + "1" * 5000 + "]}", "at most 4,300 digits"),
    ],
)
def test_what_cannot_be_read_is_refused(text, reason):
    with pytest.raises(PackError, match=reason):
        entries_of(text.encode())


def test_another_encoding_is_refused_with_a_remedy():
    with pytest.raises(PackError, match=r"not UTF-8 at about byte 15; .*iconv"):
        entries_of('{"images": ["größe"]}'.encode("latin-1"), 4)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PackError, match="cannot be read: No such file"):
        list(read_member_arrays(tmp_path / "none.json", NAMES))


def test_entries_before_the_damage_are_given(tmp_path):
    (tmp_path / "data.json").write_text('{"images": [{"a": 1}, 2, oops')
    stream = read_member_arrays(tmp_path / "data.json", NAMES)
    assert [next(stream), next(stream)] == [("images", 0, {"a": 1}), ("images", 1, 2)]
    with pytest.raises(PackError):
        next(stream)


def test_looking_ends_where_it_may_look_no_further():
    text = json.dumps({"other": "x" * 1000, "images": [1]}).encode()
    assert entries_of(text, 64, most=2000) == [("images", 0, 1)]
    with pytest.raises(PackError, match=r"first \d+ bytes do not hold it"):
        entries_of(text, 64, most=500)


@pytest.mark.parametrize("name", ["images", "other"])
def test_memory_holds_a_chunk_however_large_the_file(tmp_path, name):
    with (tmp_path / "data.json").open("w") as file:
        file.write(f'{{"{name}": [')
        file.writelines(f'{{"id": {n}, "text": "{"x" * 200}"}},\n' for n in range(60_000))
        file.write("0]}")
    size = (tmp_path / "data.json").stat().st_size
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_member_arrays(tmp_path / "data.json", {"images"}))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == (60_001 if name == "images" else 0)
    assert size > 12 * 2**20
    assert peak < 5 * 2**20


def test_damage_in_the_middle_is_found_without_reading_the_rest(tmp_path):
    (tmp_path / "data.json").write_bytes(b'{"images": [{"a" 1}, ' + b" " * (20 << 20) + b"1]}")
    tracemalloc.start()
    try:
        with pytest.raises(PackError, match="about byte 17"):
            list(read_member_arrays(tmp_path / "data.json", {"images"}))
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()
