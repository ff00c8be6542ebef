"""The stage that is named is the one that was made slow."""

import hashlib
import time
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from typing import Any

import pytest

import datapipe
from datapipe.diagnosis.loader_rules import Limit
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.image_batch import ImageSlots
from datapipe.loader.device.prefetcher import DevicePrefetcher
from datapipe.profile.pipeline import find_bottleneck, run_pipeline
from datapipe.store.shards import ShardStore

pytestmark = pytest.mark.campaign  # measures real time

Make = Callable[..., datapipe.Loader]
SECONDS = 0.7


def named(loader: datapipe.Loader, **how: Any) -> Limit:
    return find_bottleneck(run_pipeline(loader, seconds=SECONDS), **how)


def burn() -> None:
    """Some 10 ms of a core, without the interpreter's lock."""
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 20_000)


def in_python(sample: dict[str, Any], generator: Any) -> dict[str, Any]:
    """Some 10 ms of a core, with the interpreter's lock."""
    total = 0
    for number in range(200_000):
        total += number
    return sample


def asleep(sample: dict[str, Any], generator: Any) -> dict[str, Any]:
    time.sleep(0.02)
    return sample


READ, SEND = (ShardStore, "read"), (DevicePrefetcher, "send")
DECODE, COLLATE = (ImageSlots, "decode"), (BatchBuilder, "result")
PLANTED: dict[str, tuple[Any, Callable[[], Any], dict[str, Any], str]] = {
    "storage": (READ, lambda: time.sleep(0.02), {}, "read storage"),
    "storage, no workers": (READ, lambda: time.sleep(0.02), {"num_workers": 0}, "read storage"),
    "decoding, no workers": (DECODE, burn, {"num_workers": 0}, "decode cpu"),
    "decoding, one worker": (DECODE, burn, {"num_workers": 1}, "decode cpu"),
    "decoding, two workers": (DECODE, burn, {}, "decode cpu"),
    "collating waits": (COLLATE, lambda: time.sleep(0.15), {}, "collate caller"),
    "collating": (COLLATE, lambda: [burn() for _ in range(12)], {}, "collate caller"),
    "transfer": (SEND, lambda: time.sleep(0.15), {"device": "cpu"}, "transfer caller"),
}
"""A method, what it does before its work, options of the loader, and what is to be named."""


@pytest.fixture
def plant(endless: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], datapipe.Loader]:
    """Makes a loader, a stage of which is slow."""

    def make(name: str) -> datapipe.Loader:
        (owner, method), slow, options, _ = PLANTED[name]
        real = getattr(owner, method)

        def both(*args: Any, **more: Any) -> Any:
            slow()
            return real(*args, **more)

        monkeypatch.setattr(owner, method, both)
        return endless(**options)

    return make


@pytest.mark.parametrize("name", PLANTED)
def test_a_slow_stage_is_named(plant, name):
    found = named(plant(name))
    assert f"{found.stage} {found.resource}" == PLANTED[name][-1]


def test_a_slow_transform_in_python_is_named(endless):
    found = named(endless(transform=in_python, num_workers=2))
    assert found.stage == "transform"
    # On a machine that others keep busy, it may only be seen that it takes most of the time.
    assert found.resource in ("lock", "cpu")


def test_a_slow_transform_in_processes_is_named(endless, tmp_path, monkeypatch):
    name = f"slow_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"from typing import Any\n\n{getsource(in_python)}")
    monkeypatch.syspath_prepend(tmp_path)
    transform = import_module(name).in_python
    loader = endless(transform=transform, num_workers=2, workers="processes")
    assert named(loader, processes=True).stage == "transform"


def test_a_transform_that_waits_is_named(endless):
    found = named(endless(transform=asleep))
    assert (found.stage, found.resource) == ("transform", "wait")


def test_a_slow_step_is_named_and_the_loader_is_fine(endless):
    loader = endless()
    run = run_pipeline(loader, seconds=SECONDS)
    paced = run_pipeline(loader, seconds=SECONDS, step_time=0.4)
    found = find_bottleneck(run, paced)
    assert (found.stage, found.resource, found.level) == ("step", "step", "good")
    assert str(found).startswith("the training step: ")
    assert run.rate > 1.2 * paced.rate
    assert "the loader alone makes " in found.reason


def test_a_loader_that_training_waits_for_is_not_fine(plant):
    loader = plant("storage")
    run = run_pipeline(loader, seconds=SECONDS)
    paced = run_pipeline(loader, seconds=SECONDS, step_time=0.002)
    found = find_bottleneck(run, paced)
    assert (found.stage, found.level) == ("read", "bad")
