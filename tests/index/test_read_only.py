"""Derived files go to the cache if the folder of a dataset cannot be written."""

import errno

import pytest

from datapipe.index.dataset import open_dataset
from datapipe.index.tar.indexer import index_shards
from datapipe.index.where import parse_where, select_where

from .token_counts import count, make_manifest
from .where_columns import COLUMNS


def select(folder):
    where, options = parse_where("width > 300"), {"keep": None, "fingerprint": "f" * 64}
    select_where(where, COLUMNS, {}, folder=folder / "where", **options)


DERIVED = {  # what derives it, what is said, how often where it is done twice, a file of it
    "index": (index_shards, "its index goes to", 2, "dataset.json"),
    "list": (lambda path: open_dataset(f"{path}/[x].tar"), "its index goes to", 2, "dataset.json"),
    "columns": (open_dataset, "its columns go to", 1, "columns.json"),
    "selection": (select, "its selections go to", 1, "bits.npy"),
    "tokens": (lambda path: count(path, make_manifest([5])), "counts go to", 1, "tokens.json"),
}


@pytest.fixture
def folder(tmp_path, make_tar):
    return make_tar(tmp_path / "shards" / "x.tar", [("0.txt", b"hello")]).parent


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("kind", DERIVED)
def test_it_goes_to_the_cache_and_is_found_there(
    kind, code, folder, tmp_path, contents, deny, caplog
):
    derive, said, times, file = DERIVED[kind]
    if kind == "columns":
        index_shards(folder)
    before = contents(folder)
    deny(folder, code)
    derive(folder)
    made = contents(tmp_path / "cache")
    derive(folder)
    assert contents(folder) == before
    assert contents(tmp_path / "cache") == made
    assert [name for name in made if name.endswith(f"/{file}")]
    assert caplog.text.count(said) == times


@pytest.mark.parametrize("kind", ["selection", "tokens"])
def test_a_full_disk_is_no_reason_to_go_elsewhere(kind, folder, tmp_path, deny):
    deny(folder, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        DERIVED[kind][0](folder)
    assert not any(path.is_file() for path in (tmp_path / "cache").rglob("*"))
