"""New forms of images go through caches, devices, workers and skipped samples like the others."""

import shutil
from dataclasses import replace

import pytest
import torch

import datapipe
from datapipe.testing import assert_same_batches

from ..campaigns import rare
from ..loader.damage import overwrite_image
from .conftest import FORMS, loader_of
from .losses import fails, loss_of
from .tiny import TINY
from .videos import VIDEO_CASES

SENT = {"device": "cpu", "num_workers": 2}
KEPT = datapipe.CacheSpec("64MB")
WAYS = {
    "threads": SENT,
    "processes": SENT | {"workers": "processes"},
    "cache": {"cache": KEPT},
    "decoded": {"cache": replace(KEPT, keep="decoded")},
    "encoded": {"cache": replace(KEPT, keep="encoded")},
}
TRIED = [
    *((name, way) for name in FORMS for way in ("threads", "processes")),
    *((name, "decoded") for name in FORMS if name not in ("llava_onevision", "lfm2_vl")),
    *(("llava_onevision", "cache"), ("lfm2_vl", "cache"), ("qwen3_vl", "threads")),
    *(("qwen2_5_vl", way) for way in ("processes", "encoded", "cache")),
]


@pytest.mark.parametrize(("name", "way"), TRIED)
def test_batches_are_the_same_by_every_way(name, way, folders, shards, films, tmp_path):
    dataset, options = films if name in VIDEO_CASES else shards, WAYS[way]
    if "cache" in options:
        options = {"cache": replace(options["cache"], disk=tmp_path)}
    common = {"batch_size": 3, "shuffle": True, "epochs": 2}
    plain = loader_of(dataset, folders[name], **common)
    with loader_of(dataset, folders[name], **common, **options) as other:
        assert_same_batches(plain, other)


@pytest.mark.parametrize(
    "name",
    [rare(name) if name == "gemma4" else pytest.param(name, marks=fails(name)) for name in FORMS],
)
def test_a_model_takes_a_batch_with_a_sample_that_was_skipped(name, folders, shards, tmp_path):
    damaged = shutil.copytree(shards, tmp_path / "damaged")
    overwrite_image(damaged, 0)
    model = TINY[name].build("sdpa")
    for options in [{"batch_size": 6}] + [{"pack": 700}] * (TINY[name].packs == "yes"):
        loader = loader_of(damaged, folders[name], on_error="skip", **options)
        with torch.no_grad():
            assert all(torch.isfinite(loss_of(model, batch)) for batch in loader)
        assert loader.skipped == 1
