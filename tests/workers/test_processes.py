"""Worker processes: how they start, end and speak, whatever the program is that they work for."""

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial

import pytest

from datapipe import WorkerError
from datapipe.workers.messages import Descriptor
from datapipe.workers.processes import ProcessPool
from tests.imports import IMPORTS
from tests.waiting import PATIENCE, wait_until
from tests.workers.jobs import broken_worker, repeating_worker, worker, writer


def describe(job):
    return f"job {job[0]}"


@pytest.fixture
def pool():
    with closing(ProcessPool(worker, 2, describe=describe, remedy="use one worker")) as pool:
        yield pool


def ended(process):
    """Return True once all threads of a process ended; False if it outlives all patience."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    gone = bool(poll.poll(1000 * PATIENCE))
    os.close(descriptor)
    return gone


def test_a_job_may_have_many_results_or_none():
    with closing(ProcessPool(repeating_worker, 2)) as pool:
        expected = [(job, n) for job in (2, 0, 3, 0) for n in range(job)]
        assert list(pool.run([2, 0, 3, 0])) == expected
        results = pool.run([2, -1, 3])
        assert [next(results), next(results)] == [(2, 0), (2, 1)]
        with pytest.raises(LookupError, match="below zero"):
            next(results)


def test_an_error_has_the_traceback_of_the_worker(pool):
    with pytest.raises(LookupError, match="job 3") as caught:
        list(pool.run([(3, "fail")]))
    assert "in a worker process" in str(caught.value.__cause__)
    assert 'raise LookupError(f"job {number}")' in str(caught.value.__cause__)


@pytest.mark.parametrize("kind", ["odd error", "unsendable"])
def test_what_cannot_be_sent_back_is_told(pool, kind):
    with pytest.raises(Exception, match=r"cannot be pickled|Can't pickle|local object"):
        list(pool.run([(0, kind)]))
    assert list(pool.run([(1, "")])) == [10]


def test_a_worker_that_was_killed_or_left_is_named_with_its_job_and_started_again(pool):
    with pytest.raises(WorkerError) as caught:
        list(pool.run([(n, "kill" if n == 5 else "") for n in range(50)]))
    said = str(caught.value)
    assert "ended by SIGKILL at job 5" in said
    assert "memory; use one worker\nthese are my last words" in said
    assert pool.processes == []
    with pytest.raises(WorkerError, match="ended with 7 at job 0"):
        list(pool.run([(0, "exit")]))
    (process,) = pool.run([(0, "pid")])
    os.kill(process, signal.SIGKILL)  # between runs
    assert ended(process)
    assert list(pool.run([(n, "") for n in range(9)])) == [n * 10 for n in range(9)]


def test_an_error_at_the_start_of_a_worker_is_raised_as_it_is():
    with closing(ProcessPool(broken_worker, 1)) as pool, pytest.raises(LookupError, match="no su"):
        list(pool.run([1]))
    with pytest.raises(WorkerError, match=r"lambda.*top of a module"):
        ProcessPool(lambda: worker, 1)


def test_what_a_worker_prints_is_passed_on_with_the_job(pool, capfd):
    assert list(pool.run([(0, ""), (1, "print", "a\nb"), (2, "")])) == [0, 10, 20]
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition("] ")[2] for line in lines] == ["a", "b", "and from C"]
    assert all(line.startswith("[worker ") and ", job 1]" in line for line in lines)


def test_ctrl_c_is_left_to_the_parent(pool):
    assert list(pool.run([(n, "signal") for n in range(4)])) == [0, 10, 20, 30]


def test_a_worker_has_the_state_of_its_parent_as_it_is_now(pool, tmp_path, monkeypatch):
    list(ProcessPool(worker, 1).run([(0, "")]))  # the template exists
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SET_LATE", "1")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    ((folder, environment, arguments, path, threads),) = pool.run([(0, "state")])
    assert folder == str(tmp_path)
    assert environment == dict(os.environ)
    assert arguments == sys.argv
    assert path[0] == str(tmp_path / "modules")
    assert threads == 2  # the second reads messages


def test_workers_draw_different_random_numbers(pool):
    drawn = {process: rest for process, *rest in pool.run([(n, "random") for n in range(40)])}
    (one, other) = drawn.values()
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_open_files_travel_with_factories_and_results(tmp_path):
    with (tmp_path / "file").open("w") as file:
        factory = partial(writer, Descriptor(file.fileno()))
        with closing(ProcessPool(factory, 2)) as pool:
            for answer in pool.run(["one", "two"]):
                with os.fdopen(answer.number) as memory:
                    memory.seek(0)
                    assert memory.read() in ("ONE", "TWO")
    assert sorted((tmp_path / "file").read_text().split("two")) == ["", "one"]


def test_large_jobs_and_results_do_not_block_each_other(pool):
    jobs = [(number, "echo", bytes([number]) * (3 << 20)) for number in range(10)]
    assert list(pool.run(jobs)) == [content for _, _, content in jobs]


def test_workers_of_a_dropped_pool_end_and_leave_no_zombie_and_no_open_file():
    list(ProcessPool(worker, 1).run([(0, "")]))  # the template exists
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    dropped = ProcessPool(worker, 2)
    processes = set(dropped.run([(n, "pid") for n in range(20)]))
    del dropped
    gc.collect()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # others open files for a while
    assert all(map(ended, processes))
    wait_until(lambda: not any(os.path.exists(f"/proc/{process}") for process in processes))


@pytest.mark.campaign
def test_workers_of_dropped_pools_end_together_without_harm_to_later_pools():
    for _ in range(80):
        pool = ProcessPool(worker, 8)
        assert len(set(pool.run([(number, "pid") for number in range(8)]))) == 8
        del pool
        gc.collect()


def test_a_busy_worker_ends_when_the_pool_is_closed_by_another_thread(pool, tmp_path):
    begun = tmp_path / "begun"

    def close():
        wait_until(lambda: begun.exists() and begun.read_text())
        pool.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(WorkerError, match="closed while"):
        list(pool.run([(0, "hang", str(begun))]))
    thread.join()
    assert ended(int(begun.read_text()))


def test_a_forked_child_has_workers_of_its_own_and_leaves_those_of_its_parent(pool):
    parents = set(pool.run([(n, "pid") for n in range(10)]))
    child = os.fork()
    if not child:
        workers = set(pool.run([(n, "pid") for n in range(10)]))
        pool.close()
        os._exit(0 if workers and not workers & parents else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert set(pool.run([(n, "pid") for n in range(10)])) == parents


OWN_FUNCTION = """
import os
from datapipe.workers.processes import ProcessPool
print("imported as", __name__, flush=True)

