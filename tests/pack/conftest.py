"""Raw data packed, and what came out."""

import json

import pytest

from datapipe import pack_dataset

from .raw_files import RawFiles


@pytest.fixture
def raw(tmp_path):
    """A folder for raw data, in which nothing is yet."""
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


@pytest.fixture
def raw_files(jpeg, encode, make_tar):
    """Writes the files that a table states."""
    return RawFiles(jpeg, encode, make_tar)


@pytest.fixture
def put(raw_files):
    """Writes files below a folder, by their names: bytes, texts, images by numbers, records."""
    return raw_files.write


@pytest.fixture
def packed(tmp_path, members):
    """Packs a raw folder or file; gives the members of its samples in order."""

    def pack(raw, **options):
        pack_dataset(raw, tmp_path / "out", max_rejects=1000, **options)
        return list(members(tmp_path / "out").values())

    return pack


@pytest.fixture
def packed_records(packed):
    """Packs a raw folder or file; gives the record and the other members of its samples."""

    def pack(raw, **options):
        return [(json.loads(sample.pop("json")), sample) for sample in packed(raw, **options)]

    return pack


@pytest.fixture
def lines(raw, put):
    """Writes records as JSONL, beside a.jpg, b.jpg and c.jpg."""

    def write(*records):
        texts = "".join(json.dumps(record) + "\n" for record in records)
        put(raw, {"a.jpg": 0, "b.jpg": 1, "c.jpg": 2, "data.jsonl": texts})
        return raw / "data.jsonl"

    return write


@pytest.fixture
def reasons_of(tmp_path, lines, rejects):
    """Packs a good record and others; gives the reason why each of the others is rejected."""

    def pack(good, *records):
        pack_dataset(lines(good, *records), tmp_path / "out", max_rejects="100%")
        reasons = {line["source"]: line["reason"] for line in rejects(tmp_path / "out")}
        assert "data.jsonl#0" not in reasons
        return [reasons.get(f"data.jsonl#{number}") for number in range(1, len(records) + 1)]

    return pack


@pytest.fixture
def packed_videos(packed):
    """Packs raw data; gives each sample's record, the numbers of its frames, and its members."""
    from .videos import number_of

    def pack(raw, video_frames="fps=2,max=8", **options):
        found = []
        for sample in packed(raw, video_frames=video_frames, **options):
            frames = [number_of(data) for ext, data in sample.items() if ext.endswith(".jpg")]
            found.append((json.loads(sample["json"]), frames, sample))
        return found

    return pack
