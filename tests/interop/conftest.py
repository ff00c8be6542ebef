"""Shards of arbitrary samples, written by the pack's own parts."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st

from datapipe import pack_dataset
from datapipe.pack.input.raw_sample import Blob, RawImage, RawSample
from datapipe.pack.workers.prepare import PrepareOptions
from datapipe.pack.workers.segments import SEGMENT
from datapipe.pack.workers.worker import Preparer
from datapipe.pack.writers.shards import ShardWriter

# Words for places of images are drawn too, being in the code; samples they do not fit are rejected.
text = st.text(st.characters(blacklist_categories=("Cs",)), max_size=30).filter(
    lambda drawn: not any(sign in drawn for sign in ("<", "[IMG]"))
)
extensions = st.sampled_from(["cls", "npy", "seg.bin", "Left Eye.PNG.bin", "ü", "wav"])
sizes = st.sampled_from([0, 1, 511, 512, 513, 5000])


@st.composite
def drafts(draw):
    """What one sample holds: number of images, caption, record, other members."""
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
def _written(samples, jpeg):
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


@pytest.fixture(scope="session")
def written(jpeg):
    return lambda samples: _written(samples, jpeg)


@pytest.fixture(scope="session")
def sample_lists():
    return st.lists(drafts(), min_size=1, max_size=8)


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
