"""Datasets that make_loader takes, and its messages about everything else."""

import gzip
import pickle
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datapipe
from datapipe import DatapipeError, IndexMismatch, Mixture, PlanError, make_loader
from datapipe.index.dataset import open_dataset

from .stated import read

CONTENTS = read("opened_files")


@pytest.mark.parametrize("content", CONTENTS["records"])
def test_raw_records_in_json_are_told_from_a_mixture(tmp_path, content):
    raw = tmp_path / "my captions.json"
    raw.write_text(content)
    for take in (lambda path: make_loader(path, batch_size=1), Mixture.load):
        with pytest.raises(PlanError) as error:
            take(raw)
        assert str(error.value) == (
            f"{raw}: this is raw data (records, not a mixture); pack it first: "
            f"`datapipe pack '{raw}' shards/`"
        )


@pytest.mark.parametrize(("content", "said"), CONTENTS["mistakes"])
def test_a_mistake_in_a_mixture_stays_one_of_a_mixture(tmp_path, content, said):
    (tmp_path / "mixture.json").write_text(content)
    with pytest.raises(PlanError, match=said) as error:
        make_loader(tmp_path / "mixture.json", batch_size=1)
    assert "raw data" not in str(error.value)


def test_large_json_is_not_parsed_as_a_mixture(tmp_path):
    (tmp_path / "captions.json").write_text("[" + " " * (64 << 20) + "]")
    with pytest.raises(PlanError, match=r"this is raw data .*`datapipe pack .*captions\.json sh"):
        make_loader(tmp_path / "captions.json", batch_size=1)


@pytest.fixture
def raw_files(tmp_path, jpeg, make_tar):
    """Files that are no dataset."""
    lines = '{"image": "0.jpg", "caption": "a cat"}\n{"image": "1.jpg", "caption": "a dog"}\n'
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.csv").write_text("image,caption\n0.jpg,a cat\n")
    pq.write_table(pa.table({"image": ["0.jpg"]}), tmp_path / "a.parquet")
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    np.save(tmp_path / "a.npy", np.zeros(3))
    tar = make_tar(tmp_path / "a.tmp", [("0.txt", b"hello")])
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    tar.unlink()
    (tmp_path / "a.zip").write_bytes(b"PK")
    (tmp_path / "a.yaml").write_text("captions/: 1")
    return tmp_path


@pytest.mark.parametrize(("name", "said"), CONTENTS["files"])
def test_a_file_of_raw_data_is_named_with_the_command_that_packs_it(raw_files, name, said):
    for path in (raw_files / name, [raw_files / name]):
        with pytest.raises(IndexMismatch, match=said):
            make_loader(path, batch_size=1)


def test_a_folder_of_images_is_named_with_the_command_that_packs_it(tmp_path, make_folder):
    make_folder(tmp_path / "photos" / "deep")
    with pytest.raises(IndexMismatch) as error:
        make_loader(tmp_path / "photos", batch_size=1)
    assert str(error.value) == (
        f"{tmp_path}/photos: this is raw data (deep/000.jpg, deep/001.jpg, deep/002.jpg, ...); "
        f"pack it first: `datapipe pack {tmp_path}/photos shards/`"
    )


