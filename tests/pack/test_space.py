"""Free space is compared with the output before anything is written."""

import shutil

import pytest

from datapipe import PackError, pack_dataset
from datapipe.pack import space


@pytest.fixture
def disk(monkeypatch):
    """Sets how much of the disk is free."""

    def set_free(size):
        usage = shutil.disk_usage("/")._replace(free=size)
        monkeypatch.setattr(space.shutil, "disk_usage", lambda path: usage)

    return set_free


def size_of(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_disk_that_is_too_small_is_told_with_both_sizes(tmp_path, make_folder, disk):
    raw = make_folder(tmp_path / "raw", 20)
    disk(size_of(raw) // 2)
    with pytest.raises(
        PackError, match=r"about 20 samples, [0-9.]+ KB are needed.*free; make room"
    ):
        pack_dataset(raw, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.tar"))
    pack_dataset(raw, tmp_path / "out", space_check=False)


def test_a_disk_that_is_just_large_enough_will_do(tmp_path, make_folder, disk):
    raw = make_folder(tmp_path / "raw", 20)
    disk(2 * size_of(raw) + 20 * 2048)
    assert pack_dataset(raw, tmp_path / "out").samples == 20


def test_what_is_done_already_needs_no_room(tmp_path, make_folder, make_broken, disk):
    raw = make_folder(tmp_path / "raw", 20)
    make_broken(raw)
    with pytest.raises(PackError, match="rejected"):
        pack_dataset(raw, tmp_path / "out", shard_size=1, max_rejects=3)
    disk(size_of(raw) // 2 + 5 * 2048)
    assert pack_dataset(raw, tmp_path / "out", shard_size=1, max_rejects=4).samples == 20
