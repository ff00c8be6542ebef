"""Token counts are beside the index: counted once, read back as they were, and summed up."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datapipe.index.manifest import Manifest
from datapipe.index.tokens.columns import open_tokens
from datapipe.index.tokens.parts import DTYPES, PartFiles
from datapipe.index.tokens.stats import token_stats
from tests.flipping import flip

from .token_counts import (
    DIGEST,
    MANIFEST,
    OTHER,
    assert_holds,
    count,
    make_manifest,
    make_part,
    whole,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 5))
def test_columns_hold_what_was_counted_of_every_shard(sizes, keep):
    manifest = make_manifest(sizes)
    before = Manifest(shards=manifest.shards[:keep])
    with tempfile.TemporaryDirectory() as folder:
        columns, _ = count(Path(folder), before)
        assert_holds(columns, whole(before))
        grown, asked = count(Path(folder), manifest)
        assert_holds(grown, whole(manifest))
        assert asked == list(range(len(before.shards), len(sizes)))


def test_columns_are_plain_npy_files_of_the_types_promised(tmp_path):
    columns, _ = count(tmp_path)
    assert columns.folder == tmp_path / "tokens-0123456789abcdef"
    assert columns.image_wrap == (1, 2)
    for name, dtype in DTYPES.items():
        stored = np.load(columns.folder / f"{name}.npy")
        assert stored.dtype == np.dtype(dtype) == getattr(columns, name).dtype
        assert stored.tolist() == getattr(columns, name).tolist()


@pytest.mark.parametrize("other", [OTHER, DIGEST[:32] + OTHER[:32]])
def test_each_tokenizer_and_template_has_its_own_counts(tmp_path, other):
    count(tmp_path)
    assert open_tokens(tmp_path, MANIFEST, other) is None
    columns, asked = count(tmp_path, digest=other)
    assert (columns.digest, asked) == (other, [0, 1, 2, 3])
    assert open_tokens(tmp_path, MANIFEST, other) is not None
    assert (open_tokens(tmp_path, MANIFEST, DIGEST) is not None) == (other == OTHER)
    assert open_tokens(tmp_path, make_manifest([1]), DIGEST) is None


@pytest.mark.parametrize("done", [0, 2])
def test_an_interrupted_count_goes_on_at_the_shard_where_it_stopped(tmp_path, done):
    with pytest.raises(KeyboardInterrupt):
        count(tmp_path, stop_at=done)
    assert len(list(tmp_path.iterdir())) == (done > 0)
    assert open_tokens(tmp_path, MANIFEST, DIGEST) is None
    columns, asked = count(tmp_path)
    assert asked == [*range(done, 4)]
    assert_holds(columns, whole())
    assert [path.name for path in tmp_path.iterdir()] == [columns.folder.name]


@pytest.mark.parametrize("harm", ["torn", "flipped", "other digest", "other shard"])
def test_a_part_that_cannot_be_trusted_is_counted_anew(tmp_path, harm):
    with pytest.raises(KeyboardInterrupt):
        count(tmp_path, stop_at=2)
    (work,) = tmp_path.iterdir()
    first, second = sorted(work.glob("*.npz"))
    if harm == "torn":
        first.write_bytes(first.read_bytes()[:-40])
    elif harm == "flipped":
        flip(first, first.read_bytes().index(b"NUMPY") + 125)
    elif harm == "other digest":
        PartFiles(work, OTHER).write(MANIFEST.shards[0], make_part(9, 5))
    else:
        first.write_bytes(second.read_bytes())
    columns, asked = count(tmp_path)
    assert asked == [0, 2, 3]
    assert_holds(columns, whole())


def test_failures_are_told_and_written_down(tmp_path, caplog):
    columns, _ = count(tmp_path)
    failures = columns.failures()
    assert f"{len(failures)} of 13 samples have a text that cannot be used" in caplog.text
    assert str(columns.folder / "failures.jsonl") in caplog.text
    for number, shard in enumerate(MANIFEST.shards):
        named = [failure for failure in failures if failure["shard"] == shard.name]
        assert len(named) == len(make_part(number, shard.samples).failures)


def test_counts_of_another_dataset_in_the_same_place_are_not_taken(tmp_path):
    count(tmp_path)
    other = make_manifest([5, 1, 0, 7], salt="other")
    other = Manifest(shards=(MANIFEST.shards[0], *other.shards[1:]))
    columns, asked = count(tmp_path, other)
    assert asked == [1, 2, 3]
    assert_holds(columns, whole(other))


def stats_of(lengths):
    text = np.array(lengths, np.int32)
    labels, failed = np.maximum(text, 0) // 2, int((text < 0).sum())
    return token_stats(SimpleNamespace(text_tokens=text, label_tokens=labels, failed=failed))


@settings(deadline=None)
@given(lengths=st.lists(st.integers(-1, 300), max_size=60))
@example([-1, -1])
def test_figures_are_those_of_the_texts_that_can_be_used(lengths):
    stats = stats_of(lengths)
    usable = sorted(length for length in lengths if length >= 0)
    assert stats.failed == len(lengths) - len(usable)
    assert stats.text.total == sum(usable)
    assert stats.text.most == max(usable, default=0)
    assert stats.labels.total == sum(length // 2 for length in usable)
    assert stats.text.mean == pytest.approx(np.mean(usable or [0]))
    for percent in (50, 90, 99):
        found = np.percentile(usable or [0], percent, method="inverted_cdf")
        assert getattr(stats.text, f"p{percent}") == found


def test_figures_of_more_texts_than_are_looked_at_together():
    stats = stats_of(np.tile(np.arange(-1, 300, dtype=np.int32), 14_000))
    assert (stats.failed, stats.text.total) == (14_000, 14_000 * 300 * 299 // 2)
    assert (stats.text.p50, stats.text.p90, stats.text.p99, stats.text.most) == (149, 269, 296, 299)
