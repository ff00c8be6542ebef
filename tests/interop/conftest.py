"""Small datasets, as packed."""

import pytest

from datapipe import pack_dataset


@pytest.fixture
def packed_captions(tmp_path, make_folder):
    """Four shards of eleven images with captions."""
    pack_dataset(make_folder(tmp_path / "raw", 11), tmp_path / "out", shard_size="3")
    return tmp_path / "out"


@pytest.fixture
def packed_mixture(tmp_path, make_llava):
    """Three shards of nine records: one image, several images, text alone."""
    records = [
        {
            "image": [None, f"{i}.jpg", [f"{i}.jpg", f"{i}-b.jpg"]][i % 3],
            "conversations": [{"from": "human", "value": f"question {i}, größer"}],
        }
        for i in range(9)
    ]
    pack_dataset(make_llava(tmp_path / "raw", records), tmp_path / "out", shard_size="4")
    return tmp_path / "out"
