"""The stage that is named is the one that was made slow."""

import hashlib
import time

import pytest

from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.image_batch import ImageSlots
from datapipe.loader.device.prefetcher import DevicePrefetcher
from datapipe.profile.pipeline import find_bottleneck, run_pipeline
from datapipe.store.shards import ShardStore

pytestmark = pytest.mark.campaign  # measures real time

SECONDS = 0.7


def burn():
    """Some 10 ms of a core, without the interpreter's lock."""
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 20_000)


def in_python(sample, generator):
    """Some 10 ms of a core, with the interpreter's lock."""
    total = 0
    for number in range(200_000):
        total += number
    return sample


def asleep(sample, generator):
    time.sleep(0.02)
    return sample


@pytest.fixture
def slow(monkeypatch):
    """Has a method do something before its work."""

    def plant(owner, method, first):
        real = getattr(owner, method)

        def both(*args, **more):
            first()
            return real(*args, **more)

        monkeypatch.setattr(owner, method, both)

    return plant


READ, SEND = (ShardStore, "read"), (DevicePrefetcher, "send")
DECODE, COLLATE = (ImageSlots, "decode"), (BatchBuilder, "result")


@pytest.mark.parametrize(
    ("planted", "first", "options", "said"),
    [
        (READ, lambda: time.sleep(0.02), {}, "read storage"),
        (READ, lambda: time.sleep(0.02), {"num_workers": 0}, "read storage"),
        (DECODE, burn, {"num_workers": 0}, "decode cpu"),
        (DECODE, burn, {"num_workers": 1}, "decode cpu"),
        (DECODE, burn, {}, "decode cpu"),
        (COLLATE, lambda: time.sleep(0.15), {}, "collate caller"),
        (COLLATE, lambda: [burn() for _ in range(12)], {}, "collate caller"),
        (SEND, lambda: time.sleep(0.15), {"device": "cpu"}, "transfer caller"),
        (None, None, {"transform": asleep}, "transform wait"),
        # On a machine that others keep busy, it may only be seen that it takes most of the time.
        (None, None, {"transform": in_python}, "transform lock, transform cpu"),
        (
            *(None, None, {"transform": in_python, "workers": "processes"}),
            "transform cpu, transform unknown",
        ),
    ],
)
def test_a_slow_stage_is_named(endless, slow, planted, first, options, said):
    if planted:
        slow(*planted, first)
    run = run_pipeline(endless(**options), seconds=SECONDS)
    found = find_bottleneck(run, processes="workers" in options)
    assert f"{found.stage} {found.resource}" in said.split(", ")


def test_a_slow_step_is_named_and_a_loader_that_training_waits_for(endless, slow):
    def named(step_time):
        loader = endless()
        alone = run_pipeline(loader, seconds=SECONDS)
        found = find_bottleneck(alone, run_pipeline(loader, seconds=SECONDS, step_time=step_time))
        return found.stage, found.level

    assert named(0.4) == ("step", "good")
    slow(*READ, lambda: time.sleep(0.02))
    assert named(0.002) == ("read", "bad")
