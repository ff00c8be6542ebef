"""A metered loader says what its workers do, and yields the batches of any other."""

import itertools
import time
from types import SimpleNamespace

import pytest
import torch

import datapipe
from datapipe.loader.metrics import stage_clock
from datapipe.loader.metrics.meter import Meter, Reading
from datapipe.loader.metrics.stage_clock import ClockOptions, StageClock
from datapipe.testing import assert_same_batches
from tests.waiting import wait_until

WAYS = [
    pytest.param({"num_workers": 0}, id="caller"),
    pytest.param({"num_workers": 2}, id="threads"),
    pytest.param({"num_workers": 2, "workers": "processes"}, id="processes"),
]


@pytest.fixture
def clock_time(monkeypatch):
    """A clock that stands still until told otherwise."""
    time = SimpleNamespace(now=0, cpu=0)

    def spend(wall, cpu=0):
        time.now += wall
        time.cpu += cpu

    given = {"perf_counter_ns": lambda: time.now, "thread_time_ns": lambda: time.cpu}
    monkeypatch.setattr(stage_clock, "time", SimpleNamespace(**given))
    return SimpleNamespace(spend=spend)


@pytest.mark.parametrize("way", WAYS)
def test_every_sample_and_image_is_seen_in_the_same_batches(make, way):
    loader = make(batch_size=1, **way)  # no repeats in the last step
    meter = loader.start_metering(events=True)
    batches = list(loader)
    assert_same_batches(batches, make(batch_size=1))
    first = meter.reading()
    list(loader)
    loader.close()
    second = meter.reading()
    images = sum(len(batch["pixel_values"]) for batch in batches)
    for reading in (first, second.since(first)):
        assert (reading.samples, reading.batches) == (len(loader), len(loader))
        assert reading.stages["decode"].count == reading.stages["resize"].count == images
    assert first.workers == way["num_workers"]
    sizes = loader.dataset.columns
    decoded = 3 * sizes.image_width.astype(int) * sizes.image_height
    assert first.stages["decode"].bytes >= decoded.sum()
    assert first.stages["read"].bytes >= sizes.member_size.sum() - 1
    assert 0 < first.waited <= first.seconds
    assert len(first.waits) == len(first.ready) == len(loader)
    assert all(stage.seconds > 0 for stage in first.stages.values())
    assert second.stages["decode"].seconds > first.stages["decode"].seconds
    assert first.caller["plan"].count >= len(loader)
    events = meter.events
    assert events == sorted(events, key=lambda event: event.start)
    assert {"read", "decode", "resize", "plan", "collate"} <= {event.stage for event in events}
    for row in {event.row for event in events} - {"caller"}:
        own = [event for event in events if event.row == row]
        assert all(one.end <= other.start for one, other in itertools.pairwise(own))


@pytest.mark.parametrize("way", WAYS)
def test_only_samples_that_training_uses_are_counted(damaged, way):
    image, out = datapipe.ImageSpec(size=32), ["000000005"]
    options = {"batch_size": 5, "image": image, "on_error": "skip", "exclude": out, **way}
    with datapipe.make_loader(damaged, **options) as loader:
        meter = loader.start_metering()
        used = sum(int(batch["valid"].sum()) for batch in loader)  # as `tune-workers` counts
    assert meter.reading().samples == used == 37 - 2 - 1


def sleepy(sample, generator):
    time.sleep(0.02)
    return sample


def test_a_stage_that_waits_takes_time_and_no_cpu_and_tokens_are_a_stage(make, text):
    loader = make(text=text(), transform=sleepy, num_workers=2)
    meter = loader.start_metering()
    list(loader)
    loader.close()
    stages = meter.reading().stages
    assert stages["transform"].seconds > 0.02 * 37
    assert stages["transform"].cpu < stages["transform"].seconds / 2
    assert max(stages, key=lambda name: stages[name].seconds) == "transform"
    assert stages["tokenize"].seconds > 0


def test_finished_batches_are_counted_where_the_caller_is_slow(make):
    loader = make(num_workers=2, prefetch_factor=3, epochs=None)
    meter = loader.start_metering()
    iterator = iter(loader)
    next(iterator)

    def is_ahead():
        time.sleep(0.1)
        next(iterator)
        return max(meter.reading().ready) >= 2

    wait_until(is_ahead)
    loader.close()
    assert meter.reading().ready[0] == 0


def test_ranges_show_in_the_profiler_of_torch(make):
    loader = make(num_workers=0)
    loader.start_metering(ranges=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        list(loader)
    names = {event.key for event in profiler.key_averages()}
    assert {"datapipe.read", "datapipe.decode", "datapipe.resize"} <= names


def test_metering_begins_with_the_next_iteration(make):
    loader = make()
    iterator = iter(loader)
    next(iterator)
    meter = loader.start_metering()
    assert loader.meter is meter
    next(iterator)
    nothing = dict.fromkeys(("seconds", "samples", "batches", "waited", "idle"), 0)
    assert meter.reading() == Reading(workers=2, stages={}, **nothing)


def test_time_between_stages_is_idle_and_what_is_taken_is_not_counted_again(clock_time):
    clock = StageClock("worker 0", ClockOptions(events=True))
    clock_time.spend(100)  # before it ever worked
    clock.at("read")
    clock_time.spend(30, 10)
    clock.add(7)
    clock.at("decode")
    clock_time.spend(50, 50)
    clock.rest()
    clock_time.spend(20, 1)
    clock.at("read")
    clock_time.spend(5, 5)
    tally = clock.read()  # the second read goes on
    assert tally.stages == {"read": (30, 10, 2, 7), "decode": (50, 50, 1, 0)}
    assert tally.idle == 20
    clock.rest()
    assert clock.take().stages["read"] == (35, 15, 2, 7)
    clock_time.spend(4)
    clock.at("read")
    clock_time.spend(1)
    clock.rest()
    tally = clock.take()
    assert tally.stages == {"read": (1, 0, 1, 0)}
    assert tally.idle == 4
    assert [(event.start, event.end) for event in tally.events] == [(209, 210)]


def test_a_function_that_raises_is_counted_until_then(clock_time):
    clock = StageClock("caller")

    def fail():
        clock_time.spend(9)
        raise KeyError

    with pytest.raises(KeyError):
        clock.timed("collate", fail)()
    clock_time.spend(5)
    assert clock.read().stages["collate"][0] == 9


def test_finished_batches_are_known_in_hindsight():
    meter = Meter(2, ClockOptions())
    # Asked for at 10, 20, 30, 40; finished at 15, 18, 12 and 40.
    for asked, finished in ((10, 15), (20, 18), (30, 12), (40, 40)):
        meter.give(asked=asked, finished=finished, samples=1)
    assert meter.reading().ready == (0, 2, 1, 1)
