"""What is measured of the machine is what was done to it."""

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
from tests.waiting import wait_until

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


def test_cpu_time_of_all_threads_counts_and_sleep_does_not():
    work = during(lambda: burn(0.3), threads=2)
    assert 0.6 <= work.cpu <= work.seconds * available_cpus() + 0.1
    idle = during(lambda: time.sleep(0.5))
    assert idle.cpu < 0.25
    assert idle.gil is None  # unasked
    assert idle.seconds >= 0.5


def started(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process that has done what a program says, and waits until it is ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", program + "\nprint(flush=True)\ninput()", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.communicate(b"\n")


def test_cpu_time_of_processes_that_live_and_that_have_ended_counts():
    with metered(UsageMeter()) as meter:
        ended, living = (started(BURN.format(seconds=0.5)) for _ in range(2))
        end(ended)
    end(living)
    assert meter.stop().cpu >= 0.95


def test_marking_leaves_out_what_was_before():
    meter = UsageMeter(probe_gil=True)
    meter.start()
    burn(0.4)
    meter.mark()
    begun = time.monotonic()
    usage = meter.stop()
    assert usage.cpu < 0.3
    assert usage.seconds < 0.3 + time.monotonic() - begun


def test_what_others_take_is_not_ours():
    # A grandchild whose parent has gone is no descendant any more.
    program = "import os\nif os.fork(): os._exit(0)\nif os.fork(): os._exit(0)\n" + BURN.format(
        seconds=1.0
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    usage = during(lambda: time.sleep(0.8))
    assert usage.others >= 0.2
    assert usage.cpu < usage.others + 0.3


SIZE = 64 << 20
OWN = f"x = b'1' * {SIZE}"
SHARED = """
import mmap, sys
file = open(sys.argv[1], "r+b")
m = mmap.mmap(file.fileno(), 0)
x = m[::4096]"""
shares = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc/self/smaps_rollup"
)


@pytest.mark.parametrize(
    ("program", "count"), [(OWN, 1), pytest.param(SHARED, 3, marks=shares)], ids=["own", "shared"]
)
def test_memory_is_that_of_the_whole_tree_at_its_peak_and_counts_once(tmp_path, program, count):
    (tmp_path / "shared").write_bytes(b"1" * SIZE)
    with metered(UsageMeter()) as meter:
        before = meter.memory
        children = [started(program, str(tmp_path / "shared")) for _ in range(count)]
        wait_until(lambda: meter.memory >= before + SIZE)
        end(*children)
    assert before + SIZE <= meter.stop().memory < before + 2 * SIZE


def test_the_interpreters_lock_is_seen_where_python_code_holds_it():
    python = during(lambda: burn(0.5), threads=2, probe_gil=True)
    assert python.gil is not None
    assert python.gil > 0.4
    idle = during(lambda: time.sleep(0.5), probe_gil=True)
    assert idle.gil is not None
    assert idle.gil < 0.2


def test_work_that_releases_the_lock_does_not_look_like_a_held_lock():
    data = np.random.default_rng(0).random(1 << 20)

    def work() -> None:
        for _ in range(20):
            np.sort(data)

    usage = during(work, threads=2, probe_gil=True)
    assert usage.gil is not None
    assert usage.gil < 0.3


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not say")
def test_bytes_from_storage_are_counted_and_those_from_the_cache_are_not(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(b"1" * (8 << 20))
    cached = during(file.read_bytes)
    assert cached.read is not None
    assert cached.read < 8 << 20
    assert sum(bytes_read(own_tree()).values()) >= 0


def test_no_thread_stays():
    before = threading.active_count()
    during(lambda: None, probe_gil=True)
    assert threading.active_count() <= before
    forgotten = UsageMeter(probe_gil=True)
    forgotten.start()
    assert threading.active_count() <= before + 2
    del forgotten
    gc.collect()
    wait_until(lambda: threading.active_count() <= before)
    assert threading.active_count() <= before


def test_stopping_twice_says_the_same():
    meter = UsageMeter()
    meter.start()
    assert meter.stop() == meter.stop()
