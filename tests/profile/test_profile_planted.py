"""The stage that is named is the one that was made slow."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from pathlib import Path
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


def before(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, slow: Any) -> None:
    """Do something slow before a method does what it does."""
    method = getattr(owner, name)

    def both(*args: Any, **options: Any) -> Any:
        slow()
        return method(*args, **options)

    monkeypatch.setattr(owner, name, both)


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


def test_slow_storage_is_named(endless: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, ShardStore, "read", lambda: time.sleep(0.02))
    found = named(endless())
    assert (found.stage, found.resource) == ("read", "storage")
    assert "for storage" in str(found)


def test_slow_storage_is_named_without_workers(
    endless: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(monkeypatch, ShardStore, "read", lambda: time.sleep(0.02))
    assert named(endless(num_workers=0)).stage == "read"


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_slow_decoding_is_named(
    endless: Make, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    before(monkeypatch, ImageSlots, "decode", burn)
    found = named(endless(num_workers=workers))
    assert (found.stage, found.resource) == ("decode", "cpu")


def test_a_slow_transform_in_python_is_named(endless: Make) -> None:
    found = named(endless(transform=in_python, num_workers=2))
    assert found.stage == "transform"
    # On a machine that others keep busy, it may only be seen that it takes most of the time.
    assert found.resource in ("lock", "cpu")


def test_a_slow_transform_in_processes_is_named(
    endless: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"slow_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"from typing import Any\n\n{getsource(in_python)}")
    monkeypatch.syspath_prepend(tmp_path)
    transform = import_module(name).in_python
    loader = endless(transform=transform, num_workers=2, workers="processes")
    assert named(loader, processes=True).stage == "transform"


def test_a_transform_that_waits_is_named(endless: Make) -> None:
    found = named(endless(transform=asleep))
    assert (found.stage, found.resource) == ("transform", "wait")


@pytest.mark.parametrize("slow", [lambda: time.sleep(0.15), lambda: [burn() for _ in range(12)]])
def test_slow_collation_is_named(
    endless: Make, monkeypatch: pytest.MonkeyPatch, slow: Callable[[], Any]
) -> None:
    before(monkeypatch, BatchBuilder, "result", slow)
    found = named(endless())
    assert (found.stage, found.resource) == ("collate", "caller")


def test_a_slow_transfer_is_named(endless: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, DevicePrefetcher, "send", lambda: time.sleep(0.15))
    found = named(endless(device="cpu"))
    assert (found.stage, found.resource) == ("transfer", "caller")


def test_a_slow_step_is_named_and_the_loader_is_fine(endless: Make) -> None:
    loader = endless()
    run = run_pipeline(loader, seconds=SECONDS)
    paced = run_pipeline(loader, seconds=SECONDS, step_time=0.4)
    found = find_bottleneck(run, paced)
    assert (found.stage, found.resource, found.level) == ("step", "step", "good")
    assert str(found).startswith("the training step: ")
    assert run.rate > 1.2 * paced.rate
    assert "the loader alone makes " in found.reason


def test_a_loader_that_training_waits_for_is_not_fine(
    endless: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(monkeypatch, ShardStore, "read", lambda: time.sleep(0.02))
    loader = endless()
    run = run_pipeline(loader, seconds=SECONDS)
    paced = run_pipeline(loader, seconds=SECONDS, step_time=0.002)
    found = find_bottleneck(run, paced)
    assert (found.stage, found.level) == ("read", "bad")
