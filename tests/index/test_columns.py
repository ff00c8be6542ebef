"""The mapped columns follow the manifest: rebuilt when missing or stale, refused when wrong."""

import errno
import json
import os
import shutil
from contextlib import suppress

import numpy as np
import pytest

import datapipe
from datapipe.errors import DatapipeError, IndexMismatch
from datapipe.index.dataset import open_dataset
from datapipe.index.files import derived
from datapipe.index.files.sealed_json import seal, unseal
from datapipe.index.manifest import Arrays, Contribution, Manifest, Shard
from datapipe.index.parquet import read_index
from datapipe.index.tar.indexer import index_shards
from datapipe.index.tokens.columns import DTYPES
from datapipe.index.where import parse_where, select_where
from tests.flipping import flipped
from tests.programs import python

from .token_counts import count
from .where_columns import COLUMNS


@pytest.fixture
def packed(tmp_path, make_folder):
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 6), tmp_path / "out", shard_size=4)
    return tmp_path / "out"


def test_columns_are_plain_npy_files_of_what_the_parquet_index_holds(packed):
    columns = open_dataset(packed).columns
    assert all(np.load(path).ndim == 1 for path in (packed / "columns").glob("*.npy"))
    stored = np.load(packed / "columns" / "member_offset.npy")
    assert (stored.dtype, stored.tolist()) == (np.int64, columns.member_offset.tolist())
    tables = [read_index(path) for path in sorted(packed.glob("*.parquet"))]
    keys = [key for table in tables for key in table["key"].to_pylist()]
    offsets = [offset for table in tables for row in table["offset"].to_pylist() for offset in row]
    sums = [crc32 for table in tables for row in table["crc32"].to_pylist() for crc32 in row]
    assert [columns.key(sample) for sample in range(6)] == keys
    assert columns.member_offset.tolist() == offsets
    assert columns.member_crc32.tolist() == sums
    assert [columns.shard(sample) for sample in range(6)] == [0, 0, 0, 0, 1, 1]
    assert columns.image_width.tolist() == [40, 41, 42, 43, 44, 45]


_READS = """
import os, sys
from pathlib import Path
from datapipe.index.parquet import read_index
before = len(os.listdir("/proc/self/task"))
read_index(Path(sys.argv[1]))
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_no_thread_outlives_the_reading_of_an_index(packed):
    """A native one that lets go of Python's bytes while the interpreter ends aborts the process."""
    assert python(_READS, packed / "shard-000000.parquet", check=True).stdout == "0\n"


@pytest.fixture
def nowhere(packed, monkeypatch, temporary, deny):
    """Let neither the dataset's folder nor the user's cache folder be written, even by root."""
    deny(packed)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    shutil.rmtree(packed / "columns")
    return packed


def test_columns_go_to_a_temporary_folder_of_the_user_where_nothing_else_can_be_written(
    nowhere, temporary, caplog, monkeypatch
):
    (temporary / "datapipe-12345").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(derived.os, "getuid", lambda: 12345)
        with pytest.raises(DatapipeError, match="nor can /proc/none/datapipe/"):
            open_dataset(nowhere)
    loader = datapipe.make_loader(nowhere, batch_size=2, where="width > 40")
    assert len(list(loader)) == 3
    home = temporary / f"datapipe-{os.getuid()}"
    assert f"its columns go to {home}" in caplog.text
    assert home.stat().st_mode & 0o777 == 0o700


def test_columns_that_can_be_written_nowhere_name_the_folders_and_the_remedy(
    nowhere, temporary, monkeypatch
):
    temporary.rmdir()
    message = f"{nowhere} cannot be written, nor can /proc/none/datapipe/.*set XDG_CACHE_HOME"
    with pytest.raises(DatapipeError, match=message):
        open_dataset(nowhere)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "~")  # as Python finds it for users without one
    with pytest.raises(DatapipeError, match="there is no home folder; set XDG_CACHE_HOME"):
        open_dataset(nowhere)


def test_a_shard_of_another_size_or_none_is_refused(packed):
    shard = packed / "shard-000001.tar"
    shard.write_bytes(shard.read_bytes() + bytes(512))
    with pytest.raises(IndexMismatch, match=r"shard-000001\.tar has \d+ bytes, its index says \d+"):
        open_dataset(packed)
    shard.unlink()
    with pytest.raises(IndexMismatch, match=r"shard-000001\.tar is missing; restore it"):
        open_dataset(packed)


