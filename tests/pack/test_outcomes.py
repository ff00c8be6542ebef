"""Raw data, and what becomes of it: samples, rejects and what is said. `outcomes/` states both.

    for       words of the case, each with the texts that take its place in one case after another;
              `A/B` are two words, whose texts `[a, b]` go together
    files     of the raw data, as `raw_files.py` writes them; `give` names the one that is given
    options   of the pack
    refused   texts of its error; `then` has the options that the error asks for
    packed    samples in order, or by their sources: a caption or null, the texts of turns in a
              list, or all members in a mapping
    keys      of the samples
    images    numbers of the photographs of each sample
    records   fields of the JSON of each sample
    videos    of each sample, names and first images; `frames` are the numbers of their frames
    names     of the members of each sample, in order
    rejects   reasons by sources, or other values of a reject; there are none if none are stated
    notes, warnings   lines of the report
    shown     the first samples as they are written out: a line for each turn
    report    other values of the report, by their paths

`...` in a reason or a line stands for any text.
"""

import itertools
import json
import re
from operator import attrgetter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datapipe import pack_dataset
from datapipe.errors import DatapipeError
from datapipe.index.images.header import is_image_extension
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.readers import all_readers
from datapipe.text.conversation import conversation
from datapipe.text.sample_text import sample_text

from .raw_files import by_name, read_table
from .reading import estimate


def cases_of(stated):
    """Yield a case for every combination of the texts of its words."""
    words = stated.pop("for", {})
    for texts in itertools.product(*words.values()):
        given = {}
        for word, text in zip(words, texts, strict=True):
            given |= zip(word.split("/"), text if "/" in word else [text], strict=True)
        yield replaced(stated, given)


def replaced(value, words):
    match value:
        case str():
            for word, text in words.items():
                value = value.replace(word, text)
        case list():
            return [replaced(item, words) for item in value]
        case dict():
            return {replaced(name, words): replaced(item, words) for name, item in value.items()}
    return value


TABLES = sorted(Path(__file__).with_name("outcomes").glob("*.yaml"))
CASES = [case for path in TABLES for stated in read_table(path) for case in cases_of(stated)]
KEYS = {"case", "files", "give", "options", "refused", "then", "packed", "keys", "images"} | {
    *("records", "videos", "frames", "names", "rejects", "notes", "warnings", "shown", "report")
}
assert all(case.keys() <= KEYS for case in CASES)


class Said:
    """Text in which `...` stands for any text."""

    def __init__(self, text):
        self.text = text

    def __eq__(self, other):
        pattern = ".*".join(map(re.escape, self.text.split("...")))
        return bool(re.fullmatch(pattern, other, re.DOTALL))

    def __repr__(self):
        return repr(self.text)


def samples_of(out, members):
    """Return the members of each sample by its source; the index has the length of its text."""
    indexes = map(pq.read_table, sorted(out.glob("*.parquet")))
    rows = [row for index in indexes for row in index.to_pylist()]
    samples = dict(zip((row["source"] for row in rows), members(out).values(), strict=True))
    assert len(samples) == len(rows)
    for row, sample in zip(rows, samples.values(), strict=True):
        text = sample_text(caption_of(sample), json.loads(sample.get("json", "null"))) or ""
        assert row["text_bytes"] == len(text.encode()), row["source"]
    return samples


def caption_of(members):
    text = members.get("txt", members.get("caption"))
    return None if text is None else text.decode()


def as_stated(members, stated):
    """Return of a sample what is stated of one."""
    match stated:
        case dict():
            return {
                ext: json.loads(data) if isinstance(stated.get(ext), dict | list) else data
                for ext, data in members.items()
            }
        case list():
            return [turn.text for turn in conversation(json.loads(members["json"]))]
    return caption_of(members)


def as_expected(stated, raw_files):
    """Return what is stated of a sample, with the bytes of its members."""
    if not isinstance(stated, dict):
        return stated
    return {
        ext: value if isinstance(value, dict | list) else raw_files.content(value)
        for ext, value in stated.items()
    }


def check_samples(case, samples, raw_files):
    if "packed" in case:
        stated, is_ordered = case["packed"], isinstance(case["packed"], list)
        stated = dict(zip(samples, stated, strict=True)) if is_ordered else by_name(stated)
        found = {name: as_stated(sample, stated.get(name)) for name, sample in samples.items()}
        assert found == {name: as_expected(one, raw_files) for name, one in stated.items()}
    if "names" in case:
        assert list(map(list, samples.values())) == case["names"]
    images = [[data for ext, data in s.items() if ext.endswith("jpg")] for s in samples.values()]
    if "images" in case:
        assert images == [list(map(raw_files.jpeg, numbers)) for numbers in case["images"]]
    if "frames" in case:
        from .videos import number_of

        assert [list(map(number_of, frames)) for frames in images] == case["frames"]
    records = [json.loads(sample.get("json", "{}")) for sample in samples.values()]
    if "videos" in case:
        found = [record.get("video_frames", []) for record in records]
        assert [[[v["name"], v["first"]] for v in videos] for videos in found] == case["videos"]
    if "records" in case:
        for record, stated in zip(records, case["records"], strict=True):
            assert {name: record[name] for name in stated} == stated


def check_rejects(case, lines):
    rejected = {line["source"]: line for line in lines}
    assert len(rejected) == len(lines)
    assert rejected.keys() == case.get("rejects", {}).keys()
    for source, reason in case.get("rejects", {}).items():
        stated = reason if isinstance(reason, dict) else {"reason": reason}
        for name, text in stated.items():
            assert rejected[source][name] == Said(text)


def check_report(case, report):
    assert report.rejected == len(case.get("rejects", {}))
    for lines, key in ((report.notes, "notes"), (report.teaching.warnings(), "warnings")):
        if key in case:
            assert len(lines) == len(case[key]), lines
            assert [line for line in case[key] if Said(line) not in lines] == [], lines
    if "shown" in case:
        shown = [[" ".join(line.split()) for line in one.lines()[1:]] for one in report.shown]
        assert shown == case["shown"]
    for path, value in case.get("report", {}).items():
        assert attrgetter(path)(report) == value, path


def check_estimate(raw, out, options, report, rejected):
    """Compare the estimate of a folder of images with what became of them."""
    (part,) = json.loads((out / "dataset.json").read_text())["parts"]
    if part["options"]["format"] == "folder" and not report.videos:
        named = {name: options[name] for name in ("include", "ignore") if name in options}
        images = [r for r in rejected if is_image_extension(r["source"].rpartition(".")[2])]
        estimated = estimate(all_readers()["folder"], raw, ReadOptions(**named))
        assert estimated == report.samples + len(images)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_raw_data_becomes_what_is_stated(tmp_path, raw_files, members, rejects, case):
    raw = raw_files.write(tmp_path / "raw", case["files"]) / case.get("give", "")
    out, options = tmp_path / "out", {"workers": 1, "max_rejects": "100%"}
    options |= case.get("options", {})
    if "refused" in case:
        with pytest.raises(DatapipeError) as caught:
            pack_dataset(raw, out, **options)
        assert [words for words in case["refused"] if words not in str(caught.value)] == []
        assert not (out / "dataset.json").exists()
        if "then" not in case:
            return
        options |= case["then"]
    report = pack_dataset(raw, out, **options)
    check_samples(case, samples_of(out, members), raw_files)
    if "keys" in case:
        assert list(members(out)) == list(map(Said, case["keys"]))
    check_rejects(case, rejects(out))
    check_report(case, report)
    check_estimate(raw, out, options, report, rejects(out))
