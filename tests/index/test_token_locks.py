"""Tokens are counted by one process at a time, and never lost to another."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from datapipe.errors import IndexMismatch
from datapipe.index.tokens.counting import open_or_count
from tests.waiting import PATIENCE

from .token_counts import DIGEST, Counter, assert_holds, count, refuse, whole


@pytest.fixture
def waiting():
    """Is set once somebody waits for another's count."""
    event = threading.Event()

    class Notice(logging.Handler):
        def emit(self, record):
            if "waiting for it" in record.getMessage():
                event.set()

    notice = Notice()
    logging.getLogger("datapipe.index.files.lock").addHandler(notice)
    yield event
    logging.getLogger("datapipe.index.files.lock").removeHandler(notice)


def run_both(tmp_path, manifest, first, second, begun):
    """Open with two counters, the second once the first has begun; what came of it, in order.

    Each thread opens the lock for itself, as processes do.
    """
    results = {}

    def open_with(counter):
        try:
            found = open_or_count(tmp_path, manifest, DIGEST, image_wrap=(0, 0), count=counter)
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


def test_one_process_counts_and_the_others_wait_for_it(tmp_path, manifest, waiting):
    begun = threading.Event()

    def slowly(parts, missing):
        begun.set()
        assert waiting.wait(PATIENCE)
        Counter(manifest)(parts, missing)

    for columns in run_both(tmp_path, manifest, slowly, refuse, begun):
        assert_holds(columns, whole(manifest))
    assert [path.name for path in tmp_path.iterdir()] == ["tokens-0123456789abcdef"]


def test_who_goes_on_for_one_that_failed_keeps_others_waiting_too(tmp_path, manifest, waiting):
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
        Counter(manifest)(parts, missing)

    failed, columns = run_both(tmp_path, manifest, fail, go_on, begun)
    assert isinstance(failed, RuntimeError)
    assert held == [True]
    assert_holds(columns, whole(manifest))


_KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import token_counts as t
manifest = t.make_manifest([5, 1, 0, 7])
def hang(parts, missing):
    parts.write(manifest.shards[0], t.make_part(0, 5))
    print("begun", flush=True)
    time.sleep(600)
t.open_or_count(Path(sys.argv[1]), manifest, t.DIGEST, image_wrap=(0, 0), count=hang)
"""


def test_a_killed_process_blocks_nobody_and_loses_one_shard_at_most(tmp_path, manifest):
    command = [sys.executable, "-c", _KILLED, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        os.kill(process.pid, signal.SIGKILL)
    columns, asked = count(tmp_path, manifest)
    assert asked == [1, 2, 3]
    assert_holds(columns, whole(manifest))


@pytest.mark.parametrize("times", [1, 99])
def test_parts_that_another_machine_takes_away_are_counted_again(tmp_path, manifest, times):
    asked = []

    def bereft(parts, missing):
        asked.append(missing)
        Counter(manifest)(parts, missing)
        if len(asked) <= times:
            next(tmp_path.glob(".tokens-*/*.npz")).unlink()

    def open_bereft():
        return open_or_count(tmp_path, manifest, DIGEST, image_wrap=(0, 0), count=bereft)

    if times == 99:
        with pytest.raises(IndexMismatch, match="token counts do not last there"):
            open_bereft()
    else:
        assert_holds(open_bereft(), whole(manifest))
        assert len(asked) == 2


@pytest.mark.usefixtures("without_locks")
def test_a_file_system_without_locks_is_named_with_what_to_do(tmp_path, manifest):
    with pytest.raises(IndexMismatch, match=r"lock: files here cannot be locked \(No locks .*copy"):
        count(tmp_path, manifest)
