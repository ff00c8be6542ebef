"""Raw data that an output belongs to, odd data included."""

import shutil

import pytest

from datapipe import IndexMismatch, PackError
from datapipe.pack.pack_dataset import pack_dataset


def test_a_finished_pack_is_not_mistaken_for_one_of_other_raw_data(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 4)
    pack_dataset(raw, tmp_path / "out")
    assert pack_dataset(raw, tmp_path / "out").finished_before
    moved = shutil.move(raw, tmp_path / "moved")
    assert pack_dataset(moved, tmp_path / "out").finished_before
    other = make_folder(tmp_path / "other", 5)
    with pytest.raises(PackError, match="4 inputs then, now 5"):
        pack_dataset(other, tmp_path / "out")


def test_rejects_that_were_mended_leave_no_trace(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 6)
    whole = (raw / "000.jpg").read_bytes()
    for name in ("001.jpg", "002.jpg"):
        (raw / name).write_bytes(b"")
    with pytest.raises(PackError, match="max-rejects"):
        pack_dataset(raw, tmp_path / "out", max_rejects=1, shard_size=2)
    for name in ("001.jpg", "002.jpg"):
        (raw / name).write_bytes(whole)
    pack_dataset(raw, tmp_path / "out", max_rejects=1, shard_size=2)
    assert (tmp_path / "out" / "rejects.jsonl").read_bytes() == b""


def test_linked_folders_are_followed_and_circular_links_rejected(tmp_path, make_folder, rejects):
    one, two = (make_folder(tmp_path / "raw" / name, 1) for name in ("one", "two"))
    (one / "link").symlink_to(two)
    (two / "link").symlink_to(one)
    assert pack_dataset(tmp_path / "raw", tmp_path / "out", max_rejects=9).samples == 4
    sources = [line["source"] for line in rejects(tmp_path / "out")]
    assert sources == ["one/link/link", "two/link/link"]


def test_a_packed_folder_with_a_shard_missing_is_not_called_finished(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 4)
    pack_dataset(raw, tmp_path / "out", shard_size=2)
    (tmp_path / "out" / "shard-000001.tar").unlink()
    with pytest.raises(IndexMismatch, match="pack the raw data again"):
        pack_dataset(raw, tmp_path / "out", shard_size=2)


def test_a_rehearsal_refuses_what_the_pack_would(tmp_path, make_folder):
    raw = make_folder(tmp_path / "raw", 1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").touch()
    for dry_run in (True, False):
        with pytest.raises(PackError, match=r"neither empty nor an unfinished pack.*thesis\.doc"):
            pack_dataset(raw, tmp_path / "full", dry_run=dry_run)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.doc"]


def test_folder_names_that_look_like_addresses_are_folders(tmp_path, make_folder, monkeypatch):
    make_folder(tmp_path / "raw", 2)
    monkeypatch.chdir(tmp_path)
    assert pack_dataset("raw", "s3:").samples == 2
