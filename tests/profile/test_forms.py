"""Sizes of the forms of a dataset."""

import numpy as np
import pytest

import datapipe
from datapipe import ImageSpec
from datapipe.convert.array_files import array_bytes
from datapipe.decode.array_spec import array_spec
from datapipe.decode.transform import make_transform
from datapipe.index.dataset import open_dataset
from datapipe.profile.sizes import cache_bytes


@pytest.fixture
def shards(tmp_path, make_folder):
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 5), tmp_path / "shards")
    return tmp_path / "shards"


def test_the_sizes_of_forms_are_those_that_are_written(shards, tmp_path):
    kept = make_transform(array_spec(ImageSpec(size=32)))
    dataset = open_dataset(shards)
    cache, arrays = cache_bytes(dataset, kept), array_bytes(dataset, kept.spec)
    assert dataset.bytes == sum(path.stat().st_size for path in shards.glob("*.tar"))
    assert arrays < cache < arrays + 5 * 256
    datapipe.convert_dataset(shards, tmp_path / "arrays", image=ImageSpec(size=32))
    files = ("images.npy", "texts.npy")
    written = sum(np.load(tmp_path / "arrays" / name).nbytes for name in files)
    assert arrays == written


@pytest.mark.parametrize("size", [64, None])
def test_a_cache_of_the_size_that_is_estimated_holds_all_samples(shards, size):
    spec = ImageSpec(resize="native") if size is None else ImageSpec(size=size)
    need = cache_bytes(open_dataset(shards), make_transform(spec))

    def share(memory):
        cache = datapipe.CacheSpec(memory=memory, keep="decoded")
        with datapipe.make_loader(shards, batch_size=2, image=spec, cache=cache) as loader:
            return loader.stats()["memory"].expected

    assert share(need) == 1
    assert share(need - 1) < 1
