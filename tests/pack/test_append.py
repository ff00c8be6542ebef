"""Data added to a finished dataset: the old shards stay, the new follow."""

import json
import shutil

import pytest

from datapipe import PackError, make_loader, pack_dataset
from datapipe.index.files.sealed_json import seal
from datapipe.index.tar.indexer import index_shards


@pytest.fixture
def raws(tmp_path, make_folder, make_broken):
    """Two folders of raw data; the second has broken images."""
    first, second = make_folder(tmp_path / "first", 5), make_folder(tmp_path / "second", 4)
    make_broken(second)
    return first, second


@pytest.fixture
def appended(tmp_path, raws):
    first, second = raws
    pack_dataset(first, tmp_path / "out", shard_size=2, sidecars="dali,wids,energon")
    pack_dataset(second, tmp_path / "out", shard_size=3, max_rejects=9, append=True)
    return tmp_path / "out"


def test_new_shards_follow_the_old_which_stay_as_they_are(
    tmp_path, raws, appended, contents, members
):
    pack_dataset(raws[0], tmp_path / "alone", shard_size=2)
    before, after = contents(tmp_path / "alone"), contents(appended)
    assert all(after[name] == before[name] for name in before if name.startswith("shard-"))
    keys = list(members(appended))
    assert len(keys) == len(set(keys)) == 9
    assert keys[:5] == [f"{number:09d}" for number in range(5)]
    assert min(keys[5:]) >= "000000005"
    index = json.loads(after["shardindex.json"])
    assert len(index["shardlist"]) == sum(name.endswith(".tar.idx") for name in after) == 5
    assert "shard-000004.tar" in after[".nv-meta/split.yaml"].decode()
    document = json.loads(after["dataset.json"])
    assert [part["shards"] for part in document["parts"]] == [3, 2]
    assert (document["samples"], document["rejected"]) == (9, 4)
    assert len(after["rejects.jsonl"].splitlines()) == 4
    assert len(make_loader(appended, batch_size=1, num_workers=0)) == 9
    # Either pack again says that it is done, and writes the sidecars that a kill left as they were.
    (appended / "shardindex.json").write_text("stale")
    (appended / "shard-000004.idx").unlink()
    report = pack_dataset(raws[1], appended, shard_size=3, max_rejects=9, append=True)
    assert (report.finished_before, report.samples) == (True, 9)
    assert pack_dataset(raws[0], appended, shard_size=2).finished_before
    assert contents(appended) == after


def test_an_interrupted_append_is_finished_by_the_same_command(tmp_path, raws, appended, contents):
    out = tmp_path / "again"
    pack_dataset(raws[0], out, shard_size=2, sidecars="dali,wids,energon")
    with pytest.raises(PackError, match="Finished shards are kept"):
        pack_dataset(raws[1], out, shard_size=3, max_rejects=0, append=True)
    assert len(make_loader(out, batch_size=1, num_workers=0)) == 5
    with pytest.raises(PackError, match="being appended here"):
        pack_dataset(raws[0], out, shard_size=2)
    with pytest.raises(PackError, match="other options"):
        pack_dataset(raws[1], out, shard_size=4, max_rejects=9, append=True)
    report = pack_dataset(raws[1], out, shard_size=3, max_rejects=9, append=True)
    assert not report.finished_before
    assert contents(out) == contents(appended)


def test_a_third_part_counts_too_whatever_a_finished_append_left_behind(
    tmp_path, appended, make_folder, contents
):
    before = (appended / "rejects.jsonl").read_bytes()
    again = shutil.copytree(appended, tmp_path / "again")
    (again / ".pack").mkdir()
    head = {"options": {}, "base": "of the dataset before"}
    (again / ".pack" / "journal.jsonl").write_text(seal(head) + "\n")
    (again / ".pack" / "rejects.jsonl").write_text("stale\n")
    third = make_folder(tmp_path / "third", 3)
    (third / "empty.jpg").touch()
    for out in (appended, again):
        report = pack_dataset(third, out, shard_size=3, max_rejects=9, append=True)
        assert (report.samples, report.rejected) == (12, 5)
    after = contents(appended)
    assert contents(again) == after
    assert after["rejects.jsonl"].startswith(before)
    assert len(after["rejects.jsonl"].splitlines()) == 5
    # A script that packs and appends all of them does nothing when it runs again.
    for number, raw in enumerate(("first", "second", "third")):
        options = {"shard_size": 3 if number else 2, "max_rejects": 9, "append": number > 0}
        assert pack_dataset(tmp_path / raw, again, **options).finished_before
    assert contents(again) == after


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("texts", [False, True])
def test_other_data_under_the_names_of_packed_data_are_refused(
    raws, appended, contents, texts, append
):
    before = contents(appended)
    folder = raws[0]
    for number in range(5):
        if texts:
            (folder / f"{number:03d}.txt").write_text(f"another photograph {number}")
        else:  # bytes behind the end of a JPEG are part of its file
            with (folder / f"{number:03d}.jpg").open("ab") as file:
                file.write(bytes(1 + number))
    name = "000.txt" if texts else "000.jpg, as every other image,"
    with pytest.raises(PackError, match=f"{name} is not what a finished shard was packed from"):
        pack_dataset(folder, appended, shard_size=2, append=append)
    assert contents(appended) == before


def test_nothing_is_appended_to_what_is_no_finished_pack(tmp_path, raws, make_tar):
    with pytest.raises(PackError, match=r"no dataset yet.*without --append"):
        pack_dataset(raws[0], tmp_path / "out", append=True)
    with pytest.raises(PackError, match="max-rejects"):
        pack_dataset(raws[1], tmp_path / "out", shard_size=1, max_rejects=0)
    with pytest.raises(PackError, match=r"unfinished.*without --append"):
        pack_dataset(raws[0], tmp_path / "out", append=True)
    make_tar(tmp_path / "foreign" / "x.tar", [("0.txt", b"hello")])
    index_shards(tmp_path / "foreign")
    with pytest.raises(PackError, match="someone else wrote"):
        pack_dataset(raws[0], tmp_path / "foreign", append=True)


def test_keys_of_equal_records_stay_apart_over_appends(tmp_path, make_llava, members):
    records = [{"id": "same", "conversations": [{"from": "human", "value": "Hi"}]}] * 2
    for number in range(2):
        raw = make_llava(tmp_path / f"raw{number}", [*records, *records[:number]])
        pack_dataset(raw, tmp_path / "out", key_from="id", append=bool(number))
    keys = list(members(tmp_path / "out"))
    assert len(keys) == len(set(keys)) == 5
    assert all(key.startswith("same-") for key in keys)


def test_rejects_that_were_cut_are_not_filled_up_with_zeros(tmp_path, raws, caplog):
    out = tmp_path / "out"
    pack_dataset(raws[1], out, max_rejects=9)
    rejects = out / "rejects.jsonl"
    kept = rejects.read_bytes().splitlines(keepends=True)[0]
    rejects.write_bytes(kept)
    (raws[0] / "empty.jpg").write_bytes(b"")
    pack_dataset(raws[0], out, max_rejects=9, append=True)
    assert str(rejects) in caplog.text
    lines = rejects.read_bytes().splitlines(keepends=True)
    assert lines[0] == kept
    assert ["empty.jpg" in json.loads(line)["source"] for line in lines[1:]] == [True]
