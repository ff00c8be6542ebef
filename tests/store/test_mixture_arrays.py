"""Arrays of a mixture are opened when they are needed, and compared before they are used."""

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datapipe
from datapipe.errors import IndexMismatch
from datapipe.index.dataset import open_dataset
from datapipe.store.mixture_arrays import MixtureArrays
from datapipe.store.open import open_arrays, open_store

from ..index.dataset_parts import Opener, mixture_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, make_folder: Any) -> list[Path]:
    """Shards, and two datasets of arrays."""
    root = tmp_path_factory.mktemp("arrays")
    datapipe.pack_dataset(make_folder(root / "raw", 5), root / "shards")
    for name in "ab":
        image = datapipe.ImageSpec(size=8)
        datapipe.convert_dataset(root / "shards", root / name, image=image)
    return [root / name for name in ("shards", "a", "b")]


def arrays_of(folders: list[Path], **counts: int) -> MixtureArrays:
    mixture = mixture_of(folders, **counts)
    arrays = open_arrays(mixture, open_store(mixture), images=True)
    assert arrays is not None
    return arrays


def test_a_part_is_opened_once_and_when_it_is_needed(folders):
    arrays = arrays_of(folders)
    Opener.opened = 0
    assert arrays.hold(np.array([2, 0, 1])).tolist() == [True, False, True]
    assert Opener.opened == 0
    assert arrays.part(2) is arrays.part(2)
    assert Opener.opened == 1


def test_another_process_opens_the_parts_itself(folders):
    arrays = arrays_of(folders)
    held = arrays.part(1).images
    again = pickle.loads(pickle.dumps(arrays)).part(1).images
    assert held is not None
    assert again.data.tolist() == held.data.tolist()


def test_damaged_images_are_named_until_they_are_compared(folders, tmp_path):
    copy = shutil.copytree(folders[2], tmp_path / "b")
    arrays = arrays_of([folders[1], copy])
    with (copy / "images.npy").open("r+b") as file:
        file.seek(-8 * 8 * 3, os.SEEK_END)  # the last image of five
        file.write(bytes(8 * 8 * 3))
    first = int(arrays.image_edges[1])
    images = first + np.array([4, 3, 0])
    for _ in range(2):
        assert arrays.damaged_images(images) == [0]
        assert arrays.damaged_images(images[1:]) == []


def test_images_that_are_not_those_of_the_index_are_refused(folders):
    with pytest.raises(IndexMismatch, match="holds 5 images, and the index 6"):
        arrays_of(folders, images=6).part(1)


def test_a_dataset_of_shards_has_no_arrays(folders):
    dataset = open_dataset(folders[0])
    assert open_arrays(dataset, open_store(dataset), images=True) is None
