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
def put(jpeg):
    """Writes files below a folder: bytes, texts, images by their numbers, all else as JSON."""

    def write(folder, files):
        for name, content in files.items():
            if isinstance(content, int):
                content = jpeg(content)
            elif not isinstance(content, bytes):
                content = (content if isinstance(content, str) else json.dumps(content)).encode()
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder

    return write


@pytest.fixture
def raw_files(jpeg, encode, make_tar):
    """Writes the files that a table states."""
    return RawFiles(jpeg, encode, make_tar)


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
def lines(raw, jpeg):
    """Writes records as JSONL, beside a.jpg, b.jpg and c.jpg."""

    def write(*records):
        for number, name in enumerate("abc"):
            (raw / f"{name}.jpg").write_bytes(jpeg(number))
        texts = (json.dumps(record) + "\n" for record in records)
        (raw / "data.jsonl").write_text("".join(texts))
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