@pytest.mark.parametrize("kind", ["shards", "arrays", "tars"])
def test_an_index_file_that_is_cut_or_missing_is_noticed_although_columns_are_there(
    packed, tmp_path, make_tar, kind
):
    folder, name, remedy = packed, "shard-000001.parquet", "pack the raw data again"
    if kind == "arrays":
        folder, name, remedy = tmp_path / "arrays", "part-000001.parquet", "convert the shards"
        datapipe.convert_dataset(packed, folder, image=datapipe.ImageSpec(size=8))
    elif kind == "tars":
        folder, name, remedy = tmp_path / "a b", "0.index.parquet", "datapipe index --force '/"
        make_tar(folder / "0.tar", [("0.txt", b"hello")])
    assert datapipe.make_loader(folder, batch_size=1)
    (folder / name).write_bytes(b"PAR1")
    cut = r"has 4 bytes, it had \d+; it was cut or replaced"
    with pytest.raises(IndexMismatch, match=rf"{name} {cut}[:;] restore it, or .*{remedy}"):
        datapipe.make_loader(folder, batch_size=1)
    (folder / name).unlink()
    with pytest.raises(IndexMismatch, match=rf"{name} is missing[:;] restore it, or .*{remedy}"):
        datapipe.make_loader(folder, batch_size=1)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 nonsense", "of another shard"])
def test_a_missing_or_damaged_index_is_refused(packed, content):
    (packed / "columns" / "columns.json").unlink()
    index = packed / "shard-000000.parquet"
    if content == "of another shard":
        content = (packed / "shard-000001.parquet").read_bytes()
    index.unlink() if content is None else index.write_bytes(content)
    with pytest.raises(IndexMismatch, match=r"index of the shard is missing|is not the index that"):
        open_dataset(packed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: {}, "was not written by datapipe"),
        (lambda document: document | {"version": 99}, "format version 99.*upgrade datapipe"),
        (lambda document: document | {"shards": [{"name": "x"}]}, "is damaged"),
        (lambda document: [], "was not written by datapipe"),
        (None, r"dataset\.json is damaged: .*; restore it"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(packed, change, message):
    manifest = packed / "dataset.json"
    document = unseal(manifest.read_bytes())
    manifest.write_text(json.dumps(change(document)) if change else "{")
    with pytest.raises(IndexMismatch, match=message):
        open_dataset(packed)


@pytest.mark.campaign
def test_too_many_different_extensions_are_refused_with_an_example(tmp_path, make_tar):
    make_tar(tmp_path / "x.tar", [("clip.txt", b"a"), *((f"clip.{i}", b"") for i in range(65_535))])
    with pytest.raises(IndexMismatch, match="different extensions of members, such as '"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("kind", ["shards", "arrays"])
def test_a_copy_without_its_manifest_is_not_taken_for_tars_of_someone_else(packed, tmp_path, kind):
    folder = packed
    if kind == "arrays":
        folder = tmp_path / "arrays"
        datapipe.convert_dataset(packed, folder, image=datapipe.ImageSpec(size=8))
    (folder / "dataset.json").unlink()
    before = sorted(folder.rglob("*"))
    for read in (open_dataset, index_shards):
        with pytest.raises(IndexMismatch, match=r"parts of a dataset .* without its dataset.json"):
            read(folder)
    assert sorted(folder.rglob("*")) == before


HARD = 'ü},\n   {"x": ['  # as the text that stands between two shards of a manifest


def shard(name):
    return Shard(name=name, index="i", samples=1, images=2, bytes=3, index_sha256="0")


def part(**options):
    return Contribution(shards=1, inputs=2, inputs_sha256="0", rejected=0, options=options)


@pytest.mark.parametrize("shards", [(), (shard(HARD),), (shard("a"), shard(HARD), shard("c"))])
@pytest.mark.parametrize(
    "parts", [(), (part(), part(text=HARD, nested={"list": [1, {"a": None}]}))]
)
@pytest.mark.parametrize("arrays", [None, Arrays(files={"b": 1, "a": 2}, checksums_crc32=3)])
def test_the_manifest_is_written_as_json_with_an_indent_of_one(shards, parts, arrays):
    text = Manifest(shards=shards, parts=parts, arrays=arrays).to_json()
    document = json.loads(text)
    assert text == json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    assert document["shards"] == [vars(one) for one in shards]
    assert document["parts"] == [vars(one) for one in parts]


# Derived files: damage to them is mended, and they go to the cache if they must.


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
