"""A small packed dataset, and readers of what others were made of it."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import datapipe
from tests.inspect.damage import harmed as harmed
from tests.inspect.damage import originals as originals
from tests.inspect.damage import whole as whole

SAMPLES = 20


@pytest.fixture(scope="module")
def raw(tmp_path_factory, make_folder):
    return Path(make_folder(tmp_path_factory.mktemp("raw"), SAMPLES))


@pytest.fixture(scope="module")
def shards(tmp_path_factory, raw):
    out = tmp_path_factory.mktemp("packed") / "shards"
    datapipe.pack_dataset(raw, out, shard_size=6, workers=1)
    return out


def rows(folder, *without):
    """Every row of the indexes of a dataset, without some of its columns."""
    names = sorted(folder.glob("*.parquet"))
    found = [row for name in names for row in pq.read_table(name).to_pylist()]
    return [{name: row[name] for name in row if name not in without} for row in found]


def data_at_offsets(folder):
    """The bytes that the indexes of a dataset of ours point at, by sample."""
    found = []
    for name in sorted(folder.glob("shard-*.parquet")):
        tar = name.with_suffix(".tar").read_bytes()
        for row in pq.read_table(name).to_pylist():
            pairs = zip(row["offset"], row["size"], strict=True)
            found.append([tar[offset : offset + size] for offset, size in pairs])
    return found
