"""Derived files: damage to them is mended, and they go to the cache if they must."""

import errno
from contextlib import suppress

import pytest

from datapipe.index.dataset import open_dataset
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.tar.indexer import index_shards
from datapipe.index.tokens.parts import DTYPES
from datapipe.index.where import parse_where, select_where
from tests.flipping import flipped

from .token_counts import count
from .where_columns import COLUMNS


def select(folder):
    where, options = parse_where("width > 300"), {"keep": None, "fingerprint": "f" * 64}
    return select_where(where, COLUMNS, {}, folder=folder / "where", **options)


DERIVED = {  # what derives it, what is said, how often where it is done twice, a file of it
    "index": (index_shards, "its index goes to", 2, "dataset.json"),
    "list": (lambda path: open_dataset(f"{path}/[x].tar"), "its index goes to", 2, "dataset.json"),
    "columns": (open_dataset, "its columns go to", 1, "columns.json"),
    "selection": (select, "its selections go to", 1, "bits.npy"),
    "tokens": (count, "counts go to", 1, "tokens.json"),
}
READ = {  # what is read of that which is derived
    "columns": lambda found: found.columns.members(0),
    "selection": lambda found: found.bits.tolist(),
    "tokens": lambda found: [getattr(found[0], name).tolist() for name in DTYPES],
}


@pytest.fixture
def folder(tmp_path, make_tar, jpeg):
    members = [("0.jpg", jpeg(0)), ("0.txt", b"hello")]
    return make_tar(tmp_path / "shards" / "x.tar", members).parent


def harmed(content):
    """Yield the content of a file after damage of each kind; None once it is gone."""
    yield from (None, b"", b"{", b"[]", content[:20], content[:-5], flipped(content, -1))
    with suppress(ValueError):  # those that say what the others are
        about = unseal(content)
        for key in {"version", "fingerprint"} & about.keys():
            yield seal(about | {key: 0}).encode()


@pytest.mark.parametrize("kind", ["columns", "selection", "tokens"])
def test_what_is_damaged_gone_or_of_others_is_made_again_as_it_was(kind, folder, contents):
    derive = DERIVED[kind][0]
    if kind == "columns":
        index_shards(folder)
    given = contents(folder)
    expected = READ[kind](derive(folder))
    whole = contents(folder)
    for name in whole.keys() - given.keys():
        for number, content in enumerate(harmed(whole[name])):
            (folder / name).unlink()
            if content is not None:
                (folder / name).write_bytes(content)
            assert READ[kind](derive(folder)) == expected, (name, number)
            assert contents(folder) == whole, (name, number)


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
