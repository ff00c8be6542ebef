"""A pack as a whole: every input ends packed or rejected, and equal input gives equal bytes."""

import os

import pytest

from datapipe import PackError, pack_dataset
from datapipe.index.dataset import open_dataset


def test_header_check_lets_damaged_pixels_through_and_decode_does_not(
    tmp_path, make_folder, make_broken
):
    raw = make_folder(tmp_path / "raw", 2)
    make_broken(raw)
    assert pack_dataset(raw, tmp_path / "a", max_rejects=9, check="header").samples == 3
    assert pack_dataset(raw, tmp_path / "b", max_rejects=9, check="decode").samples == 2


@pytest.mark.parametrize("size", [1, 4, 9, 100])
def test_the_output_holds_shards_of_so_many_samples_and_does_not_tell_where_it_was_made(
    tmp_path, make_folder, contents, size
):
    report = pack_dataset(make_folder(tmp_path / "raw", 9), tmp_path / "out", shard_size=size)
    manifest = open_dataset(tmp_path / "out").manifest
    counts = [shard.samples for shard in manifest.shards]
    assert counts == [size] * (9 // size) + [9 % size] * (9 % size > 0)
    tars = [f"shard-{number:06d}.tar" for number in range(len(counts))]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *(*tars, *(name.replace("tar", "parquet") for name in tars)),
        *("columns", "dataset.json", "rejects.jsonl"),
    }
    assert (report.samples, report.images, report.shards) == (9, 9, len(counts))
    assert report.bytes == sum((tmp_path / "out" / name).stat().st_size for name in tars)
    assert report.output == str(tmp_path / "out")
    (part,) = manifest.parts
    assert part.options == {"format": "folder", "shard_size": str(size), "check": "decode"}
    for name, data in contents(tmp_path / "out").items():
        assert str(tmp_path).encode() not in data, name


def test_shards_end_before_a_number_of_bytes(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 20)
    pack_dataset(raw, tmp_path / "out", shard_size="12KB")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "out").glob("*.tar"))]
    assert len(sizes) > 2
    assert max(sizes) <= 12_000
    assert min(sizes[:-1]) > 12_000 - 4_000  # no shard ends while the next sample would fit
    pack_dataset(raw, tmp_path / "one", shard_size="1B")  # a sample is never torn
    assert len(list((tmp_path / "one").glob("*.tar"))) == 20


def test_a_dry_run_reports_the_same_and_writes_nothing(tmp_path, make_folder, make_broken):
    raw = make_folder(tmp_path / "raw", 6)
    make_broken(raw)
    report = pack_dataset(raw, tmp_path / "out", dry_run=True, max_rejects=4, shard_size=4)
    assert not (tmp_path / "out").exists()
    assert (report.samples, report.images, report.rejected, report.inputs) == (6, 6, 4, 10)
    assert report.dry_run
    with pytest.raises(PackError, match="more than --max-rejects 3") as caught:
        pack_dataset(raw, tmp_path / "out", dry_run=True, max_rejects=3)
    assert "Finished shards" not in str(caught.value)
    packed = pack_dataset(raw, tmp_path / "out", max_rejects=4, shard_size=4)
    assert (packed.shards, packed.bytes) == (report.shards, report.bytes)
    assert packed.shards == 2


# --- too many rejects -------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "said"), [(3, "3"), ("50%", "50%"), ("0.5", "50%")])
def test_more_rejects_than_allowed_end_a_pack(tmp_path, make_folder, make_broken, limit, said):
    raw = make_folder(tmp_path / "raw", 3)
    make_broken(raw)
    message = (
        rf"4 of 7 inputs were rejected.*more than --max-rejects {said}(?s:.)*\n  cut.jpg: JPEG"
    )
    with pytest.raises(PackError, match=message):
        pack_dataset(raw, tmp_path / "out", max_rejects=limit)
    make_folder(raw, 4)
    assert pack_dataset(raw, tmp_path / "new", max_rejects="50%").samples == 4


def test_a_share_is_judged_after_a_thousand_inputs_and_not_before(tmp_path, make_llava):
    text = [{"conversations": [{"from": "human", "value": f"text {i}"}]} for i in range(3000)]
    early = [{"broken": 1}] * 900 + text
    late = text[:1000] + [{"broken": 1}] * 2000
    early, late = make_llava(tmp_path / "a", early), make_llava(tmp_path / "b", late)
    assert pack_dataset(early, tmp_path / "1", format="llava", max_rejects="91%").rejected == 900
    with pytest.raises(PackError, match=r"900 of 1,000 inputs"):
        pack_dataset(early, tmp_path / "2", format="llava", max_rejects="89%")
    with pytest.raises(PackError, match=r"251 of 1,251 inputs"):
        pack_dataset(late, tmp_path / "3", max_rejects="20%")


def test_a_folder_that_cannot_be_read_stops_the_pack(tmp_path, make_folder, monkeypatch):
    raw = make_folder(tmp_path / "raw", 2)
    make_folder(raw / "secret", 2)
    real = os.scandir

    def denied(path):
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr("os.scandir", denied)
    with pytest.raises(PackError, match=r"secret: folder cannot be read: Permission denied"):
        pack_dataset(raw, tmp_path / "out", format="folder")
