"""Every pool gives results in the order of its jobs, lazily, and can be used again."""

import itertools
import threading
import weakref
from contextlib import closing

import pytest

from datapipe.errors import WorkerError
from datapipe.workers.inline import InlinePool
from datapipe.workers.processes import ProcessPool
from datapipe.workers.ray_cluster import RayCluster
from datapipe.workers.ray_tasks import RayPool
from datapipe.workers.threads import ThreadPool
from tests.waiting import PATIENCE, wait_until
from tests.workers.jobs import work, worker


def plain(count):
    return ((number, "") for number in range(count))


POOLS = {
    "inline": lambda: InlinePool(work),
    "threads": lambda: ThreadPool(work, 2, ahead=3),
    "processes": lambda: ProcessPool(worker, 2, ahead=3),
}
WINDOW = {"inline": 1, "threads": 6, "processes": 6, "ray": 6}


@pytest.fixture(scope="module")
def of_ray():
    pytest.importorskip("ray")
    cluster = RayCluster(None, 2, None)
    yield RayPool(cluster, worker, ahead=3)
    cluster.close()


@pytest.fixture(params=[*POOLS, pytest.param("ray", marks=pytest.mark.campaign)])
def kind(request):
    return request.param


@pytest.fixture
def pool(kind, request):
    make = POOLS.get(kind) or (lambda: request.getfixturevalue("of_ray"))
    with closing(make()) as pool:
        yield pool


def test_results_come_in_the_order_of_jobs(pool):
    assert list(pool.run(plain(100))) == list(range(0, 1000, 10))
    results = pool.run([])
    assert results.wait(1)
    assert list(results) == []
    assert list(results) == []


def test_jobs_are_taken_in_the_thread_that_asks_and_a_bounded_number_ahead(pool, kind):
    taken = []

    def jobs():
        for number in itertools.count():
            taken.append(threading.get_ident())
            yield number, ""

    results = pool.run(jobs())
    assert taken == []
    for number in range(20):
        assert next(results) == number * 10
        assert len(taken) <= number + 1 + WINDOW[kind]
    assert set(taken) == {threading.get_ident()}
    results.close()


def test_an_error_of_a_job_or_of_the_jobs_comes_after_the_results_before_it(pool):
    results = pool.run((number, "fail" if number == 7 else "") for number in range(100))
    assert [next(results) for _ in range(7)] == list(range(0, 70, 10))
    with pytest.raises(LookupError, match="job 7"):
        next(results)
    assert list(results) == []
    assert list(pool.run(plain(10))) == list(range(0, 100, 10))

    def jobs():
        yield from plain(4)
        raise LookupError("no more")

    results = pool.run(jobs())
    assert [next(results) for _ in range(4)] == [0, 10, 20, 30]
    with pytest.raises(LookupError, match="no more"):
        next(results)
    assert list(results) == []


def test_a_run_or_a_pool_that_was_closed_does_not_disturb_the_next_run(pool, kind):
    results = pool.run(plain(1000))
    assert [next(results), next(results)] == [0, 10]
    results.close()
    results.close()
    assert list(results) == []
    assert list(pool.run(plain(30))) == list(range(0, 300, 10))
    for result in pool.run(plain(1000)):
        if result == 50:
            break
    results = pool.run(plain(1000))
    assert next(results) == 0
    pool.close()
    pool.close()
    if kind != "inline":
        with pytest.raises(WorkerError, match="the workers were closed"):
            list(results)
        assert list(results) == []
    assert list(pool.run(plain(30))) == list(range(0, 300, 10))


def test_a_wait_of_no_time_tells_whether_a_result_is_there(pool, kind):
    results = pool.run(plain(2))
    if kind == "inline":
        assert not results.wait(0)
    assert results.wait(PATIENCE)
    if kind != "inline":
        assert results.wait(0)
    assert list(results) == [0, 10]
    assert results.wait(PATIENCE)


def test_threads_do_the_parts_of_a_job_together():
    together, ends = threading.Barrier(3, timeout=PATIENCE), []

    def part(job, number):
        together.wait()  # passes once all three parts are begun
        return job

    pool = ThreadPool(part, 3, ahead=2, parts=lambda job: 3, on_end=lambda: ends.append(1))
    with closing(pool):
        assert list(pool.run(range(5))) == list(range(5))
        assert ends == []
    assert ends == [1]


def test_an_error_in_one_part_of_a_job_is_that_of_the_job():
    def part(job, number):
        if (job, number) == (2, 1):
            raise LookupError("part 1 of job 2")
        return job

    with closing(ThreadPool(part, 2, parts=lambda job: 3)) as pool:
        results = pool.run(range(5))
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(LookupError, match="part 1 of job 2"):
            next(results)


def running(name):
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_threads_of_a_dropped_pool_end_and_are_not_deleted_by_the_thread_that_dropped_it():
    # Python code runs when a `Thread` is deleted; a Ctrl-C that arrives in it would be lost.

    def jobs():
        try:
            yield from itertools.count()
        finally:  # while the run is dropped
            wait_until(lambda: not running("left"))

    deleted_in = []
    results = ThreadPool(abs, 2, name="left").run(jobs())
    next(results)
    for thread in running("left"):
        weakref.finalize(thread, lambda: deleted_in.append(threading.get_ident()))
    del thread, results
    wait_until(lambda: len(deleted_in) == 2)
    assert threading.get_ident() not in deleted_in


@pytest.mark.campaign
def test_a_job_that_kills_its_task_in_every_attempt_ends_the_run_on_a_cluster(of_ray):
    results = of_ray.run((number, "kill" if number == 1 else "") for number in range(3))
    assert next(results) == 0
    with pytest.raises(
        WorkerError, match=r"\(1, 'kill'\): the process of its task died in each of 3"
    ):
        next(results)
    assert list(of_ray.run(plain(5))) == [0, 10, 20, 30, 40]
