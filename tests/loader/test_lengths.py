"""Counting tokens: every text once, in order, whoever works on it and whatever is wrong with it."""

import hashlib
import json
import re
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datapipe.errors import DecodeError, PlanError, StoreError
from datapipe.index.dataset import open_dataset
from datapipe.index.tokens.columns import open_tokens
from datapipe.loader.schedule import token_counts
from datapipe.loader.schedule.token_counts import count_tokens
from datapipe.text.encode import EncodedText, TextEncoder
from datapipe.text.sample_text import sample_text
from datapipe.text.spec import TextSpec
from tests.flipping import flip
from tests.waiting import wait_until

IMAGE = "<image>"


class Words:
    """An encoder of words: a number is trained, `bad` is refused, `<image>` is the place of one."""

    image_wrap = (1, 0)

    def __init__(self, name="words"):
        self.digest = hashlib.sha256(name.encode()).hexdigest()
        self.batches: list[int] = []

    def encode(self, texts):
        self.batches.append(len(texts))
        return [self._encode(text) for text in texts]

    def _encode(self, sample):
        words = re.findall(r"<image>|[^\s<]+", sample_text(sample.caption, sample.record))
        if "bad" in words:
            return DecodeError("a bad word")
        plain = [word for word in words if word != IMAGE]
        places = [i for i, word in enumerate(words) if word == IMAGE]
        if len(places) != sample.images:
            places = [0] * sample.images
        return EncodedText(
            np.array([len(word) for word in plain], np.int32),
            np.array([place - i for i, place in enumerate(places)], np.int32).clip(0),
            np.array([word.strip(".?").isdigit() for word in plain], np.bool_),
        )


@pytest.fixture
def dataset(packed, tmp_path):
    """37 samples in five shards, some with two images and some with none; a copy to count in."""
    # Others may have counted its tokens before.
    counted = shutil.ignore_patterns("tokens-*")
    return open_dataset(shutil.copytree(packed, tmp_path / "shards", ignore=counted))


@pytest.fixture
def foreign(tmp_path, make_tar):
    """A function that opens a shard of the members given, which someone else wrote."""

    return lambda members: open_dataset(
        make_tar(tmp_path / "foreign" / "a.tar", members.items()).parent
    )


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [([9] * 600, [88, 256, 256]), ([1, 2, 3 << 20, 3 << 20, 5 << 20, 2], [1, 1, 1, 3])],
    ids=["samples", "bytes"],
)
def test_chunks_have_a_bounded_size_whoever_counts_them(foreign, contents, sizes, batches):
    """They have at most 256 samples, and 4 MB of texts unless a text alone has more."""
    dataset = foreign(
        {f"{number:03}.txt": b"7" * size + number * b" 7" for number, size in enumerate(sizes)}
    )
    found = []
    for workers in (1, 5):
        encoder = Words()
        tokens = count_tokens(dataset, encoder, workers=workers)
        assert sorted(encoder.batches) == batches
        assert tokens.text_tokens.tolist() == [*range(1, len(sizes) + 1)]
        found.append(contents(tokens.folder))
        shutil.rmtree(tokens.folder)
    assert found[0] == found[1]


def test_processes_write_the_files_that_threads_write(dataset, contents, monkeypatch, tokenizer):
    encoder = TextEncoder(TextSpec(tokenizer=tokenizer, template="chatml"))
    damage(dataset, 11, "json")
    folder = count_tokens(dataset, encoder, workers=2).folder
    expected = contents(folder)
    monkeypatch.setattr(token_counts, "MANY_SAMPLES", 0)
    spec = replace(encoder.spec, image_tokens=lambda widths, heights: widths)  # cannot be sent
    for each in (encoder, TextEncoder(spec)):
        shutil.rmtree(folder)
        assert contents(count_tokens(dataset, each, workers=3).folder) == expected


def test_columns_hold_counts_places_and_runs_and_nothing_of_a_text_that_fails(foreign, jpeg):
    texts = {
        "a.txt": b"<image>1 2 three 4",
        "b.txt": b"1 <image>2 three 4",
        "c.txt": b"1 2 three 4",
        "e.txt": b"<image> bad",
        "f.txt": b"<image>1 <image>22",
    }
    images = dict.fromkeys(("a.jpg", "b.jpg", "d.jpg", "e.jpg", "f.jpg", "f.1.jpg"), jpeg(0))
    tokens = count_tokens(foreign(dict(sorted((texts | images).items()))), Words())
    assert tokens.text_tokens.tolist() == [4, 4, 4, 0, -1, 2]
    assert tokens.label_tokens.tolist() == [3, 2, 2, 0, 0, 2]
    assert tokens.image_at.tolist() == [0, 1, 0, 0, 1]
    assert tokens.sample_image_at.tolist() == [0, 1, 2, 2, 3, 3, 5]
    assert tokens.label_start.tolist() == [*[0, 3] * 3, 0]
    assert tokens.label_stop.tolist() == [*[2, 4] * 3, 2]
    assert tokens.sample_label.tolist() == [0, 2, 4, 6, 6, 6, 7]
    assert tokens.image_wrap == (1, 0)


