"""Images whose names the disk spells otherwise than the records: accents, extensions."""

from unicodedata import normalize

import pytest

from datapipe import pack_dataset
from datapipe.errors import MissingMember
from datapipe.pack.input.raw_sample import Blob

from .record_files import write

NAMES = [f"bilder/Käse {number} 写真.jpg" for number in range(4)]


def rows(raw, names):
    records = [{"image": name, "caption": f"about {n}"} for n, name in enumerate(names)]
    write(raw / "captions.jsonl", records)


@pytest.mark.parametrize(("said", "lies"), [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("place", ["", "deep/down/"])
def test_names_in_another_unicode_form_are_the_same_names(tmp_path, put, said, lies, place):
    raw = tmp_path / normalize(said, "größe")
    rows(raw, [normalize(said, name) for name in NAMES])
    put(raw, {place + normalize(lies, name): number for number, name in enumerate(NAMES)})
    report = pack_dataset(raw, tmp_path / "out")
    assert (report.samples, report.rejected, report.left_out) == (4, 0, 0)


@pytest.mark.parametrize("lies", ["JPG", "jpg"])
def test_extensions_in_capitals_and_small_letters_are_the_same(tmp_path, put, lies, rejects):
    other = {"JPG": "jpg", "jpg": "JPG"}[lies]
    names = [f"IMG_{n:04d}.{lies if n % 2 else other}" for n in range(6)]
    rows(tmp_path / "raw", [*names, "lost.jpg"])
    put(tmp_path / "raw", {f"IMG_{n:04d}.{lies}": n for n in range(6)})
    report = pack_dataset(tmp_path / "raw", tmp_path / "out")
    assert (report.samples, report.left_out) == (6, 0)
    (line,) = rejects(tmp_path / "out")
    assert (line["reason"], line["file"]) == ("file is missing", "lost.jpg")


def test_the_exact_name_goes_first(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"small")
    (tmp_path / "a.JPG").write_bytes(b"large")
    assert Blob(tmp_path / "a.jpg").read() == b"small"
    assert Blob(tmp_path / "a.JPG").read() == b"large"
    assert Blob(tmp_path / "a.Jpg").read() == b"small"
    with pytest.raises(MissingMember):
        Blob(tmp_path / "A.jpg").read()
