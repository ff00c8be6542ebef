"""Whatever a sample holds, every reader of WebDataset tars gives back its very bytes."""

import json
import tarfile
from argparse import Namespace
from pathlib import Path

import pyarrow.parquet as pq
import webdataset
import wids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wids import wids_index

from datapipe.index.manifest import read_manifest
from datapipe.index.sidecars import write_sidecars
from datapipe.index.tar.headers import TarScanner


def by_tarfile(path):
    with tarfile.open(path) as tar:
        for info in tar:
            assert info.isreg()
            assert (info.mtime, info.mode, info.uid, info.gid) == (0, 0o644, 0, 0)
            yield info.name, tar.extractfile(info).read()


def by_webdataset(path):
    for sample in webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False):
        key = sample.pop("__key__")
        for ext, value in sample.items():
            if not ext.startswith("__"):
                yield f"{key}.{ext}", value


def by_wids(path):
    tar = wids.wids.IndexedTarSamples(path=str(path))
    for number in reversed(range(len(tar))):
        sample = tar[number]
        key = sample.pop("__key__")
        for ext, value in sample.items():
            yield key + ext, value.read()
    tar.close()


def by_our_scanner(path):
    with TarScanner(path) as tar:
        for member in tar:
            yield member.name, tar.read(member.offset, member.size)


def by_the_index(path):
    content = path.read_bytes()
    for row in pq.read_table(path.with_suffix(".parquet")).to_pylist():
        for ext, offset, size in zip(row["ext"], row["offset"], row["size"], strict=True):
            yield f"{row['key']}.{ext}", content[offset : offset + size]


READERS = (by_tarfile, by_webdataset, by_wids, by_our_scanner, by_the_index)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_reader_gives_every_member_of_every_sample(written, sample_lists, data):
    with written(data.draw(sample_lists)) as (folder, expected):
        shards = sorted(folder.glob("*.tar"))
        for reader in READERS:
            found = {}
            for name, content in (member for path in shards for member in reader(path)):
                key, _, ext = name.partition(".")
                assert ext not in found.setdefault(key, {})
                found[key][ext] = content
            assert found == expected, reader
            assert reader is by_wids or list(found) == list(expected)
        for path in shards:
            names = [name for name, _ in by_tarfile(path)]
            assert all(name.isascii() and len(name) <= 100 for name in names)
            assert not any(" " in name or "/" in name or name != name.lower() for name in names)
            keys = [name.partition(".")[0] for name in names]
            assert keys == sorted(keys)  # members of a sample stand together


def test_the_list_that_we_write_is_the_one_that_widsindex_makes(packed_captions, monkeypatch):
    write_sidecars(packed_captions, read_manifest(packed_captions), ["wids"])
    ours = json.loads((packed_captions / "shardindex.json").read_text())
    monkeypatch.chdir(packed_captions)
    names = [path.name for path in packed_captions.glob("*.tar")]
    options = {"output": "theirs.json", "name": "", "base": None, "info": None}
    wids_index.main_create(Namespace(files=names, **options))
    theirs = json.loads(Path("theirs.json").read_text())
    for shard in theirs["shardlist"]:
        del shard["md5sum"]  # would need every byte
    assert ours == theirs
