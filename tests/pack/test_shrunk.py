"""Images made smaller on their way into shards."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from datapipe import PackError, make_loader, pack_dataset

from .videos import write_video


@pytest.fixture
def raw(tmp_path, put, crop, encode):
    """Photographs of three sizes, one of them turned by EXIF."""
    files = {}
    for number in range(12):
        size = ((96, 64), (64, 96), (24, 16))[number % 3]
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 3 == 0 else 1
        files[f"{number:02d}.jpg"] = encode(crop(size=size), quality=95, exif=exif)
    return put(tmp_path / "raw", files)


def test_images_fit_are_upright_and_the_bytes_saved_are_told(tmp_path, raw, members):
    report = pack_dataset(raw, tmp_path / "out", max_side=32, shard_size=5)
    sizes = []
    for number, sample in enumerate(members(tmp_path / "out").values()):
        image = Image.open(io.BytesIO(sample["jpg"]))
        sizes.append(image.size)
        if number % 3 == 2:  # fits
            assert sample["jpg"] == (raw / f"{number:02d}.jpg").read_bytes()
        else:
            assert image.getexif().get(0x0112, 1) == 1
    assert sizes == [(21, 32), (21, 32), (24, 16)] * 4
    before = sum(path.stat().st_size for path in raw.iterdir())
    after = sum(len(sample["jpg"]) for sample in members(tmp_path / "out").values())
    assert report.saved_bytes == before - after > 0
    tables = map(pq.read_table, sorted((tmp_path / "out").glob("*.parquet")))
    rows = pa.concat_tables(tables).to_pylist()
    assert [(row["width"], row["height"]) for row in rows] == sizes
    assert len(make_loader(tmp_path / "out", batch_size=4, num_workers=0)) == 3


def test_what_is_saved_counts_over_an_interruption_beside_videos(tmp_path, raw, contents):
    (raw / "08a.jpg").write_bytes(b"")
    write_video(raw / "03a.mp4", 5)
    (raw / "03a.json").write_text('{"caption": "a clip"}')
    options = {"max_side": 32, "shard_size": 2, "video_frames": "fps=2,max=8"}
    whole = pack_dataset(raw, tmp_path / "whole", max_rejects=1, **options)
    with pytest.raises(PackError, match="Finished shards are kept"):
        pack_dataset(raw, tmp_path / "out", max_rejects=0, **options)
    report = pack_dataset(raw, tmp_path / "out", max_rejects=1, **options)
    assert 0 < report.inputs < 14
    assert report.saved_bytes == whole.saved_bytes
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("wanted", ["webp", "jpg"])
def test_all_images_get_the_format_asked_for(tmp_path, raw, crop, encode, members, wanted):
    (raw / "a.png").write_bytes(encode(kind="PNG"))
    (raw / "b.tga").write_bytes(encode(crop(size=(96, 64)), "TGA"))
    pack_dataset(raw, tmp_path / "out", image_format=wanted, max_side=24)
    packed = [member for sample in members(tmp_path / "out").values() for member in sample.items()]
    assert {ext for ext, _ in packed} == {wanted}
    assert Image.open(io.BytesIO(packed[-1][1])).size == (24, 16)


def test_images_with_more_pixels_than_allowed_are_rejected(tmp_path, raw, rejects):
    assert pack_dataset(raw, tmp_path / "out", max_pixels=1000, max_rejects="100%").samples == 4
    reasons = [line["reason"] for line in rejects(tmp_path / "out")]
    assert all("more than the limit of 1,000" in reason for reason in reasons)
