"""The limit of real threads is the one that was planted; measures real time."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from datapipe.diagnosis.loader_figures import LoaderFigures
from datapipe.diagnosis.loader_rules import find_limit
from datapipe.loader.metrics.meter import Reading, Stage
from datapipe.profile.measure.usage import UsageMeter

pytestmark = pytest.mark.campaign


def measured(work: Callable[[], None], *, stages: dict[str, Stage] | None = None) -> LoaderFigures:
    """Measure two threads that work for about a second."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            work()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    meter = UsageMeter(probe_gil=True)
    meter.start()
    time.sleep(1.0)
    usage = meter.stop()
    ended.set()
    for thread in threads:
        thread.join()
    # As on a machine with no more cores than these threads take.
    usage = replace(usage, cores=2)
    reading = Reading(seconds=usage.seconds, workers=2, stages=stages or {})
    return LoaderFigures(reading=reading, usage=usage)


def test_real_python_code_in_threads_is_limited_by_the_lock():
    found = measured(lambda: [None for _ in range(1000)] and None)
    assert find_limit(found).resource == "lock"


def test_real_kernels_that_release_the_lock_are_limited_by_cores():
    data = np.random.default_rng(0).random(1 << 18)
    assert find_limit(measured(lambda: np.sort(data) is None and None)).resource == "cpu"


def test_real_waiting_for_what_is_read_is_limited_by_storage():
    # What the meter of a loader says whose reads sleep.
    found = measured(lambda: time.sleep(0.05), stages={"read": Stage(seconds=2.0, cpu=0.01)})
    # On a machine that others keep busy, it is their cores that are seen first.
    assert found.usage is not None
    assert find_limit(found).resource == "storage" or found.usage.others > found.usage.seconds
