"""Traces of a loop, and ranges for profilers."""

import json
import logging
import time
from contextlib import ExitStack

import pytest
import torch

import datapipe

from .virtual import is_recorded


def events(path, row=None):
    """All events, or ours of a row."""
    content = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in content if e["name"] == "thread_name"}
    drawn = [e for e in content if e.get("ph") == "X"]
    ours = [e for e in drawn if e["pid"] == 1 << 30]
    return [e for e in ours if names[e["tid"]].startswith(row)] if row else drawn


def train(monitor, batches):
    weight = torch.ones(50, 50)
    for _ in monitor(batches):
        with monitor.transfer():
            moved = weight.clone()
        with monitor.step():
            torch.mm(moved, moved)


def test_a_trace_shows_the_loop_beside_torchs_profiler(tmp_path):
    path = tmp_path / "trace.json"
    monitor = datapipe.Monitor(trace=path, trace_steps=(6, 3))
    train(monitor, range(20))
    loop = events(path, "training loop")
    assert [e["name"] for e in loop] == ["datapipe.wait", "datapipe.transfer", "datapipe.step"] * 3
    multiplied = [e for e in events(path) if e["name"] == "aten::mm"]
    assert len(multiplied) == 3
    steps = [e for e in loop if e["name"] == "datapipe.step"]
    slack = 2_000.0  # µs; the clocks are aligned by one range
    for step, inner in zip(steps, multiplied, strict=True):
        assert step["ts"] - slack <= inner["ts"] <= step["ts"] + step["dur"] + slack
    # torch's profiler saw the same ranges.
    profiled = [e for e in events(path) if e["name"] == "datapipe.step" and e["pid"] != 1 << 30]
    assert len(profiled) == 3
    assert monitor.report().left_out["traced"] == 3
    assert not is_recorded()


def test_the_loaders_threads_have_rows_of_their_own(tmp_path, make_folder):
    datapipe.pack_dataset(make_folder(tmp_path / "raw", 24), tmp_path / "shards")
    loader = datapipe.make_loader(
        tmp_path / "shards", batch_size=2, num_workers=2, image=datapipe.ImageSpec(size=32)
    )
    path = tmp_path / "trace.json"
    monitor = datapipe.Monitor(warmup=1, trace=path, trace_steps=(1, 6))
    for _ in monitor(loader):
        with monitor.step():
            time.sleep(0.002)
    worked, loop = events(path, "worker"), events(path, "training loop")
    assert {"datapipe.read", "datapipe.decode"} <= {e["name"] for e in worked}
    begin, end = loop[0]["ts"], loop[-1]["ts"] + loop[-1]["dur"]
    for e in worked:
        assert e["ts"] + e["dur"] >= begin - 1e6
        assert e["ts"] <= end + 1e6
    # The next pass remembers no events any more.
    assert loader.meter.options.events
    list(monitor(loader))
    assert not loader.meter.options.events


def test_a_trace_that_the_loop_does_not_reach_the_end_of_is_written(tmp_path):
    monitor = datapipe.Monitor()
    monitor.trace(tmp_path / "short.json", steps=(2, 100))
    train(monitor, range(6))
    assert len(events(tmp_path / "short.json", "training loop")) == 3 * 4
    monitor.trace(tmp_path / "left.json", steps=(0, 100))
    for number in monitor(range(6)):
        if number == 2:
            break
    monitor.report()
    left = events(tmp_path / "left.json", "training loop")
    assert [e["name"] for e in left] == ["datapipe.wait"] * 3
    assert not is_recorded()


@pytest.mark.parametrize("start", [0, 1, 9, 30, 90])
def test_a_trace_begins_and_ends_at_its_steps(tmp_path, start):
    path = tmp_path / "trace.json"
    monitor = datapipe.Monitor(trace=path, trace_steps=(start, 2))
    traced = {number for number in monitor(range(120)) if is_recorded()}
    assert traced - {7, 22, 87} == {start, start + 1}
    assert len(events(path, "training loop")) == 2


