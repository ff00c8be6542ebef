"""A pool that another thread closes at any moment says so: it loses no result and never hangs."""

import sys
import threading
from collections import Counter
from contextlib import closing

import pytest

from datapipe.errors import WorkerError
from datapipe.workers import job_feed, processes, ray_tasks, threads
from datapipe.workers.processes import ProcessPool
from datapipe.workers.ray_cluster import RayCluster
from datapipe.workers.ray_tasks import RayPool
from datapipe.workers.threads import ThreadPool
from tests.waiting import PATIENCE
from tests.workers.jobs import work, worker

FILES = {module.__file__ for module in (job_feed, processes, ray_tasks, threads)}
JOBS = [(number, "") for number in range(6)]
RESULTS = [0, 10, 20, 30, 40, 50]


def before_line(number, visits, act, call):
    """Call a function, and let another thread act before a line; the result, and if it came to it.

    The lines are those of pools that this thread runs; each counts the first `visits` times.
    """
    passed = Counter[tuple[str, int]]()

    def trace(frame, event, argument):
        line = (frame.f_code.co_filename, frame.f_lineno)
        if line[0] not in FILES:
            return None
        if event == "line" and passed[line] < visits:
            passed[line] += 1
            if passed.total() == number:
                other = threading.Thread(target=act)
                other.start()
                other.join(PATIENCE)
                assert not other.is_alive()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call(), passed.total() >= number
    finally:
        sys.settrace(before)


def results_of(pool):
    try:
        return list(pool.run(JOBS))
    except WorkerError as error:
        return str(error)


@pytest.fixture
def template():
    """Keep the process that workers are forked from, which takes long to start."""
    with closing(ProcessPool(worker, 1)) as pool:
        list(pool.run(JOBS))
        yield


def close_before_each_line(make, visits):
    outcomes = []
    came = True
    while came:
        number, pool = len(outcomes) + 1, make()
        found, came = before_line(number, visits, pool.close, lambda p=pool: results_of(p))
        assert found in (RESULTS, "the workers were closed while results were awaited"), number
        assert results_of(pool) == RESULTS
        pool.close()
        outcomes.append(found)
    assert outcomes[-1] == RESULTS
    assert any(found != RESULTS for found in outcomes)


def test_threads_closed_before_any_line_of_a_run_say_so_and_run_again():
    close_before_each_line(lambda: ThreadPool(work, 2), visits=50)


@pytest.mark.campaign
@pytest.mark.usefixtures("template")
def test_processes_closed_before_any_line_of_a_run_say_so_and_run_again():
    close_before_each_line(lambda: ProcessPool(worker, 2), visits=1)


@pytest.mark.campaign
def test_a_cluster_closed_before_any_line_of_a_run_says_so_and_runs_again():
    pytest.importorskip("ray")
    with closing(RayCluster(None, 2, None)) as cluster:
        close_before_each_line(lambda: RayPool(cluster, worker, ahead=3), visits=1)


def test_a_thread_that_an_interrupted_start_did_not_see_begins_nothing(monkeypatch):
    launched, begun = [], []

    def struck(thread):
        launched.append(thread)  # it runs later, as the system pleases
        raise KeyboardInterrupt

    pool = ThreadPool(lambda job: job, 2, initializer=lambda: begun.append("initializer"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", struck)
        with pytest.raises(KeyboardInterrupt):
            next(pool.run([1]))
    (thread,) = launched
    thread.start()
    thread.join()
    assert not begun
    assert list(pool.run([1, 2])) == [1, 2]
    assert begun == ["initializer"] * 2
