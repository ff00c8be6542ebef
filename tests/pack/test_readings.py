"""Choice of a reading of raw data: its format, or a refusal that says what could be meant."""

import pytest

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import ReadOptions

from .chats import turns
from .raw_files import read_table
from .reading import choose_reader
from .record_files import write

CASES = read_table("recognition.yaml")
assert all(case.keys() <= {"case", "files", "options", "give", "is", "says"} for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_raw_data_is_taken_for_what_it_is_or_asked_about(tmp_path, raw_files, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    given = raw_files.write(tmp_path, case["files"]) / case.get("give", "")
    options = dict(case.get("options", {}))
    name = options.pop("format", None)
    if "is" in case:
        assert choose_reader(given, name, ReadOptions(**options)).name == case["is"]
        return
    with pytest.raises(PackError) as caught:
        choose_reader(given, name, ReadOptions(**options))
    assert [words for words in case["says"] if words not in str(caught.value)] == []


VIDEO = {"conversations": [{"from": "human", "value": "<video>What?"}], "video": "a.mp4"}
TWICE = {"conversations": [{"from": "human", "value": "<image><image>?"}], "image": "0000.jpg"}
WORDS = {"conversations": turns("1+1?", "2")}
READ = {"question": "What is it?", "answer": "A dog.", "pdf": "a.pdf"}
SAID = "record has `{}`; only text and images are supported"
OF_VIDEO = f"{SAID.format('video')}; to pack its frames, add --video-frames fps=2,max=64"


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([VIDEO] * 400, f"400 records, all rejected: {OF_VIDEO} (or give"),
        ([TWICE], "1 record, rejected: 2 <image> places for 1 image (or give"),
        ([VIDEO, VIDEO, TWICE],
         f"3 records, all rejected, for example: {OF_VIDEO} (or give"),
        ([WORDS, VIDEO], f"2 records, no images, 1 of them rejected: {OF_VIDEO} ("),
        ([READ, READ], f"2 records, all rejected: {SAID.format('pdf')} (or give"),
        ([WORDS, WORDS], "2 records, no images (or give"),
    ],
)  # fmt: skip
def test_records_that_would_all_be_rejected_say_why(tmp_path, put, records, expected):
    put(tmp_path, {f"{number:04d}.{ext}": "x" for number in range(3) for ext in ("jpg", "txt")})
    write(tmp_path / "data.jsonl", records)
    with pytest.raises(PackError) as caught:
        choose_reader(tmp_path)
    assert f"data.jsonl: {expected}" in str(caught.value)
