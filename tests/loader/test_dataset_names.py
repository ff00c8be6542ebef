"""The dataset of each sample of a batch, of each segment of a pack, and in the view of a plan."""

from dataclasses import replace
from pathlib import Path

import pytest

import datapipe
from datapipe import PackSpec
from datapipe.index.dataset import open_dataset
from datapipe.remote.folder import RemoteFolder


@pytest.fixture
def two(packed):
    """Makes loaders of a mixture of two names for one folder."""

    def make(**options):
        mixture = {name: {"path": packed, "weight": 1} for name in ("first", "second")}
        options = {"batch_size": 4, "image": datapipe.ImageSpec(size=16)} | options
        return datapipe.make_loader(mixture, **options)

    return make


def name_of(sample):
    return "first" if sample < 37 else "second"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        (Path("/data/captions"), "captions"),
        (Path("/data/captions/chats/.."), "captions"),
        (Path("/"), "/"),
        (RemoteFolder("memory://bucket/captions/"), "captions"),
    ],
    ids=str,
)
def test_the_name_is_the_last_part_of_the_folder(packed, folder, name):
    assert replace(open_dataset(packed), folder=folder).name == name


def test_names_are_aligned_with_keys(text, two):
    seen = set()
    options = {"pack": PackSpec(256, static_shapes=True), "batch_size": 2, "exclude": [4, 6]}
    options |= {"text": text(), "meta": ("key", "dataset", "sample")}
    for rank in (0, 1):
        for batch in two(rank=rank, world_size=2, **options):
            assert len(batch["dataset"]) == len(batch["key"])
            assert batch["dataset"] == [name_of(sample) for sample in batch["sample"].tolist()]
            seen.update(batch["dataset"])
    assert seen == {"first", "second"}


def test_views_of_steps_name_datasets_where_there_are_several(two, make):
    view = two(rank=0, world_size=2).plan.step(1)
    for rank in view.ranks:
        assert rank.datasets == [name_of(sample) for sample in rank.samples]
    assert view.to_dict()["ranks"][1]["datasets"] == view.ranks[1].datasets
    assert "  first:  " in str(view)
    assert "shards" not in str(make().plan.step(0))
