"""A small packed dataset of photographs, and loaders of it that do not end."""

from typing import Any

import pytest

import datapipe
from datapipe import ImageSpec

PHOTOS = 48


@pytest.fixture(scope="session")
def photos(tmp_path_factory, encode, crop):
    """48 captioned JPEGs of 320x240 and 240x320 pixels, in three shards."""
    raw = tmp_path_factory.mktemp("raw")
    for number in range(PHOTOS):
        size = (320, 240) if number % 2 else (240, 320)
        image = encode(crop("chelsea.png", size, number % 20), quality=85)
        (raw / f"{number:03d}.jpg").write_bytes(image)
        (raw / f"{number:03d}.txt").write_text(f"photograph {number} of a cat", encoding="utf-8")
    out = tmp_path_factory.mktemp("photos") / "shards"
    datapipe.pack_dataset(raw, out, shard_size=16)
    return out


@pytest.fixture
def endless(photos):
    """Makes loaders of `photos` without an end."""

    def make(**options):
        usual: dict[str, Any] = {"batch_size": 8, "epochs": None, "num_workers": 2}
        usual["image"] = ImageSpec(size=64, normalize="imagenet")
        return datapipe.make_loader(photos, **(usual | options))

    return make
