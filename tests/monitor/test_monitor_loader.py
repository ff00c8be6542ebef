"""A monitor around datapipe's own loader: it names the stage that is waited for."""

import time
from typing import Any

import pytest
import torch

import datapipe
from datapipe.testing import assert_resumes_exactly

pytestmark = pytest.mark.campaign  # measures real time


@pytest.fixture(scope="module")
def shards(tmp_path_factory, make_folder):
    """24 small photographs with captions."""
    root = tmp_path_factory.mktemp("monitored")
    datapipe.pack_dataset(make_folder(root / "raw", 24), root / "shards")
    return root / "shards"


@pytest.fixture
def make(shards):
    """Makes loaders of small images."""
    usual: dict[str, Any] = {"batch_size": 2, "num_workers": 2}
    usual["image"] = datapipe.ImageSpec(size=32)
    return lambda **options: datapipe.make_loader(shards, **usual | options)


def test_a_monitored_loader_resumes_exactly(make):
    assert_resumes_exactly(lambda **options: datapipe.Monitor(warmup=1)(make(**options)))


def test_a_loader_that_somebody_else_meters_is_left_alone(make):
    loader = make()
    meter = loader.start_metering()
    list(datapipe.Monitor()(loader))
    assert loader.meter is meter
    unmetered = make()
    list(datapipe.Monitor(meter=False)(unmetered))
    assert unmetered.meter is None


@pytest.mark.parametrize(("workers", "first"), [(2, ""), (0, "num_workers")])
def test_a_slow_transform_is_named(make, workers, first):
    def transform(sample, _):
        begun = time.thread_time()
        while time.thread_time() - begun < 0.02:
            pass
        return sample

    monitor = datapipe.Monitor(warmup=2)
    for _ in monitor(make(transform=transform, num_workers=workers)):
        with monitor.step():
            time.sleep(0.001)
    assert monitor.verdict.kind == "data"
    assert "your transform" in monitor.verdict.sentence
    assert first in monitor.verdict.actions[0]
    assert {"read", "decode", "collate"} <= set(monitor.report().stages)


def test_torchs_own_loader_gets_hints():
    dataset = [torch.zeros(2)] * 40
    monitor = datapipe.Monitor(warmup=2)
    for _ in monitor(torch.utils.data.DataLoader(dataset)):  # type: ignore[arg-type]
        pass
    assert monitor.verdict.kind == "data"
    assert "num_workers" in monitor.verdict.actions[0]
