"""A monitor around datapipe's own loader: it names the stage that is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import datapipe
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.image_batch import ImageSlots
from datapipe.loader.device.prefetcher import DevicePrefetcher
from datapipe.store.shards import ShardStore
from datapipe.testing import assert_resumes_exactly

pytestmark = pytest.mark.campaign  # measures real time

SLOW = 0.02  # seconds for a sample; a step takes 1 ms


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, make_folder: Callable[..., Path]) -> Path:
    """24 small photographs with captions."""
    root = tmp_path_factory.mktemp("monitored")
    datapipe.pack_dataset(make_folder(root / "raw", 24), root / "shards")
    return root / "shards"


@pytest.fixture
def make(shards: Path) -> Callable[..., datapipe.Loader]:
    """Makes loaders of small images."""

    def make_loader(**options: Any) -> datapipe.Loader:
        options = {
            "batch_size": 2,
            "num_workers": 2,
            "image": datapipe.ImageSpec(size=32),
        } | options
        return datapipe.make_loader(shards, **options)

    return make_loader


def train(loader: datapipe.Loader, *, step: float = 0.001) -> datapipe.Monitor:
    monitor = datapipe.Monitor(warmup=2)
    for _ in monitor(loader):
        with monitor.step():
            time.sleep(step)
    return monitor


def slowed(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return function(*args, **options)

    return slow


def burnt(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The function after so much work that lets go of the interpreter's lock, as decoders do."""
    import hashlib

    block = bytes(1 << 20)

    def slow(*args: Any, **options: Any) -> Any:
        begun = time.thread_time()
        while time.thread_time() - begun < seconds:
            hashlib.sha256(block)
        return function(*args, **options)

    return slow


def test_a_monitored_loader_resumes_exactly(make: Callable[..., datapipe.Loader]) -> None:
    assert_resumes_exactly(lambda **options: datapipe.Monitor(warmup=1)(make(**options)))


def test_the_state_is_that_of_the_batches_given_out(make: Callable[..., datapipe.Loader]) -> None:
    monitor = datapipe.Monitor(warmup=1)
    watched, alone = make(epochs=2), make(epochs=2)
    for batch, other in zip(monitor(watched), alone, strict=True):
        assert batch["key"] == other["key"]
        assert watched.state_dict() == alone.state_dict()
    assert len(monitor(watched)) == len(alone)
    assert {"read", "decode", "collate"} <= set(monitor.report().stages)


def test_a_loader_that_somebody_else_meters_is_left_alone(
    make: Callable[..., datapipe.Loader],
) -> None:
    loader = make()
    meter = loader.start_metering()
    list(datapipe.Monitor()(loader))
    assert loader.meter is meter
    unmetered = make()
    list(datapipe.Monitor(meter=False)(unmetered))
    assert unmetered.meter is None


def test_slow_storage_is_named(
    make: Callable[..., datapipe.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardStore, "read", slowed(ShardStore.read, SLOW))
    verdict = train(make()).verdict
    assert verdict.kind == "data"
    assert "reading from storage" in verdict.sentence
    assert any("local disk" in action for action in verdict.actions)


def test_slow_decoding_is_named(
    make: Callable[..., datapipe.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageSlots, "decode", burnt(ImageSlots.decode, SLOW))
    verdict = train(make()).verdict
    assert verdict.kind == "data"
    assert "decoding" in verdict.sentence
    assert any("--max-side" in action for action in verdict.actions)


def test_a_slow_transform_is_named(make: Callable[..., datapipe.Loader]) -> None:
    def transform(sample: dict[str, Any], _: Any) -> dict[str, Any]:
        begun = time.thread_time()
        while time.thread_time() - begun < SLOW:
            pass
        return sample

    verdict = train(make(transform=transform)).verdict
    assert verdict.kind == "data"
    assert "your transform" in verdict.sentence
    assert verdict.actions


def test_slow_collating_is_named(
    make: Callable[..., datapipe.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchBuilder, "result", slowed(BatchBuilder.result, 2 * SLOW))
    verdict = train(make()).verdict
    assert verdict.kind == "data"
    assert "collating batches" in verdict.sentence


def test_a_slow_way_to_the_device_is_named(
    make: Callable[..., datapipe.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DevicePrefetcher, "send", slowed(DevicePrefetcher.send, 2 * SLOW))
    verdict = train(make(device="cpu")).verdict
    assert verdict.kind == "data"
    assert "carrying batches to the device" in verdict.sentence


def test_without_workers_these_come_first(
    make: Callable[..., datapipe.Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardStore, "read", slowed(ShardStore.read, SLOW))
    verdict = train(make(num_workers=0)).verdict
    assert verdict.kind == "data"
    assert "num_workers" in verdict.actions[0]


def test_a_step_that_sleeps_is_no_fault_of_the_loader(make: Callable[..., datapipe.Loader]) -> None:
    verdict = train(make(), step=0.2).verdict
    assert verdict.kind == "host"
    assert "torch's operators take" in verdict.sentence


def test_a_slow_copy_by_hand_is_named(make: Callable[..., datapipe.Loader]) -> None:
    monitor = datapipe.Monitor(warmup=2)
    for batch in monitor(make()):
        with monitor.transfer():
            time.sleep(0.1)
            batch["pixel_values"].clone()
        with monitor.step():
            time.sleep(0.02)
    assert monitor.verdict.kind == "transfer"


def test_torchs_own_loader_gets_hints() -> None:
    dataset = [torch.zeros(2)] * 40
    monitor = datapipe.Monitor(warmup=2)
    for _ in monitor(torch.utils.data.DataLoader(dataset)):  # type: ignore[arg-type]
        pass
    assert monitor.verdict.kind == "data"
    assert "num_workers" in monitor.verdict.actions[0]
