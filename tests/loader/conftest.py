"""A small packed dataset of real photographs: several images, text alone, several shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import skimage
from PIL import Image

import datapipe

PHOTOS = Path(skimage.__file__).parent / "data"
SAMPLES = 37


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """37 samples in five shards: every 7th has two images, every 10th none."""
    raw = tmp_path_factory.mktemp("raw")
    records = []
    photos = [Image.open(PHOTOS / name).convert("RGB") for name in ("chelsea.png", "rocket.jpg")]
    for number in range(SAMPLES):
        count = 0 if number % 10 == 9 else 2 if number % 7 == 3 else 1
        names = []
        for image in range(count):
            left = (number * 13 + image * 50) % 120
            crop = photos[number % 2].crop((left, left, left + 160 + number, left + 120))
            name = f"{number}-{image}.{'png' if number % 5 == 0 else 'jpg'}"
            crop.save(raw / name)
            names.append(name)
        question = "<image>" * count + f"What is number {number}?"
        record: dict[str, Any] = {
            "id": f"id-{number}",
            "conversations": [
                {"from": "human", "value": question},
                {"from": "gpt", "value": f"It is {number}."},
            ],
        }
        if names:
            record["image"] = names[0] if count == 1 else names
        records.append(record)
    (raw / "data.json").write_text(json.dumps(records))
    out = tmp_path_factory.mktemp("packed") / "shards"
    datapipe.pack_dataset(raw, out, shard_size=8)
    return out


@pytest.fixture
def make(packed: Path) -> Callable[..., datapipe.Loader]:
    """Makes loaders of small images on `packed`."""

    def make_loader(**options: Any) -> datapipe.Loader:
        options.setdefault("batch_size", 4)
        options.setdefault("num_workers", 2)
        options.setdefault("image", datapipe.ImageSpec(size=32))
        return datapipe.make_loader(packed, **options)

    return make_loader
