"""Mixtures of datasets that are damaged, packed again, remote, or tars of others."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest

import datapipe
from datapipe import CacheSpec, IndexMismatch, StateMismatch, StoreError
from datapipe.testing import assert_same_batches

from ...remote.server import serving
from ..damage import overwrite_image
from .datasets import SIZES, draws, of


@pytest.fixture
def folder(folders, tmp_path):
    """A copy of the captions."""
    return shutil.copytree(folders["captions"], tmp_path / "captions")


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"pack": 128, "num_workers": 2}], ids=str)
def test_damaged_images_are_skipped(make, mixture, folder, options):
    overwrite_image(folder, 5)
    given = mixture(captions={"path": folder})
    loader = make(given, on_error="skip", **options)
    found = draws(loader)
    whole = draws(make(**options))
    assert found == [draw for draw in whole if draw != ("captions", "000000005")]
    assert len(found) < len(whole)
    assert loader.skipped >= 1
    with pytest.raises(datapipe.SampleError, match=r"000000005.jpg of captions/shard-000000.tar"):
        list(make(given, **options))
    pytest.importorskip("aiohttp")
    with serving(folder) as server:
        there = make(mixture(captions={"path": server.url}), **options)
        with pytest.raises(datapipe.SampleError, match=r"000000005.jpg of .*shard-000000.tar"):
            list(there)


def test_a_dataset_that_is_packed_again_is_noticed(
    make, mixture, folders, folder, make_folder, tmp_path
):
    given = mixture(captions={"path": folder})
    expected = list(make(given))
    state = make(given).state_dict()
    shutil.rmtree(folder)
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 9), folder, shard_size=7)
    again = make(given)
    assert len(set(of("captions", draws(again)))) == 9
    shutil.rmtree(folder)
    shutil.copytree(folders["captions"], folder)
    assert_same_batches(make(given), expected)
    make(given).load_state_dict(state)
    shutil.rmtree(folder)
    with pytest.raises(IndexMismatch, match=str(folder)):
        make(given)


def test_a_dataset_that_changes_after_it_was_opened_is_refused(
    make, mixture, folder, make_folder, tmp_path
):
    loader = make(mixture(captions={"path": folder}))
    shutil.rmtree(folder)
    with pytest.raises((IndexMismatch, StoreError), match=str(folder)):
        list(loader)
    copied = pickle.dumps(loader.components().context.dataset)
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 9), folder, shard_size=7)
    with pytest.raises(IndexMismatch, match="'captions' of a mixture; call make_loader again"):
        pickle.loads(copied).columns.keys(np.arange(52))


def notes_in(folder):
    return sorted((folder / "datapipe" / "mixtures").glob("*.json"))


def test_notes_of_a_mixture_are_only_a_help(make, mixture, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = draws(make(image=None))
    (note,) = notes_in(tmp_path)
    good = note.read_bytes()
    document = json.loads(good)
    notes = document["notes"]
    assert len(notes) == 2 * len(SIZES)
    document["notes"] = dict.fromkeys(notes, 5)
    for content in (b"", b"{", b"[]", b"null", b'"x"', json.dumps(document).encode(), good[:-40]):
        note.write_bytes(content)
        assert draws(make(image=None)) == expected
        assert json.loads(note.read_bytes())["notes"] == notes
    note.unlink()
    note.mkdir()
    assert draws(make(image=None)) == expected
    note.rmdir()
    shutil.rmtree(note.parent)
    note.parent.write_text("a file where the folder should be")
    assert draws(make(image=None)) == expected


def test_notes_are_found_for_other_options_of_the_same_datasets(make, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    some, every = ({"image": None, "where": "images > 0"}, {"image": None})
    first, second = draws(make(**some)), draws(make(**every))
    assert first != second
    assert (draws(make(**some)), draws(make(**every))) == (first, second)
    assert len(notes_in(tmp_path)) == 1


def test_tars_of_others_are_a_dataset_of_a_mixture(
    make, mixture, folders, make_tar, jpeg, tmp_path
):
    for shard in range(2):
        images = [(f"theirs-{4 * shard + number}.jpg", jpeg(number)) for number in range(4)]
        texts = [(name.replace("jpg", "txt"), b"a text") for name, _ in images]
        make_tar(tmp_path / "tars" / f"{shard}.tar", sorted(images + texts))
    for path in (tmp_path / "tars", str(tmp_path / "tars" / "{0..1}.tar")):
        given = mixture() | {"theirs": {"path": path, "weight": 0.3}}
        found = draws(make(given))
        assert set(of("theirs", found)) == {f"theirs-{number}" for number in range(8)}
        left = draws(make(given, exclude=["theirs-3", "chats:000000001"]))
        gone = {("theirs", "theirs-3"), ("chats", "000000001")}
        assert left == [draw for draw in found if draw not in gone]


def test_datasets_here_and_elsewhere_make_one_mixture(make, mixture, folders):
    pytest.importorskip("aiohttp")
    expected = list(make(pack=128, epochs=2))
    with serving(folders["captions"]) as one, serving(folders["one"]) as other:
        given = mixture(captions={"path": one.url}, one={"path": other.url})
        loader = make(given, pack=128, epochs=2, num_workers=2)
        assert_same_batches(loader, expected)
        loader.close()
        cached = make(given, pack=128, epochs=2, cache=CacheSpec(memory=30_000))
        assert_same_batches(cached, expected)
        cached.close()
        state = loader.state_dict()
    make(pack=128, epochs=2).load_state_dict(state)  # content counts, and not where it is


def test_a_folder_under_two_names_is_two_datasets(make, folders):
    folder = folders["captions"]
    given = {name: {"path": folder, "weight": 1} for name in ("first", "second")}
    batches = list(make(given, image=None))
    found = draws(batches)
    first, second = of("first", found), of("second", found)
    assert sorted(set(first)) == sorted(set(second)) == [f"{n:09d}" for n in range(17)]
    assert first[:17] != second[:17]
    assert {n for batch in batches for n in batch["sample"].tolist()} == set(range(34))
    left = draws(make(given, image=None, exclude="second:000000004"))
    assert left == [draw for draw in found if draw != ("second", "000000004")]


def test_a_state_of_other_datasets_is_refused(make, folders):
    state = make().state_dict()
    with pytest.raises(StateMismatch):
        make(str(folders["chats"])).load_state_dict(state)
    with pytest.raises(StateMismatch):
        make().load_state_dict(make(str(folders["chats"])).state_dict())


def test_a_file_of_a_mixture_is_a_mixture(make, folders, tmp_path):
    names = ("captions", "drawings")
    lines = [f"  {name}: {{path: {os.path.relpath(folders[name], tmp_path)}}}" for name in names]
    (tmp_path / "mixture.yaml").write_text("\n".join(["datasets:", *lines]))
    given = {name: {"path": folders[name]} for name in names}
    assert_same_batches(make(tmp_path / "mixture.yaml"), make(given))
