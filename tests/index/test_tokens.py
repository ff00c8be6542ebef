"""Token counts are beside the index: counted by one process at a time, read back and summed up."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datapipe.errors import IndexMismatch
from datapipe.index.manifest import Manifest
from datapipe.index.tokens.columns import DTYPES, open_tokens, token_stats
from datapipe.index.tokens.counting import PartFiles, open_or_count
from tests.flipping import flip
from tests.waiting import PATIENCE

from .token_counts import (
    DIGEST,
    MANIFEST,
    OTHER,
    assert_holds,
    count,
    count_shards,
    make_manifest,
    make_part,
    whole,
)


@settings(max_examples=40)
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


def test_columns_are_plain_npy_files_of_the_types_promised_and_failures_are_told(tmp_path, caplog):
    columns, _ = count(tmp_path)
    assert columns.folder == tmp_path / "tokens-0123456789abcdef"
    assert columns.image_wrap == (1, 2)
    for name, dtype in DTYPES.items():
        stored = np.load(columns.folder / f"{name}.npy")
        assert stored.dtype == np.dtype(dtype) == getattr(columns, name).dtype
        assert stored.tolist() == getattr(columns, name).tolist()
    assert f"{columns.failed} of 13 samples have a text that cannot be used" in caplog.text
    assert str(columns.folder / "failures.jsonl") in caplog.text


@pytest.mark.parametrize("other", [OTHER, DIGEST[:32] + OTHER[:32]])
def test_each_tokenizer_and_template_has_its_own_counts(tmp_path, other):
    count(tmp_path)
    assert open_tokens(tmp_path, MANIFEST, other) is None
    columns, asked = count(tmp_path, digest=other)
    assert (columns.digest, asked) == (other, [0, 1, 2, 3])
    assert open_tokens(tmp_path, MANIFEST, other) is not None
    assert (open_tokens(tmp_path, MANIFEST, DIGEST) is not None) == (other == OTHER)
    assert open_tokens(tmp_path, make_manifest([1]), DIGEST) is None


@pytest.mark.parametrize("harm", ["none", "torn", "flipped", "other digest", "other shard"])
def test_an_interrupted_count_goes_on_behind_the_parts_that_can_be_trusted(tmp_path, harm):
    with pytest.raises(KeyboardInterrupt):
        count(tmp_path, stop_at=2)
    assert open_tokens(tmp_path, MANIFEST, DIGEST) is None
    (work,) = tmp_path.iterdir()
    first, second = sorted(work.glob("*.npz"))
    if harm == "torn":
        first.write_bytes(first.read_bytes()[:-40])
    elif harm == "flipped":
        flip(first, first.read_bytes().index(b"NUMPY") + 125)
    elif harm == "other digest":
        PartFiles(work, OTHER).write(MANIFEST.shards[0], make_part(9, 5))
    elif harm == "other shard":
        first.write_bytes(second.read_bytes())
    columns, asked = count(tmp_path)
    assert asked == ([2, 3] if harm == "none" else [0, 2, 3])
    assert_holds(columns, whole())
    assert [path.name for path in tmp_path.iterdir()] == [columns.folder.name]


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


@pytest.fixture
def waiting():
    """Return an event that is set once a process waits for the count of another."""
    event = threading.Event()

    class Notice(logging.Handler):
        def emit(self, record):
            if "waiting for it" in record.getMessage():
                event.set()

    notice = Notice()
    logging.getLogger("datapipe.index.files.lock").addHandler(notice)
    yield event
    logging.getLogger("datapipe.index.files.lock").removeHandler(notice)


def run_both(tmp_path, first, second, begun):
    """Open with two counters, the second once the first has begun; what came of it, in order.

    Each thread opens the lock for itself, as processes do.
    """
    results = {}

    def open_with(counter):
        try:
            found = open_or_count(tmp_path, MANIFEST, DIGEST, image_wrap=(0, 0), count=counter)
        except RuntimeError as error:
            found = error
        results[counter] = found

    threads = [
        threading.Thread(target=open_with, args=(counter,), daemon=True)
        for counter in (first, second)
    ]
    threads[0].start()
    assert begun.wait(PATIENCE)
    threads[1].start()
    for thread in threads:
        thread.join(PATIENCE)
    return results[first], results[second]


def test_one_process_counts_and_the_others_wait_for_it(tmp_path, waiting):
    begun = threading.Event()

    def refuse(parts, missing):
        raise AssertionError("counted a second time")

    def slowly(parts, missing):
        begun.set()
        assert waiting.wait(PATIENCE)
        count_shards(parts, missing)

    for columns in run_both(tmp_path, slowly, refuse, begun):
        assert_holds(columns, whole())
    assert [path.name for path in tmp_path.iterdir()] == ["tokens-0123456789abcdef"]


def test_who_goes_on_for_one_that_failed_keeps_others_waiting_too(tmp_path, waiting):
    begun = threading.Event()
    held = []

    def fail(parts, missing):
        begun.set()
        assert waiting.wait(PATIENCE)
        raise RuntimeError("no counting today")

    def go_on(parts, missing):
        with (tmp_path / ".tokens-0123456789abcdef" / "lock").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(True)
        count_shards(parts, missing)

    failed, columns = run_both(tmp_path, fail, go_on, begun)
    assert isinstance(failed, RuntimeError)
    assert held == [True]
    assert_holds(columns, whole())


_KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import token_counts as t
def hang(parts, missing):
    parts.write(t.MANIFEST.shards[0], t.make_part(0, 5))
    print("begun", flush=True)
    time.sleep(600)
t.open_or_count(Path(sys.argv[1]), t.MANIFEST, t.DIGEST, image_wrap=(0, 0), count=hang)
"""


def test_a_killed_process_blocks_nobody_and_loses_one_shard_at_most(tmp_path):
    command = [sys.executable, "-c", _KILLED, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        os.kill(process.pid, signal.SIGKILL)
    columns, asked = count(tmp_path)
    assert asked == [1, 2, 3]
    assert_holds(columns, whole())


@pytest.mark.parametrize("times", [1, 99])
def test_parts_that_another_machine_takes_away_are_counted_again(tmp_path, times):
    asked = []

    def bereft(parts, missing):
        asked.append(missing)
        count_shards(parts, missing)
        if len(asked) <= times:
            next(tmp_path.glob(".tokens-*/*.npz")).unlink()

    def open_bereft():
        return open_or_count(tmp_path, MANIFEST, DIGEST, image_wrap=(0, 0), count=bereft)

    if times == 99:
        with pytest.raises(IndexMismatch, match="token counts do not last there"):
            open_bereft()
    else:
        assert_holds(open_bereft(), whole())
        assert len(asked) == 2


@pytest.mark.usefixtures("without_locks")
def test_a_file_system_without_locks_is_named_with_what_to_do(tmp_path):
    with pytest.raises(IndexMismatch, match=r"lock: files here cannot be locked \(No locks .*copy"):
        count(tmp_path)
