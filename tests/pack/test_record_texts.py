"""Records of JSON files, which the workers parse: rejects, notes and counts are those of a file."""

import json

import pytest

from datapipe.errors import PackError
from datapipe.pack.pack_dataset import pack_dataset

DEEP = b"[" * 300 + b"]" * 300
"""Lists that are read from JSON, and not written."""


def record(number, **fields):
    turns = [{"from": "human", "value": "<image>What?"}, {"from": "gpt", "value": f"{number}"}]
    return {"id": f"r{number}", "image": f"{number}.jpg", "conversations": turns, **fields}


@pytest.fixture
def images(tmp_path, put):
    """A folder with six images and no records."""
    return put(tmp_path / "raw", {f"images/{number}.jpg": number for number in range(6)})


def as_lines(entries):
    return b"\n".join(entries) + b"\n"


def as_array(entries):
    return b"[" + b", \n".join(entries) + b"]"


FAULTY = [
    json.dumps(record(0)).encode(),
    b"5",
    json.dumps(record(1, mask="2.jpg")).encode(),
    b'{"conversations": "\xff"}',
    json.dumps(record(9, depth="3.jpg")).encode(),
    b'{"deep": %b, "conversations": [{"from": "gpt", "value": ""}]}' % DEEP,
    json.dumps([{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]).encode(),
    json.dumps(record(2, conversations=[{"from": "parrot", "value": "a"}])).encode(),
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("name", "write"), [("a.jsonl", as_lines), ("a.json", as_array)])
def test_faulty_records_are_named_by_their_places(images, tmp_path, rejects, name, write, workers):
    (images / name).write_bytes(write(FAULTY))
    out = tmp_path / "out"
    report = pack_dataset(images, out, workers=workers, max_rejects=10)
    line = (f"{name}:4", "line is not UTF-8 at byte 19")
    assert [(reject["source"], reject["reason"]) for reject in rejects(out)] == [
        (f"{name}#1", "record is a int, not an object"),
        line if write is as_lines else (f"{name}#3", "record is not UTF-8"),
        (f"{name}#4", "file is missing"),
        (f"{name}#5", "record is nested too deeply to be written as JSON"),
        (
            f"{name}#7",
            "turn 1 of 1 has the role 'parrot', which is not known; rename it to user, assistant, "
            "system or tool",
        ),
    ]
    assert (report.samples, report.inputs) == (3, 8)
    # The fields of a record whose image is missing count, too.
    for words, named in (
        ("`mask` are not trained on", f"{name}#2"),
        ("`depth` are not trained on", f"{name}#4"),
        ("images that no sample has", "images/3.jpg"),
    ):
        assert any(words in note and named in note for note in report.notes)
    assert pack_dataset(images, out, max_rejects=10).notes == report.notes


@pytest.mark.parametrize(("name", "write"), [("a.jsonl", as_lines), ("a.json", as_array)])
def test_edited_records_end_a_pack_that_is_run_again(images, tmp_path, name, write):
    def write_records(end=b"", **fields):
        lines = (json.dumps(record(number, **fields)).encode() + end for number in range(3))
        (images / name).write_bytes(write(lines))

    write_records()
    pack_dataset(images, tmp_path / "out")
    write_records(end=b" ")  # another spelling of equal records is no change
    assert pack_dataset(images, tmp_path / "out").finished_before
    write_records(more=1)
    with pytest.raises(PackError, match="3 inputs then, now others"):
        pack_dataset(images, tmp_path / "out")
