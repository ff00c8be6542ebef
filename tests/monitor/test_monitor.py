"""A monitor around a training loop: what it counts, and what it leaves alone."""

import gc
import json
import logging
import threading
import weakref

import pytest

import datapipe

from .virtual import Batches, Clock, train


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def monitor(clock):
    return datapipe.Monitor(clock=clock)


def test_time_is_divided_into_waiting_transfer_step_and_rest(monitor, clock):
    """In figures, in plain data and in a short table."""
    train(monitor, Batches(clock, 30, wait=0.01), clock, step=0.06, transfer=0.02, rest=0.01)
    report = monitor.report()
    shares = (report.wait_share, report.transfer_share, report.step_share, report.rest_share)
    assert shares == pytest.approx((0.1, 0.2, 0.6, 0.1))
    assert report.step.p50 == pytest.approx(0.06, rel=0.02)
    assert report.wait.p99 == pytest.approx(0.01, rel=0.02)
    assert report.seconds == pytest.approx(0.1 * report.turns)
    content = json.loads(json.dumps(report.to_dict()))
    assert content["wait_share"] == report.wait_share
    assert content["verdict"]["kind"] == report.verdict.kind == "transfer"
    assert "waiting for batches  10.0%" in str(report)
    assert max(map(len, str(report).splitlines())) < 120


def test_the_first_batch_and_the_warm_up_are_reported_apart(monitor, clock):
    slow = iter([5.0, 1.0, 1.0, 1.0, 1.0])
    for _ in monitor(Batches(clock, 30, wait=0.01, first=8.0)):
        with monitor.step():
            clock.sleep(next(slow, 0.01))
    report = monitor.report()
    assert report.first.longest == pytest.approx(8.01)
    assert report.left_out == {"first": 1, "warm-up": 4, "recorded": 2}
    assert report.turns == 30 - 7
    assert report.wait.longest == report.step.longest == pytest.approx(0.01)


def test_workers_that_start_anew_each_epoch_are_no_waiting_but_are_reported(monitor, clock):
    for _ in range(4):
        train(monitor, Batches(clock, 20, first=3.0), clock, step=0.1)
        clock.sleep(100.0)  # validation
    report = monitor.report()
    assert report.wait_share == 0.0
    assert report.first.count == 4
    assert report.first.p50 == pytest.approx(3.0, rel=0.02)
    assert report.seconds == pytest.approx(0.1 * report.turns)


def test_transfers_inside_a_step_are_no_part_of_it_and_nested_steps_are_one(monitor, clock):
    for _ in monitor(Batches(clock, 20)):
        for _ in range(2):
            with monitor.step(), monitor.step():
                with monitor.transfer():
                    clock.sleep(0.03)
                clock.sleep(0.01)
    report = monitor.report()
    shares = (report.transfer_share, report.step_share, report.rest_share)
    assert shares == pytest.approx((0.75, 0.25, 0.0))
    assert report.step.count == 2 * report.turns
    assert report.step.p99 == pytest.approx(0.01, rel=0.02)


def test_a_loop_without_marks_is_measured_too(monitor, clock):
    for _ in monitor(Batches(clock, 30, wait=0.03)):
        clock.sleep(0.01)
    assert monitor.report().wait_share == pytest.approx(0.75)
    assert monitor.verdict.kind == "data"


def test_what_is_written_once_between_steps_does_not_make_the_loop_slow(monitor, clock):
    for number in monitor(Batches(clock, 30)):
        with monitor.step():
            clock.sleep(0.1)
        if number == 20:
            clock.sleep(5.0)  # a trace
    report = monitor.report()
    assert report.rest_share > 0.6
    assert report.verdict.kind != "loop"
    monitor = datapipe.Monitor(clock=clock)
    train(monitor, Batches(clock, 30), clock, step=0.1, rest=0.2)
    assert monitor.verdict.kind == "loop"


