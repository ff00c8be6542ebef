"""New forms of images go through caches, devices, workers and skipped samples like the others."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import datapipe
from datapipe.index.dataset import open_dataset
from datapipe.testing import assert_same_batches

from ..campaigns import rare
from .tiny import TINY

KEPT = ("pixtral", "idefics3", "gemma4", "glm4v")
FORMS = (*KEPT, "llava_onevision")


@pytest.fixture(scope="module")
def shards(samples_of: Any, packed_samples: Callable[..., Path]) -> Path:
    return packed_samples(samples_of(12))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: TINY[name].case.save(tmp_path_factory.mktemp(name)) for name in FORMS}


def loader_of(shards: Path, folder: Path, **options: Any) -> datapipe.Loader:
    common: dict[str, Any] = {"batch_size": 3, "num_workers": 0}
    return datapipe.make_loader(shards, model=folder, **common | options)


@pytest.mark.parametrize("name", KEPT)
def test_decoded_images_in_a_cache_are_the_same(name, folders, shards, tmp_path):
    cache = datapipe.CacheSpec("64MB", disk=tmp_path, keep="decoded")
    plain = loader_of(shards, folders[name], epochs=2)
    with loader_of(shards, folders[name], epochs=2, cache=cache) as kept:
        assert_same_batches(plain, kept)


def test_encoded_images_are_kept_where_their_form_depends_on_the_sample(folders, shards):
    folder = folders["llava_onevision"]
    plain = loader_of(shards, folder, epochs=2)
    with loader_of(shards, folder, epochs=2, cache="64MB") as kept:
        assert_same_batches(plain, kept)
    with pytest.raises(datapipe.PlanError, match=r"keep='decoded': pad_several.*keep='encoded'"):
        loader_of(shards, folder, cache=datapipe.CacheSpec("64MB", keep="decoded"))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_batches_for_a_device_from_workers_are_the_same(name, folders, shards, workers):
    options: dict[str, Any] = {"num_workers": 2, "workers": datapipe.WorkerSpec(kind=workers)}
    plain = loader_of(shards, folders[name])
    with loader_of(shards, folders[name], device="cpu", **options) as sent:
        assert_same_batches(plain, sent)


@pytest.mark.parametrize("name", [rare(name) if name == "gemma4" else name for name in FORMS])
def test_a_model_takes_a_batch_with_a_sample_that_was_skipped(name, folders, shards, tmp_path):
    packed = open_dataset(shards)
    damaged = shutil.copytree(shards, tmp_path / "damaged")
    member = next(m for m in packed.columns.members(0) if m.ext != "json")
    with (damaged / packed.manifest.shards[0].name).open("r+b") as file:
        file.seek(member.offset + member.size // 2)
        file.write(b"\0" * (member.size - member.size // 2))
    model = TINY[name].build("sdpa")
    for options in ({"batch_size": 6}, {"batch_size": None, "pack": 700}):
        loader = loader_of(damaged, folders[name], on_error="skip", **options)
        for batch in loader:
            valid = batch.pop("valid", None)
            batch["pixel_values"] = batch["pixel_values"].double()
            with torch.no_grad():
                assert torch.isfinite(model(**batch).loss)
            assert valid is None or not bool(valid.all()) or loader.skipped
        assert loader.skipped == 1
