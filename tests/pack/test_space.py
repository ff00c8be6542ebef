"""Free space is compared with the output before anything is written."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe import PackError, pack_dataset


def size_of(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_disk_that_is_too_small_is_told_with_both_sizes_and_a_larger_one_will_do(
    tmp_path, make_folder, free_space
):
    raw = make_folder(tmp_path / "raw", 20)
    free_space(size_of(raw) // 2)
    with pytest.raises(
        PackError, match=r"about 20 samples, [0-9.]+ KB are needed.*free; make room"
    ):
        pack_dataset(raw, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.tar"))
    pack_dataset(raw, tmp_path / "out", space_check=False)
    free_space(2 * size_of(raw) + 20 * 2048)
    assert pack_dataset(raw, tmp_path / "more").samples == 20


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_copy_of_images_to_join_needs_room_of_its_own(tmp_path, jpeg, free_space, dry_run):
    raw = tmp_path / "raw"
    raw.mkdir()
    rows = [{"image_id": f"i{n}", "image": {"bytes": jpeg(n)}} for n in range(9)]
    pq.write_table(pa.Table.from_pylist(rows), raw / "images.parquet")
    (raw / "texts.csv").write_text("image_id,caption\ni1,A cat.\n")
    options = {"join": "image_id", "dry_run": dry_run}
    free_space((raw / "images.parquet").stat().st_size - 1)  # the output itself would fit
    with pytest.raises(PackError, match=r"temporary copy of the images to join, .* are needed"):
        pack_dataset(raw, tmp_path / "out", **options)
    assert pack_dataset(raw, tmp_path / "out", space_check=False, **options).samples == 1
    free_space((raw / "images.parquet").stat().st_size + 4096)
    assert pack_dataset(raw, tmp_path / "out2", **options).samples == 1


def test_what_is_done_already_needs_no_room(tmp_path, make_folder, make_broken, free_space):
    raw = make_folder(tmp_path / "raw", 20)
    make_broken(raw)
    with pytest.raises(PackError, match="rejected"):
        pack_dataset(raw, tmp_path / "out", shard_size=1, max_rejects=3)
    free_space(size_of(raw) // 2 + 5 * 2048)
    assert pack_dataset(raw, tmp_path / "out", shard_size=1, max_rejects=4).samples == 20