def test_a_trace_that_begins_in_a_recorded_step_has_torchs_events(tmp_path):
    monitor = datapipe.Monitor(trace=tmp_path / "trace.json", trace_steps=(8, 4))
    for number in monitor(range(40)):
        assert number not in (7, 8) or is_recorded()
        torch.ones(3).add(1)
        if number % 4 == 1:  # the step that begins with batch 7 ends with batch 9
            with monitor.step():
                pass
    assert len([e for e in events(tmp_path / "trace.json") if e["name"] == "aten::add"]) == 4


def test_a_trace_may_be_asked_for_in_the_middle_of_a_step(tmp_path):
    monitor = datapipe.Monitor()
    path = tmp_path / "trace.json"
    for number in monitor(range(30)):
        with monitor.transfer():
            pass
        if number == 20:
            monitor.trace(path, steps=(0, 2))
        with monitor.step():
            pass
    assert len(events(path, "training loop")) == 6
    report = monitor.report()
    assert report.step.count == report.transfer.count == report.turns == 30 - 5 - 2 - 2


def test_a_trace_that_cannot_be_written_does_not_end_training(tmp_path, caplog):
    monitor = datapipe.Monitor()
    folder = tmp_path / "folder"
    folder.mkdir()
    monitor.trace(folder / "trace.json", steps=(2, 2))
    for number in monitor(range(10)):
        if number == 2:
            (folder).rename(tmp_path / "elsewhere")
    assert "cannot be written" in caplog.text
    assert not is_recorded()
    monitor.trace(tmp_path / "again.json", steps=(0, 2))
    train(monitor, range(5))
    assert (tmp_path / "again.json").exists()


def test_a_profiler_that_runs_already_is_left_alone(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    monitor = datapipe.Monitor(trace=tmp_path / "trace.json", trace_steps=(2, 2))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        train(monitor, range(8))
    names = {event.key: event.count for event in profiler.key_averages()}
    assert names["datapipe.step"] == names["datapipe.wait"] - 1 == 8
    assert names["datapipe.transfer"] == 8
    assert len(events(tmp_path / "trace.json", "training loop")) == 6
    assert "running already" in caplog.text


@pytest.mark.parametrize("stop", [6, 12])
def test_a_profiler_that_starts_during_a_trace_is_left_alone(tmp_path, caplog, stop):
    """It ends before or after the trace, and has all of its events."""
    caplog.set_level(logging.INFO)
    monitor = datapipe.Monitor(trace=tmp_path / "trace.json", trace_steps=(2, 6))
    for number in monitor(range(20)):
        if number == 4:
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            profiler.__enter__()
        torch.ones(3).add(1)
        if number == stop:
            profiler.__exit__(None, None, None)
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["aten::add"] == stop - 4 + 1
    assert len(events(tmp_path / "trace.json", "training loop")) == 6
    assert "a profiler was started" in caplog.text


def test_a_profiler_that_only_waits_during_a_trace_leaves_it_its_events(tmp_path):
    monitor = datapipe.Monitor(trace=tmp_path / "trace.json", trace_steps=(2, 6))
    waiting = torch.profiler.schedule(wait=99, warmup=1, active=1)
    with ExitStack() as stack:
        for number in monitor(range(20)):
            if number == 4:
                stack.enter_context(torch.profiler.profile(schedule=waiting))
            torch.ones(3).add(1)
            assert is_recorded() == (2 <= number < 8)
    drawn = events(tmp_path / "trace.json")
    assert len([each for each in drawn if each["name"] == "aten::add"]) == 6


def test_ranges_are_shown_to_profilers_that_start_later_only_when_they_do():
    monitor = datapipe.Monitor()
    train(monitor, range(8))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(1).add(1)
    assert not any(event.key.startswith("datapipe") for event in profiler.key_averages())
