"""Dataset and requests of `benchmarks.scale`; nothing is timed."""

from contextlib import chdir

import pytest

from benchmarks.mixtures import data as mixtures_data
from benchmarks.scale.data import SHARD, dataset, planned_from
from benchmarks.scale.requests import requests
from datapipe import make_loader


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path):
    """Benchmarks keep their data in a folder beside where they are started."""
    with chdir(tmp_path):
        yield


def test_a_dataset_that_is_mostly_holes_is_opened_and_planned(tmp_path):
    samples = 2 * SHARD + 500
    folder = dataset(tmp_path, samples)
    assert dataset(tmp_path, samples) == folder  # made once
    text = mixtures_data.text_spec()
    loader = make_loader(folder, text=text, pack=8192, rank=0, world_size=8, num_workers=0)
    drawn = [sample for step in loader.plan.steps() for sample in step.units.samples.tolist()]
    assert sorted(drawn) == list(range(samples))
    read = {path.name for path in planned_from(folder)}
    assert {"dataset.json", "text_tokens.npy", "label_tokens.npy", "sample_image.npy"} <= read
    assert not {path.suffix for path in folder.glob("shard-*")} - {".tar", ".parquet"}
    assert sum(path.stat().st_blocks for path in folder.glob("shard-*")) == 0


def test_mixing_few_shards_reads_few_at_once_and_saves_no_request():
    rows = {row["shuffle"]: row for row in requests(100 * SHARD, [16])}
    assert rows["True"]["requests a sample"] == 1
    assert rows['"shards"']["requests a sample"] == 1
    assert float(str(rows["False"]["requests a sample"])) < 1
    name = "shards of a step, all ranks"
    touched = {shuffle: int(str(row[name])) for shuffle, row in rows.items()}
    assert touched["False"] < touched['"shards"'] <= 16 < touched["True"]