def test_a_run_too_short_for_figures_shows_none(monitor, clock):
    train(monitor, Batches(clock, 5), clock, step=0.1)
    assert monitor.verdict.kind == "unknown"
    json.dumps(monitor.report().to_dict())
    said = str(monitor.report())
    assert "P50" not in said
    assert "0 steps timed so far" in said
    assert "let the loop run longer" in said


def test_a_loop_that_never_has_figures_is_not_to_run_longer(monitor, clock):
    for _ in range(9):
        train(monitor, Batches(clock, 1), clock, step=0.1)
    (action,) = monitor.verdict.actions
    assert action.startswith("give the loader more batches a pass")
    other = datapipe.Monitor(clock=clock)
    for _ in zip(other(Batches(clock, 9)), other(Batches(clock, 9)), strict=True):
        clock.sleep(0.1)
    (action,) = other.verdict.actions
    assert action.startswith("give each loop its own `Monitor`")


def test_a_loop_left_by_break_counts_what_it_did(monitor, clock):
    for number in monitor(Batches(clock, 100, wait=0.01)):
        with monitor.step():
            clock.sleep(0.03)
        if number == 9:
            clock.sleep(50.0)  # what comes after the loop
            break
    clock.sleep(50.0)
    report = monitor.report()
    assert report.turns == 10 - 1 - 4 - 1  # first, warm-up, recorded
    assert report.seconds == pytest.approx(0.04 * report.turns)


def test_a_step_that_fails_counts_for_nothing_and_its_error_comes_through(monitor, clock):
    caught = 0
    for number in monitor(Batches(clock, 40, wait=0.01)):
        try:
            with monitor.step():
                clock.sleep(0.03)
                if number % 4 == 3:
                    clock.sleep(7.0)
                    raise RuntimeError("out of memory")
        except RuntimeError:
            caught += 1
    report = monitor.report()
    assert caught == 10
    assert report.step.longest == pytest.approx(0.03)
    assert report.left_out["disturbed"] >= 8
    with pytest.raises(ZeroDivisionError), monitor.step():
        raise ZeroDivisionError


def test_errors_of_the_loader_and_its_end_come_through(monitor):
    def broken():
        yield 1
        raise OSError("disk gone")

    batches = iter(monitor(broken()))
    assert next(batches) == 1
    with pytest.raises(OSError, match="disk gone"):
        next(batches)
    ended = iter(monitor([1]))
    assert next(ended) == 1
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(ended)


def test_items_length_and_attributes_are_the_loaders(monitor):
    class Loader(list[int]):
        batch_size = 8

    watched = monitor(Loader([1, 2, 3]))
    assert list(watched) == [1, 2, 3]
    assert (len(watched), watched.batch_size, bool(watched)) == (3, 8, True)
    assert not monitor([])
    assert list(monitor([])) == []
    with pytest.raises(TypeError, match="has no len"):
        len(monitor(iter([1])))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = watched.nonsense


def test_batches_are_not_kept_alive(monitor):
    class Batch:
        pass

    seen: list[weakref.ref[Batch]] = []
    for batch in monitor(Batch() for _ in range(12)):
        seen.append(weakref.ref(batch))
        with monitor.step():
            del batch
        assert seen[-1]() is None


def test_nothing_grows_with_the_number_of_steps(clock):
    def reachable(root):
        found, stack = set(), [root]
        while stack:
            item = stack.pop()
            if id(item) in found or isinstance(item, type | type(gc)) or callable(item):
                continue
            found.add(id(item))
            stack += gc.get_referents(item)
        return len(found)

    sizes = []
    for count in (1_000, 10_000):
        monitor = datapipe.Monitor(clock=clock)
        train(monitor, Batches(clock, count, wait=0.001), clock, step=0.002)
        sizes.append(reachable(vars(monitor)))
    assert sizes[1] < 1.3 * sizes[0]
    assert len(monitor.report().timeline) <= 240


