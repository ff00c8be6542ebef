"""What is measured of the machine is what was done to it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from datapipe.cpus import available_cpus
from datapipe.diagnosis.loader_figures import Usage
from datapipe.profile.measure.usage import UsageMeter, bytes_read, own_tree

pytestmark = pytest.mark.campaign  # measures real time

BURN = "import time\nwhile time.process_time() < {seconds}: pass"


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@contextmanager
def metered(meter: UsageMeter) -> Iterator[UsageMeter]:
    meter.start()
    try:
        yield meter
    finally:
        meter.stop()


def during(work: Callable[[], object], *, threads: int = 1, probe_gil: bool = False) -> Usage:
    with metered(UsageMeter(probe_gil=probe_gil)) as meter:
        started = [threading.Thread(target=work) for _ in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    return meter.stop()


def test_cpu_time_of_all_threads_counts_and_sleep_does_not() -> None:
    work = during(lambda: burn(0.3), threads=2)
    assert 0.6 <= work.cpu <= work.seconds * available_cpus() + 0.1
    idle = during(lambda: time.sleep(0.5))
    assert idle.cpu < 0.25
    assert idle.seconds >= 0.5


def test_cpu_time_of_processes_that_live_and_that_have_ended_counts() -> None:
    def start(seconds: float) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", BURN.format(seconds=seconds) + "\nprint(flush=True)\ninput()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    with metered(UsageMeter()) as meter:
        ended, living = start(0.5), start(0.5)
        for process in (ended, living):
            assert process.stdout is not None
            process.stdout.readline()
        ended.communicate(b"\n")
    living.communicate(b"\n")
    assert meter.stop().cpu >= 0.95


def test_marking_leaves_out_what_was_before() -> None:
    meter = UsageMeter(probe_gil=True)
    meter.start()
    burn(0.4)
    meter.mark()
    usage = meter.stop()
    assert usage.cpu < 0.3
    assert usage.seconds < 0.3


def test_what_others_take_is_not_ours() -> None:
    # A grandchild whose parent has gone is no descendant any more.
    program = "import os\nif os.fork(): os._exit(0)\nif os.fork(): os._exit(0)\n" + BURN.format(
        seconds=1.0
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    usage = during(lambda: time.sleep(0.8))
    assert usage.others >= 0.2
    assert usage.cpu < usage.others + 0.3


def test_memory_is_that_of_the_whole_tree_at_its_peak() -> None:
    size = 64 << 20
    program = f"x = b'1' * {size}\nprint(flush=True)\ninput()"
    with metered(UsageMeter()) as meter:
        before = meter.memory
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        deadline = time.monotonic() + 30
        while meter.memory < before + size and time.monotonic() < deadline:
            time.sleep(0.05)
        child.communicate(b"\n")
    assert before + size <= meter.stop().memory <= before + 2 * size


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="nobody divides pages")
def test_memory_that_processes_share_counts_once(tmp_path: Path) -> None:
    size = 64 << 20
    (tmp_path / "shared").write_bytes(b"1" * size)
    program = (
        "import mmap, sys\nfile = open(sys.argv[1], 'r+b')\nm = mmap.mmap(file.fileno(), 0)\n"
        "x = m[::4096]\nprint(flush=True)\ninput()"
    )
    with metered(UsageMeter()) as meter:
        before = meter.memory
        children = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(tmp_path / "shared")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(3)
        ]
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        deadline = time.monotonic() + 30
        while meter.memory < before + size and time.monotonic() < deadline:
            time.sleep(0.05)
        for child in children:
            child.communicate(b"\n")
    assert before + size <= meter.stop().memory < before + 2 * size


def test_the_interpreters_lock_is_seen_where_python_code_holds_it() -> None:
    python = during(lambda: burn(0.5), threads=2, probe_gil=True)
    assert python.gil is not None
    assert python.gil > 0.4
    idle = during(lambda: time.sleep(0.5), probe_gil=True)
    assert idle.gil is not None
    assert idle.gil < 0.2


def test_work_that_releases_the_lock_does_not_look_like_a_held_lock() -> None:
    data = np.random.default_rng(0).random(1 << 20)

    def work() -> None:
        for _ in range(20):
            np.sort(data)

    usage = during(work, threads=2, probe_gil=True)
    assert usage.gil is not None
    assert usage.gil < 0.3


def test_nobody_looks_at_the_lock_unasked() -> None:
    assert during(lambda: None).gil is None


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not say")
def test_bytes_from_storage_are_counted_and_those_from_the_cache_are_not(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"1" * (8 << 20))
    cached = during(file.read_bytes)
    assert cached.read is not None
    assert cached.read < 8 << 20
    assert sum(bytes_read(own_tree()).values()) >= 0


def test_no_thread_stays() -> None:
    before = threading.active_count()
    during(lambda: None, probe_gil=True)
    assert threading.active_count() <= before
    forgotten = UsageMeter(probe_gil=True)
    forgotten.start()
    assert threading.active_count() <= before + 2
    del forgotten
    gc.collect()
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_stopping_twice_says_the_same() -> None:
    meter = UsageMeter()
    meter.start()
    assert meter.stop() == meter.stop()
