"""A small packed dataset of photographs, and loaders of it that do not end."""

from itertools import count
from typing import Any

import pytest

import datapipe
from datapipe import ImageSpec
from datapipe.profile.measure import samples

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
def delivers(monkeypatch):
    """Sets how many bytes storage says it has delivered whenever it is asked; None if it cannot."""

    def say(each):
        said = count()
        monkeypatch.setattr(
            samples, "bytes_read", lambda _: {} if each is None else {0: each * next(said)}
        )

    return say


@pytest.fixture(scope="session")
def endless(photos):
    """Makes loaders of `photos` without an end."""

    def make(**options):
        usual: dict[str, Any] = {"batch_size": 8, "epochs": None, "num_workers": 2}
        usual["image"] = ImageSpec(size=64, normalize="imagenet")
        return datapipe.make_loader(photos, **(usual | options))

    return make
