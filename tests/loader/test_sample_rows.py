"""Rows of the index are the same whether samples are read from one dataset or from several."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datapipe
from datapipe.index.dataset import Dataset
from datapipe.loader.batch.sample_rows import RowReader


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, make_folder: Any) -> list[Path]:
    """Three datasets of one to three shards, and their arrays without images."""
    root = tmp_path_factory.mktemp("rows")
    for number, samples in enumerate((7, 1, 5)):
        raw = make_folder(root / "raw" / str(number), samples)
        datapipe.pack_dataset(raw, root / str(number), shard_size=3)
    datapipe.convert_dataset(root / "2", root / "arrays", image=None)
    return [root / "0", root / "1", root / "arrays"]


@pytest.fixture(params=["one", "several"])
def dataset(request: pytest.FixtureRequest, folders: list[Path]) -> Dataset:
    given: Any = folders[0]
    if request.param == "several":
        given = {str(folder): 1 for folder in folders}
    return datapipe.make_loader(given, batch_size=4, image=None).dataset


ORDERS: dict[str, Callable[[int], Any]] = {
    "ascending": np.arange,
    "descending": lambda count: np.arange(count)[::-1],
    "repeated": lambda count: np.arange(3 * count) * 5 % count,
    "none": lambda count: np.arange(0),
}


@pytest.mark.parametrize("order", ORDERS)
def test_rows_are_those_of_the_columns(dataset: Dataset, order: str) -> None:
    samples = ORDERS[order](len(dataset))
    rows, columns = RowReader(dataset).read(samples), dataset.columns
    assert rows.keys == columns.keys(samples)
    assert rows.shards.tolist() == columns.shards(samples).tolist()
    assert rows.parts.tolist() == dataset.kinds(samples).tolist()
    assert rows.images.tolist() == columns.sample_image[samples].tolist()
    ends = columns.sample_image[samples + 1]
    assert (rows.images + rows.counts).tolist() == ends.tolist()
    members = [columns.members(sample) for sample in samples.tolist()]
    assert [rows.of_sample(index) for index in range(len(samples))] == members
    firsts = columns.sample_member[samples].tolist()
    for first, (start, stop) in zip(firsts, pairwise(rows.bounds.tolist()), strict=True):
        assert rows.members[start:stop].tolist() == list(range(first, first + stop - start))


def test_rows_of_some_samples_are_as_if_they_were_read_alone(dataset: Dataset) -> None:
    reader, samples = RowReader(dataset), np.arange(len(dataset))[::-1]
    chosen = np.array([4, 0, 6, 0])
    some, alone = reader.read(samples).at(chosen), reader.read(samples[chosen])
    assert some.keys == alone.keys
    assert some.bounds.tolist() == alone.bounds.tolist()
    assert [some.of_sample(at) for at in range(4)] == [alone.of_sample(at) for at in range(4)]
