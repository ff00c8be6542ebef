"""Shards of arbitrary samples, written by the pack's own parts."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st

from datapipe.pack.prepare import prepare
from datapipe.pack.raw import Blob, RawImage, RawSample
from datapipe.pack.writers.shards import ShardSize, ShardWriter

text = st.text(st.characters(blacklist_categories=("Cs",)), max_size=30)
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
    if not any((sample["images"], sample["others"])) and sample["record"] is None:
        sample["caption"] = sample["caption"] or "alone"
    return sample


@contextmanager
def _written(samples, jpeg, per_shard=3):
    """A folder of shards, the rows of their index, and {key: {extension: bytes}}."""
    with tempfile.TemporaryDirectory() as name:
        out, work = Path(name) / "out", Path(name) / "work"
        out.mkdir()
        work.mkdir()
        (work / "data").write_bytes(bytes(range(256)) * 20)
        (work / "image").write_bytes(jpeg(1))
        writer = ShardWriter(out, work, ShardSize(samples=per_shard))
        expected = {}
        for number, sample in enumerate(samples):
            image = Blob(work / "image")
            raw = RawSample(
                source=f"#{number}",
                images=tuple(RawImage(image, str(i or "")) for i in range(sample["images"])),
                caption=sample["caption"],
                record=sample["record"],
                others=tuple((ext, Blob(work / "data", 7, size)) for ext, size in sample["others"]),
            )
            prepared = prepare(raw, number, "decode")
            writer.write(prepared)
            contents = prepared.parts[1::3]
            expected[prepared.row.key] = {
                member.ext: content
                for member, content in zip(prepared.row.members, contents, strict=True)
            }
        writer.finish()
        yield out, expected


@pytest.fixture(scope="session")
def written(jpeg):
    return lambda samples, **options: _written(samples, jpeg, **options)


@pytest.fixture(scope="session")
def sample_lists():
    return st.lists(drafts(), min_size=1, max_size=8)
