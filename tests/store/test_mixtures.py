"""Datasets of a mixture are opened when they are needed, and compared before they are used."""

from types import SimpleNamespace

import numpy as np
import pytest

import datapipe
from datapipe.errors import IndexMismatch
from datapipe.store.mixture import MixtureStore
from datapipe.store.open import open_arrays, open_store

from ..index.dataset_parts import Opener, mixture_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory, make_folder):
    """Shards, and two datasets of arrays."""
    root = tmp_path_factory.mktemp("arrays")
    datapipe.pack_dataset(make_folder(root / "raw", 5), root / "shards")
    for name in "ab":
        image = datapipe.ImageSpec(size=8)
        datapipe.convert_dataset(root / "shards", root / name, image=image)
    return [root / name for name in ("shards", "a", "b")]


def test_a_dataset_is_opened_once_and_when_it_is_needed(folders):
    mixture = mixture_of(folders)
    store = open_store(mixture)
    arrays = open_arrays(mixture, store, images=True)
    Opener.opened = 0
    assert arrays.hold(np.array([2, 0, 1])).tolist() == [True, False, True]
    assert Opener.opened == 0
    assert arrays.part(2) is arrays.part(2)
    assert Opener.opened == 1
    assert store.part(0) is store.part(0)
    assert Opener.opened == 2


def test_a_read_of_no_remote_sample_opens_no_dataset():
    opened = []
    store = MixtureStore(opened.append, np.array([0, 2, 5]), [True, False])
    for samples in ([], [(3, [])]):
        fetch = store.begin(samples)
        assert fetch is None or fetch.bytes == 0
    assert opened == []


def test_images_that_are_not_those_of_the_index_are_refused(folders):
    mixture = mixture_of(folders, images=6)
    arrays = open_arrays(mixture, open_store(mixture), images=True)
    with pytest.raises(IndexMismatch, match="holds 5 images, and the index 6"):
        arrays.part(1)


def test_bytes_on_their_way_are_those_of_all_remote_datasets():
    class Remote:
        def begin(self, samples):
            return SimpleNamespace(bytes=10 * len(samples), contents=lambda at: samples[at])

    store = MixtureStore(lambda number: Remote(), np.array([0, 2, 5, 6]), [True, True, False])
    fetch = store.begin([(3, "a"), (0, "b"), (5, "c"), (4, "d")])
    assert fetch.bytes == 30
    assert [fetch.contents(at) for at in range(4)] == [(1, "a"), (0, "b"), [], (2, "d")]