def test_other_folders_say_what_to_give(tmp_path, packed):
    for name in ("empty", "notes", "both"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes" / "todo.md").touch()
    image = datapipe.ImageSpec(size=8)
    datapipe.convert_dataset(packed, tmp_path / "both" / "train", image=image)
    for name, said in CONTENTS["folders"]:
        with pytest.raises(DatapipeError, match=said) as error:
            make_loader(tmp_path / name, batch_size=1)
        assert "RAW shards" not in str(error.value)


def test_a_denied_folder_is_named(tmp_path):
    denied = Path("/proc/sys/vm/compact_memory")  # not even root may read it
    if not denied.exists():
        pytest.skip(f"there is no {denied}")
    (tmp_path / "dataset.json").symlink_to(denied)
    with pytest.raises(
        IndexMismatch, match=r"dataset\.json: Permission denied; let this user read"
    ):
        make_loader(tmp_path, batch_size=1)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_list_of_datasets_draws_each_sample_once(packed, make_folder, tmp_path, make, shuffle):
    datapipe.pack_dataset(make_folder(tmp_path / "raw"), tmp_path / "small")
    two = [packed, tmp_path / "small"]
    options = {"batch_size": 5, "image": None, "meta": ("dataset", "key"), "shuffle": shuffle}

    def drawn(path, epochs=1):
        batches = make_loader(path, epochs=epochs, **options)
        return Counter(
            (Path(name), key)
            for batch in batches
            for name, key in zip(batch["dataset"], batch["key"], strict=True)
        )

    expected = [(folder, key) for folder in two for _, key in drawn(folder)]
    assert len(expected) == 37 + 8
    assert drawn(two, epochs=2) == Counter(dict.fromkeys(expected, 2))
    # A list of one is that dataset.
    one = make_loader((packed,), batch_size=4, seed=3, image=None)
    one.load_state_dict(make(seed=3).state_dict())


def test_a_list_of_tars_is_one_dataset(tmp_path, make_tar):
    tars = [
        make_tar(tmp_path / name, [(f"{name[0]}.txt", name.encode())])
        for name in ("b.tar", "a.tar")
    ]
    loader = make_loader(tars, batch_size=1, shuffle=False)
    assert [text for batch in loader for text in batch["text"]] == ["b.tar", "a.tar"]


def test_lists_that_cannot_be_meant_are_refused(packed, raw_files):
    for given, error, said in (
        ([], PlanError, r"path \[\]: give at least one dataset"),
        ([packed, packed], PlanError, r"path names '.*' twice; name .* once, or .*: '2x'}"),
        ([3], PlanError, r"path \[3\]: give .* or a list, each a path"),
        (
            [raw_files / "a.yaml", packed],
            IndexMismatch,
            r"a\.yaml may be the file of a mixture.*give one of its data",
        ),
    ):
        with pytest.raises(error, match=said):
            make_loader(given, batch_size=1)


def test_the_home_folder_is_written_as_in_a_shell(tmp_path, make_folder, make_tar, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    make_folder(tmp_path / "raw")
    datapipe.pack_dataset("~/raw", "~/shards")
    image = datapipe.ImageSpec(size=16)
    datapipe.convert_dataset(Path("~/shards"), "~/arrays", image=image)
    for name in ("0", "1"):
        make_tar(tmp_path / "tars" / f"{name}.tar", [(f"{name}.txt", b"hello")])
    assert datapipe.index_shards("~/tars").samples == 2
    cache = datapipe.CacheSpec(disk="~/kept", plan="~/plans")
    assert (cache.disk, cache.plan) == (f"{tmp_path}/kept", f"{tmp_path}/plans")
    (tmp_path / "mixture.yaml").write_text("~/shards: 1")
    for path in (
        *("~/shards/", Path("~/shards"), "~/arrays", "~/tars/{0..0}.tar", "~/mixture.yaml"),
        *({"~/shards": 1}, ["~/shards", "~/tars"], "~/tars/0.tar::~/tars/1.tar"),
    ):
        assert len(make_loader(path, batch_size=1, image=None))
    assert not Path("~").exists()


def test_a_folder_whose_name_begins_with_a_tilde_is_read(tmp_path, packed, monkeypatch):
    shutil.copytree(packed, tmp_path / "~" / "shards")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nowhere")
    assert len(make_loader("~/shards", batch_size=37)) == 1


def test_another_process_opens_the_same_dataset_or_none(packed, tmp_path):
    """As on a node whose folder of this name holds something else."""
    folder = shutil.copytree(packed, tmp_path / "shards")
    opener = pickle.dumps(open_dataset(folder).opener)
    assert pickle.loads(opener)().fingerprint == open_dataset(packed).fingerprint
    shutil.rmtree(folder)
    datapipe.select_samples(packed, folder, number=5)
    with pytest.raises(IndexMismatch, match="is a different dataset here than where"):
        pickle.loads(opener)()
