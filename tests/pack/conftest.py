"""Raw data packed, and what came out."""

import json
from functools import partial

import pytest

from datapipe import pack_dataset

from .coco_files import write_coco


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
def reasons_of(tmp_path, jpeg, rejects):
    """Packs a good record and others, beside a.jpg, b.jpg and c.jpg; gives why each is rejected."""

    def pack(good, *records):
        raw = tmp_path / "raw"
        raw.mkdir()
        for number, name in enumerate("abc"):
            (raw / f"{name}.jpg").write_bytes(jpeg(number))
        lines = [json.dumps(record) + "\n" for record in (good, *records)]
        (raw / "data.jsonl").write_text("".join(lines))
        pack_dataset(raw / "data.jsonl", tmp_path / "out", max_rejects="100%")
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


@pytest.fixture
def make_coco(tmp_path, jpeg):
    """Writes a dataset as COCO unpacks: annotations/NAME.json and val2017/*.jpg."""
    return partial(write_coco, tmp_path / "raw", jpeg)
