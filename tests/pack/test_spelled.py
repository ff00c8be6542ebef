"""Images whose names the disk spells otherwise than the records."""

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


def test_the_exact_name_goes_first(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"small")
    (tmp_path / "a.JPG").write_bytes(b"large")
    assert Blob(tmp_path / "a.jpg").read() == b"small"
    assert Blob(tmp_path / "a.JPG").read() == b"large"
    assert Blob(tmp_path / "a.Jpg").read() == b"small"
    with pytest.raises(MissingMember):
        Blob(tmp_path / "A.jpg").read()