class Answer:
    def __init__(self, value):
        self.value = value

def work(job):
    return Answer(job * 2)

def worker():
    return work
"""
GUARDED = """
if __name__ == "__main__":
    pool = ProcessPool(worker, 1)
    print([answer.value for answer in pool.run(range(4))])
"""
UNGUARDED = """
print(list(ProcessPool({factory}, 1).run(range(4))))
"""


POWERS = "__import__('functools').partial(__import__('functools').partial, pow, 2)"
IMPORTED_TWICE = ["imported as __main__", "imported as __mp_main__", "[0, 2, 4, 6]"]


@pytest.mark.parametrize(
    ("ending", "args", "printed", "told"),
    [
        (GUARDED, ["script.py"], IMPORTED_TWICE, None),
        (GUARDED, ["-m", "script"], IMPORTED_TWICE, None),
        # Of this script nothing is sent.
        (
            UNGUARDED.format(factory=POWERS),
            ["script.py"],
            [IMPORTED_TWICE[0], "[1, 2, 4, 8]"],
            None,
        ),
        (UNGUARDED.format(factory="worker"), ["script.py"], None, "if __name__ == '__main__':`"),
        (GUARDED, ["-"], None, "not defined in a file"),
    ],
    ids=["script", "module", "no guard", "sent without a guard", "no file"],
)
def test_functions_of_the_main_script_reach_workers_or_are_named_with_the_remedy(
    tmp_path, ending, args, printed, told
):
    script = OWN_FUNCTION + ending
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, *args],
        input=script,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | IMPORTS,
        cwd=tmp_path,
    )
    if told is None:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == printed
    else:
        assert done.returncode == 1
        assert told in done.stderr.splitlines()[-1]


INTERRUPTED = """
import os, signal, sys
from datapipe.workers.processes import ProcessPool
from tests.workers.jobs import worker
pool = ProcessPool(worker, 2)
results = pool.run((n, "pid") for n in range(10**9))
print(*{next(results) for _ in range(20)}, flush=True)
for _ in results:
    pass
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_program_and_print_nothing(how):
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | IMPORTS,
    )
    workers = list(map(int, program.stdout.readline().split()))
    assert workers
    for process in workers:  # as a terminal does
        os.kill(process, signal.SIGINT)
    program.send_signal(how)
    _, said = program.communicate(timeout=PATIENCE)
    assert said.count("Traceback") == (1 if how == signal.SIGINT else 0)
    assert "in a worker" not in said
    assert "[worker" not in said
    assert all(map(ended, workers))