def test_the_first_caption_counts_and_comes_before_a_record(foreign):
    record = json.dumps({"caption": "one two three"}).encode()
    a = {"a.json": record, "a.TXT": b"one two", "a.caption": b"one"}
    b = {"b.cls": b"7", "b.json": record, "b.1.txt": b"no caption"}
    assert count_tokens(foreign(a | b), Words()).text_tokens.tolist() == [2, 3]


def test_a_text_that_cannot_be_used_fails_alone(foreign, caplog):
    bad = {"b.txt": b"\xff", "b.json": b"{", "c.json": b"{", "d.txt": b"a bad one"}
    tokens = count_tokens(foreign({"a.txt": b"fine", **bad, "e.txt": b"1 2 3"}), Words())
    assert tokens.text_tokens.tolist() == [1, -1, -1, -1, 3]
    assert tokens.label_tokens.tolist() == [0, 0, 0, 0, 2]
    assert tokens.sample_label.tolist() == [0, 0, 0, 0, 0, 1]
    not_utf8, no_json, refused = tokens.failures()
    assert tokens.failed == 3
    reason = "text is not UTF-8 at byte 0"
    assert not_utf8 == {"key": "b", "shard": "a.tar", "reason": reason, "member": "b.txt"}
    assert no_json["member"] == "c.json"
    assert "not valid JSON" in no_json["reason"]
    assert refused == {"key": "d", "shard": "a.tar", "reason": "a bad word"}
    assert "3 of 5 samples have a text that cannot be used" in caplog.text


def test_a_shard_of_nothing_but_failures_is_counted(foreign):
    tokens = count_tokens(foreign({"a.txt": b"\xff", "b.txt": b"\xff"}), Words())
    assert tokens.text_tokens.tolist() == [-1, -1]


def test_what_lies_between_texts_is_not_read(foreign):
    large = b"7" * (8 << 20)
    kinds = {"cls": large, "txt": b"one two"}
    dataset = foreign({f"{key}.{ext}": kinds[ext] for key in "abc" for ext in kinds})

    def read():
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(counts["rchar"])

    before = read()
    assert count_tokens(dataset, Words()).text_tokens.tolist() == [2, 2, 2]
    assert read() - before < len(large)


def damage(dataset, sample, ext):
    """Change one bit of a member."""
    columns = dataset.columns
    member = next(m for m in columns.members(sample) if m.ext == ext)
    shard = dataset.manifest.shards[columns.shard(sample)].name
    flip(dataset.folder / shard, member.offset + member.size // 2)


def test_a_damaged_text_is_noticed_and_a_damaged_image_is_not_read(dataset):
    expected = count_tokens(dataset, Words()).text_tokens.tolist()
    damage(dataset, 11, "json")
    damage(dataset, 13, "jpg")
    tokens = count_tokens(dataset, Words("other"))
    assert tokens.text_tokens.tolist() == [*expected[:11], -1, *expected[12:]]
    (failure,) = tokens.failures()
    assert failure["key"] == dataset.columns.key(11)
    assert failure["shard"] == "shard-000001.tar"
    assert "shard is damaged" in failure["reason"]


def test_a_shard_that_cannot_be_read_ends_the_count_which_goes_on_after_it_is_back(dataset):
    shard = dataset.folder / "shard-000003.tar"
    shard.rename(dataset.folder / "away")
    with pytest.raises(StoreError, match=r"shard-000003\.tar cannot be opened"):
        count_tokens(dataset, Words())
    (dataset.folder / "away").rename(shard)
    encoder = Words()
    tokens = count_tokens(dataset, encoder)
    assert sum(encoder.batches) == 37 - 3 * 8
    assert (tokens.text_tokens > 0).all()


def test_an_encoder_that_refuses_the_dataset_ends_the_count_and_leaves_nothing(dataset):
    before = sorted(dataset.folder.iterdir())

    class Hopeless(Words):
        def encode(self, texts):
            raise PlanError("no token for images")

    with pytest.raises(PlanError, match="workers 0: at least 1"):
        count_tokens(dataset, Words(), workers=0)
    with pytest.raises(PlanError, match="no token for images"):
        count_tokens(dataset, Hopeless())
    assert sorted(dataset.folder.iterdir()) == before


@pytest.mark.parametrize("workers", [1, 3])
def test_an_interrupt_ends_the_count_and_keeps_whole_shards(dataset, workers):
    main = threading.main_thread().ident

    class Interrupted(Words):
        def encode(self, texts):
            if "number 32" in sample_text(None, texts[0].record):
                wait_until(lambda: list(dataset.home.glob(".tokens-*/*.npz")))
                signal.pthread_kill(main, signal.SIGINT)
            return super().encode(texts)

    with pytest.raises(KeyboardInterrupt):
        count_tokens(dataset, Interrupted(), workers=workers)
    assert not [t for t in threading.enumerate() if t.name.startswith("datapipe-tokens")]
    assert open_tokens(dataset.folder, dataset.manifest, Words().digest) is None
    encoder = Words()
    tokens = count_tokens(dataset, encoder, workers=workers)
    assert sum(encoder.batches) < 37
    assert (tokens.text_tokens > 0).all()
    assert not [path for path in dataset.folder.iterdir() if path.name.startswith(".")]