def test_a_loop_inside_of_a_loop_takes_nothing_from_it(monitor, clock):
    for number in monitor(Batches(clock, 30, wait=0.01)):
        with monitor.step():
            clock.sleep(0.09)
        if number % 10 == 9:
            inner = datapipe.Monitor(clock=clock)
            train(inner, Batches(clock, 20, wait=0.5), clock, step=0.5)
            assert inner.report().wait_share == pytest.approx(0.5)
            clock.sleep(-20.0)  # as if it had taken no time, for the outer loop
    assert monitor.report().wait_share == pytest.approx(0.1)


def test_two_loops_on_one_monitor_do_not_mix(monitor, clock):
    train(monitor, Batches(clock, 10), clock, step=0.1)
    for number in monitor(Batches(clock, 30, wait=0.01)):
        with monitor.step():
            clock.sleep(0.09)
        if number == 15:
            for _ in monitor(Batches(clock, 3)):
                clock.sleep(1.0)
        clock.sleep(0.1)
    report = monitor.report()
    assert report.wait.longest == pytest.approx(0.01)
    assert report.step.longest <= 0.1 + 1e-9
    watched = zip(monitor(range(50)), monitor(range(50)), strict=True)
    assert list(watched) == [(number, number) for number in range(50)]
    assert monitor.report().left_out["disturbed"] > 90


def test_another_thread_is_let_through_unmeasured_and_told_once(monitor, clock, caplog):
    got: list[int] = []

    def other():
        for number in monitor(range(5)):
            with monitor.step(), monitor.transfer():
                got.append(number)

    for number in monitor(Batches(clock, 30, wait=0.01)):
        if number in (10, 12):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        with monitor.step():
            clock.sleep(0.09)
    assert got == [0, 1, 2, 3, 4] * 2
    report = monitor.report()
    assert report.wait_share == pytest.approx(0.1)
    assert report.step.count == report.turns
    assert [r.message for r in caplog.records if "two threads" in r.message] != []
    assert len(caplog.records) == 1 + sum("batches" in r.message for r in caplog.records)


def test_a_loop_may_move_to_another_thread(monitor, clock):
    turns = []
    for _ in range(2):
        args = (monitor, Batches(clock, 10), clock)
        thread = threading.Thread(target=train, args=args)
        thread.start()
        thread.join()
        turns.append(monitor.report().turns)
    assert turns[1] > turns[0] > 0


def test_marks_outside_of_a_loop_do_nothing(monitor, clock):
    with monitor.step(), monitor.transfer():
        clock.sleep(1.0)
    with monitor.step():
        train(monitor, Batches(clock, 20, wait=0.01), clock, step=0.03)
    report = monitor.report()
    assert report.wait_share == pytest.approx(0.25)
    assert report.step.longest == pytest.approx(0.03)


def test_the_log_warns_once_of_waiting_and_not_of_a_loop_that_hardly_waits(monitor, clock, caplog):
    train(datapipe.Monitor(clock=clock), Batches(clock, 500, 0.005, first=60.0), clock, step=0.1)
    assert not caplog.records
    train(monitor, Batches(clock, 500, wait=0.02), clock, step=0.08)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "data-bound: 20% of the time goes into waiting for batches" in record.message


def test_options_out_of_range_are_refused(monitor, tmp_path):
    file = tmp_path / "t.json"
    for call, message in (
        (lambda: datapipe.Monitor(warmup=-1), "warmup -1"),
        (lambda: monitor.trace(file, steps=(-1, 5)), r"steps \(-1, 5\): give \(an integer from 0,"),
        (lambda: datapipe.Monitor(trace=file, trace_steps=(0, 0)), r"trace_steps \(0, 0\): give"),
        (lambda: monitor.trace(tmp_path / "missing" / "t.json"), "folder does not exist"),
        (lambda: [monitor.trace(file) for _ in range(2)], "one at a time"),
    ):
        with pytest.raises(datapipe.PlanError, match=message):
            call()
