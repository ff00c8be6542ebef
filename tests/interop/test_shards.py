"""Whatever a sample holds, every reader of WebDataset tars gives back its very bytes."""

import json
import tarfile
import tempfile
from argparse import Namespace
from contextlib import contextmanager
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
from datapipe.pack.input.raw_sample import Blob, RawImage, RawSample
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.workers.segments import SEGMENT
from datapipe.pack.workers.worker import Preparer
from datapipe.pack.writers.shards import ShardWriter


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


# Words for places of images are drawn too, being in the code; samples they do not fit are rejected.
text = st.text(st.characters(blacklist_categories=("Cs",)), max_size=30).filter(
    lambda drawn: not any(sign in drawn for sign in ("<", "[IMG]"))
)
extensions = st.sampled_from(["cls", "npy", "seg.bin", "Left Eye.PNG.bin", "ü", "wav"])
sizes = st.sampled_from([0, 1, 511, 512, 513, 5000])


@st.composite
def drafts(draw):
    """Content of a sample: number of images, caption, record, other members."""
    sample = {
        "images": draw(st.integers(0, 2)),
        "caption": draw(st.none() | text),
        "record": draw(st.none() | st.dictionaries(text, text | st.integers(), max_size=3)),
        "others": draw(st.lists(st.tuples(extensions, sizes), max_size=3)),
    }
    if not sample["images"] and not (sample["caption"] or "").strip():
        sample["caption"] = "alone"  # a sample has an image or a text
    return sample


@contextmanager
def written(samples, jpeg):
    """A folder of shards, the rows of their index, and {key: {extension: bytes}}."""
    with tempfile.TemporaryDirectory() as name:
        out, work = Path(name) / "out", Path(name) / "work"
        out.mkdir()
        work.mkdir()
        (work / "data").write_bytes(bytes(range(256)) * 20)
        (work / "image").write_bytes(jpeg(1))
        expected = {}
        shards = []
        preparer = Preparer(PrepareOptions(), lambda: memoryview(bytearray(SEGMENT)))
        writer = ShardWriter(out, work)
        for number, sample in enumerate(samples):
            image = Blob(work / "image")
            raw = RawSample(
                source=f"#{number}",
                images=tuple(RawImage(image, str(i or "")) for i in range(sample["images"])),
                caption=sample["caption"],
                record=sample["record"],
                others=tuple((ext, Blob(work / "data", 7, size)) for ext, size in sample["others"]),
            )
            (part,) = preparer.parts([raw], number)
            writer.write(part.data, part.rows, 0, 1, 0)
            places = zip(part.rows.ext, part.rows.offset, part.rows.size, strict=True)
            expected[part.rows.key[0]] = {
                ext: bytes(part.data[place : place + size]) for ext, place, size in places
            }
            if writer.samples == 3:
                writer.finish(shards.append)
        if writer.samples:
            writer.finish(shards.append)
        writer.drain()
        writer.close()
        yield out, expected


READERS = (by_tarfile, by_webdataset, by_wids, by_our_scanner, by_the_index)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(samples=st.lists(drafts(), min_size=1, max_size=8))
def test_every_reader_gives_every_member_of_every_sample(jpeg, samples):
    with written(samples, jpeg) as (folder, expected):
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
