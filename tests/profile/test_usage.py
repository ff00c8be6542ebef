"""What is measured of the machine is what was done to it."""

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from datapipe.cpus import available_cpus
from datapipe.profile.measure.usage import UsageMeter
from tests.waiting import wait_until

pytestmark = pytest.mark.campaign  # measures real time

BURN = "import time\nwhile time.process_time() < {seconds}: pass"


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def metered(**options):
    meter = UsageMeter(**options)
    meter.start()
    return meter


def during(work, *, threads=1, probe_gil=False):
    meter = metered(probe_gil=probe_gil)
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


def started(program, *arguments):
    """A process that has done what a program says, and waits until it is ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", program + "\nprint(flush=True)\ninput()", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    return process


def test_cpu_time_of_processes_that_live_and_that_have_ended_counts():
    meter = metered()
    ended, living = (started(BURN.format(seconds=0.5)) for _ in range(2))
    ended.communicate(b"\n")
    usage = meter.stop()
    assert meter.stop() == usage  # stopping twice says the same
    living.communicate(b"\n")
    assert usage.cpu >= 0.95


def test_marking_leaves_out_what_was_before():
    meter = metered(probe_gil=True)
    burn(0.4)
    meter.mark()
    begun = time.monotonic()
    usage = meter.stop()
    assert usage.cpu < 0.3
    assert usage.seconds < 0.3 + time.monotonic() - begun


def test_what_others_take_is_not_ours():
    # A grandchild whose parent has gone is no descendant any more.
    program = "import os\nif os.fork(): os._exit(0)\nif os.fork(): os._exit(0)\n"
    subprocess.run([sys.executable, "-c", program + BURN.format(seconds=1.0)], check=True)
    usage = during(lambda: time.sleep(0.8))
    assert usage.others >= 0.2
    assert usage.cpu < usage.others + 0.3


NUMBERS = np.random.default_rng(0).random(1 << 20)
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
    meter = metered()
    before = meter.memory
    children = [started(program, str(tmp_path / "shared")) for _ in range(count)]
    wait_until(lambda: meter.memory >= before + SIZE)
    for child in children:
        child.communicate(b"\n")
    assert before + SIZE <= meter.stop().memory < before + 2 * SIZE


@pytest.mark.parametrize(
    ("work", "threads", "least", "most"),
    [
        (lambda: burn(0.5), 2, 0.4, 1.1),
        (lambda: time.sleep(0.5), 1, 0.0, 0.2),
        (lambda: [np.sort(NUMBERS) for _ in range(20)], 2, 0.0, 0.3),  # which releases it
    ],
    ids=["Python code", "sleep", "NumPy"],
)
def test_the_interpreters_lock_is_seen_where_python_code_holds_it(work, threads, least, most):
    usage = during(work, threads=threads, probe_gil=True)
    assert least <= usage.gil < most


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not say")
def test_bytes_from_storage_are_counted_and_those_from_the_cache_are_not(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(b"1" * (8 << 20))
    cached = during(file.read_bytes)
    assert cached.read < 8 << 20


def test_no_thread_stays():
    before = threading.active_count()
    during(lambda: None, probe_gil=True)
    assert threading.active_count() <= before
    forgotten = metered(probe_gil=True)
    assert threading.active_count() <= before + 2
    del forgotten
    gc.collect()
    wait_until(lambda: threading.active_count() <= before)
