"""What a loader leaves behind: nothing."""

import contextlib
import copy
import gc
import os
import threading
from typing import Any

import pytest
import torch

from datapipe import DatapipeError
from tests.waiting import PATIENCE, wait_until

BEFORE: dict[str, Any] = {}
"""Threads, and open tars, that tests of other files left in this process."""


def workers():
    found = set(threading.enumerate()) - BEFORE["threads"]
    return [thread for thread in found if thread.name.startswith("datapipe-worker")]


def open_tars():
    held = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            held.add(os.readlink(f"/proc/self/fd/{number}"))
    return {target for target in held if target.endswith(".tar")}


def nothing_is_left():
    """Return True once threads and open shards are gone; workers finish their sample first."""
    return not workers() and open_tars() <= BEFORE["tars"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    BEFORE.update(threads=set(threading.enumerate()), tars=open_tars())
    yield
    gc.collect()
    wait_until(nothing_is_left)


def test_leaving_the_loop_early_stops_the_workers(make):
    loader = make()
    for _ in loader:
        assert len(workers()) == 2
        assert open_tars() - BEFORE["tars"]
        break
    wait_until(nothing_is_left)


def test_an_exception_in_the_loop_stops_the_workers(make):
    def train():
        for _ in make():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train()


def test_a_loader_is_closed_at_the_end_of_its_block(make):
    with make() as loader:
        iterator = iter(loader)
        next(iterator)
    loader.close()  # again
    with pytest.raises(DatapipeError, match="closed"):
        next(iterator)
    assert next(iter(loader)) is not None
    loader.close()


def test_a_new_iterator_closes_the_one_before_it(make):
    loader = make()
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(DatapipeError, match="another one was started"):
        next(first)
    next(second)
    assert len(workers()) == 2
    loader.close()


def test_no_workers_means_no_threads(make):
    def threads():
        # The kernel is loaded beside the image that comes when enough were decoded.
        return {thread for thread in threading.enumerate() if thread.name != "datapipe-kernel"}

    before = threads()
    for _ in make(num_workers=0):
        assert threads() <= before


def test_a_loader_dropped_without_being_read_leaves_nothing(make):
    iter(make())


@pytest.mark.campaign
def test_hundred_short_epochs_do_not_accumulate_anything(make):
    loader = make(batch_size=37)
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        for _ in loader:
            break
    gc.collect()
    wait_until(nothing_is_left)
    # What earlier tests left may have ended since; what others begin ends soon.
    wait_until(lambda: threading.active_count() <= threads)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)


def test_a_worker_that_hangs_is_named_and_does_not_hold_the_program(make, caplog, monkeypatch):
    monkeypatch.setattr("datapipe.workers.threads.PATIENCE", 0.01)  # it hangs however long
    begun, hold = threading.Event(), threading.Event()

    def hang(sample, generator):
        begun.set()
        hold.wait(PATIENCE)
        return sample

    iterator = iter(make(num_workers=1, shuffle=False, transform=hang))
    closing = threading.Thread(target=lambda: begun.wait(PATIENCE) and iterator.close())
    closing.start()
    with pytest.raises(DatapipeError, match="closed while"):
        next(iterator)
    closing.join()
    hold.set()
    for worker in workers():
        worker.join()
    assert "a worker does not stop: sample 000000000" in caplog.text


@pytest.mark.usefixtures("three_threads")
def test_loaders_started_at_once_leave_the_threads_of_torch_alone(make):
    seen = []

    def read():
        for _ in make(batch_size=37):
            seen.append(torch.get_num_threads())

    for _ in range(3):
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(seen) == {3}
    assert torch.get_num_threads() == 3


def test_a_thread_that_cannot_be_started_leaves_no_other_and_no_position(make, monkeypatch):
    loader = make(num_workers=3)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    state, threads = loader.state_dict(), torch.get_num_threads()
    start = threading.Thread.start

    def refuse_third(self):
        if self.name == "datapipe-worker-2":
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_third)
        with pytest.raises(RuntimeError, match="start new thread"):
            next(iter(loader))
    wait_until(nothing_is_left)
    assert torch.get_num_threads() == threads
    next(iter(loader))
    assert loader.state_dict()["unit"] == 2 * state["unit"]
    loader.close()


def test_a_forgotten_iterator_may_be_collected_by_its_own_worker(make):
    collecting = threading.Event()

    def collect(sample, generator):
        if collecting.wait(PATIENCE):
            gc.collect()
        return sample

    gc.disable()
    try:
        cycle = [iter(make(num_workers=2, transform=collect))]
        cycle[0].executor.ready()
        cycle.append(cycle)
        del cycle
        collecting.set()
        wait_until(nothing_is_left)
    finally:
        gc.enable()


def test_one_iterator_is_not_for_two_threads(make):
    begun, go = threading.Event(), threading.Event()

    def wait(sample, generator):
        begun.set()
        go.wait(PATIENCE)
        return sample

    iterator = iter(make(num_workers=0, transform=wait))
    other = threading.Thread(target=next, args=(iterator,))
    other.start()
    assert begun.wait(PATIENCE)
    with pytest.raises(DatapipeError, match="two threads"):
        next(iterator)
    go.set()
    other.join()
    next(iterator)


def test_a_loader_cannot_be_copied_and_says_what_to_do(make):
    with pytest.raises(DatapipeError, match="make_loader there"):
        copy.deepcopy(make())
