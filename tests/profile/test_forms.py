"""Which form of a dataset is advised: tables of figures, and a look at real ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import datapipe
from datapipe import ImageSpec, PlanError
from datapipe.index.dataset import open_dataset
from datapipe.profile.sizes import FormSizes
from datapipe.profile.storage_advisor import Facts, advise, forms, look

GB = 10**9
FACTS = Facts(
    images=100_000,
    sizes=FormSizes(shards=8 * GB, cache=33_900_000_000, arrays=33_870_000_000),
    decode=1 / 600,
    copy=1 / 30_000,
    cores=8,
    memory=64 * GB,
    disk=500 * GB,
)


def test_what_each_form_takes_and_gives() -> None:
    shards, cache, arrays = forms(FACTS)
    assert shards.rate == pytest.approx(4800)
    assert shards.read == 80_000
    assert cache.memory == 33_900_000_000
    assert cache.disk == shards.disk == 8 * GB
    assert cache.rate == arrays.rate == pytest.approx(240_000)
    assert arrays.disk == 33_870_000_000
    assert arrays.read == 338_700
    assert arrays.before == pytest.approx(100_000 / 4800)
    assert arrays.memory == shards.memory == shards.before == 0


@pytest.mark.parametrize(
    ("changes", "rate", "epochs", "expected"),
    [
        ({}, 2000, 3, ["shards: 4 of 8 cores decode 2,000 images/s"]),
        ({}, 4000, 3, ["shards: 8 of 8 cores"]),
        ({}, 10_000, 1, ["in a single epoch every image is decoded once"]),
        ({}, 10_000, 3, ["CacheSpec(memory='33900MB')", "arrays of 33.9 GB, which the page cache"]),
        ({"memory": 16 * GB}, 10_000, 3, ["read from storage, 3.4 GB/s of it"]),
        ({"disk": GB}, 10_000, 3, ["CacheSpec(memory='33900MB')"]),
        ({"disk": GB, "memory": GB}, 10_000, 3, ["neither a cache nor arrays fit"]),
        ({}, None, 3, ["less than 4,000 images/s, shards keep up", "CacheSpec", "arrays of"]),
        ({"disk": GB, "memory": GB}, None, 3, ["shards keep up", "neither a cache"]),
        ({"decode": None}, 10_000, 3, ["arrays already"]),
    ],
    ids=str,
)
def test_what_is_advised(
    changes: dict[str, int], rate: float | None, epochs: int, expected: list[str]
) -> None:
    lines = advise(replace(FACTS, **changes), rate=rate, epochs=epochs)
    assert len(lines) == len(expected)
    for line, part in zip(lines, expected, strict=True):
        assert part in line


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(5):
        noise = np.random.default_rng(number).integers(0, 256, (60, 80, 3), np.uint8)
        Image.fromarray(noise).save(raw / f"{number}.png")
        (raw / f"{number}.txt").write_text("four")
    datapipe.pack_dataset(raw, tmp_path / "shards")
    return tmp_path / "shards"


def test_looking_at_a_dataset(shards: Path, tmp_path: Path) -> None:
    facts = look(open_dataset(shards), ImageSpec(size=32))
    assert facts.images == 5
    assert facts.sizes.shards == sum(path.stat().st_size for path in shards.glob("*.tar"))
    assert facts.sizes.arrays == 5 * 32 * 32 * 3 + 20
    assert facts.sizes.arrays < facts.sizes.cache < facts.sizes.arrays + 5 * 256
    assert facts.decode is not None
    assert 0 < facts.copy < facts.decode
    assert facts.memory > 0
    datapipe.convert_dataset(shards, tmp_path / "arrays", image=ImageSpec(size=32))
    there = look(open_dataset(tmp_path / "arrays"), ImageSpec(size=32))
    assert there.decode is None
    files = ("images.npy", "texts.npy")
    written = sum(np.load(tmp_path / "arrays" / name).nbytes for name in files)
    assert there.sizes.arrays == written
    assert [cost.name for cost in forms(there)] == ["arrays"]


def test_what_cannot_be_chosen_is_refused(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="many sizes"):
        look(open_dataset(shards), ImageSpec(resize="native"))
    raw = tmp_path / "sentences"
    raw.mkdir()
    lines = [json.dumps({"conversations": [{"from": "human", "value": "Yes?"}]})] * 3
    (raw / "data.jsonl").write_text("\n".join(lines))
    datapipe.pack_dataset(raw, tmp_path / "packed", format="llava")
    with pytest.raises(PlanError, match="holds no images"):
        look(open_dataset(tmp_path / "packed"), ImageSpec(size=32))
