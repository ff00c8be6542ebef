"""Stages are measured by themselves: those that a loader has, and what goes in and out of them."""

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datapipe
from datapipe import ImageSpec, Loader
from datapipe.decode.dali.graph import installed
from datapipe.index.dataset import open_dataset
from datapipe.profile.measure import samples as module
from datapipe.profile.measure.alone import StageCost, StageCosts, measure_alone
from datapipe.profile.measure.samples import COLD

IMAGES = ["read", "decode", "resize", "collate"]


def measured(loader: Loader, samples: int = 32) -> StageCosts:
    return measure_alone(loader, samples=samples, seconds=60.0)


def stages(loader: Loader) -> list[str]:
    return [name for name in measured(loader).stages if name != COLD]


def spoil(folder: Path, keys: list[str]) -> None:
    """Overwrite the middle of the images of some samples."""
    dataset = open_dataset(folder)
    for sample in range(len(dataset)):
        if dataset.columns.key(sample) in keys:
            member = next(m for m in dataset.columns.members(sample) if m.ext == "jpg")
            shard = dataset.manifest.shards[dataset.columns.shard(sample)].name
            with (folder / shard).open("r+b") as file:
                file.seek(member.offset + member.size // 2)
                file.write(b"\0" * 100)


def test_images_go_through_all_their_stages(endless):
    loader = endless()
    alone = measured(loader)
    assert [name for name in alone.stages if name != COLD] == IMAGES
    assert (alone.samples, alone.failed, alone.images) == (32, 0, 1.0)
    pixels, values = 3 * 320 * 240, 3 * 64 * 64
    assert alone.stages["decode"].bytes == 32 * pixels
    assert alone.stages["collate"].bytes > 4 * 32 * values
    assert alone.batch_bytes > 4 * values
    assert 0 < alone.stages["read"].bytes < alone.stages["decode"].bytes
    assert all(cost.rate > 0 for cost in alone.stages.values())


def test_a_loader_without_images_has_none_of_their_stages(endless):
    assert stages(endless(image=None)) == ["read", "collate"]


def test_a_device_has_a_transfer(endless):
    alone = measured(endless(device="cpu"))
    assert list(alone.stages)[-1] == "transfer"
    # Pixels are carried over as bytes, and normalised there.
    transfer = alone.stages["transfer"]
    assert transfer.bytes > 3 * alone.stages["collate"].bytes


@pytest.mark.skipif(not installed(), reason="DALI is not installed")
def test_dali_does_decoding_and_resizing_as_one_stage(endless):
    loader = endless(decoder="dali", image=ImageSpec(size=64, normalize="imagenet"))
    assert stages(loader) == ["read", "decode", "collate"]
    loader.close()


def test_a_transform_is_a_stage_whose_waiting_takes_no_cpu(endless):
    def slow(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        time.sleep(0.01)
        return sample | {"images": [image[::2, ::2] for image in sample["images"]]}

    alone = measured(endless(transform=slow), samples=8)
    assert [name for name in alone.stages if name != COLD] == [
        *("read", "decode", "transform", "resize", "collate")
    ]
    cost = alone.stages["transform"]
    assert cost.wait >= 0.005
    assert cost.rate <= 100


@pytest.mark.parametrize(("delivered", "cold"), [(10**8, True), (0, False), (None, False)])
def test_cold_reads_are_given_only_where_storage_has_delivered_them(
    endless, monkeypatch, delivered, cold
):
    calls = itertools.count()
    monkeypatch.setattr(module, "delivered", lambda: delivered and delivered * next(calls))
    assert (COLD in measured(endless()).stages) == cold


def test_damaged_samples_are_counted_and_left_out(photos, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(photos, folder)
    spoil(folder, ["000000003", "000000007"])
    loader = datapipe.make_loader(
        folder, batch_size=8, epochs=1, image=ImageSpec(size=64), on_error="skip"
    )
    alone = measured(loader, samples=48)
    assert (alone.samples, alone.failed) == (48, 2)


def test_few_samples_are_measured_again_and_again(photos, make_folder):
    raw = make_folder(photos.parent / "three-raw", 3)
    datapipe.pack_dataset(raw, photos.parent / "three")
    loader = datapipe.make_loader(
        photos.parent / "three", batch_size=8, epochs=None, image=ImageSpec(size=32)
    )
    assert measured(loader, samples=30).samples >= 30


def test_the_samples_are_those_of_the_plan_and_the_loader_stays_where_it_is(endless):
    loader = endless(meta="sample")
    state = loader.state_dict()
    alone = measured(loader, samples=16)
    assert loader.state_dict() == state
    batches = iter(loader)
    planned = [number for _ in range(2) for number in next(batches)["sample"].tolist()]
    loader.close()
    assert [number for step in alone.steps for number in step.samples.tolist()] == planned


def test_a_cost_is_told_by_the_sample():
    cost = StageCost(samples=4, seconds=4.0, cpu=2.0, bytes=8)
    assert (cost.rate, cost.wait) == (1.0, 0.5)
    assert StageCost(samples=4, seconds=1.0, cpu=2.0, bytes=8).rate == 2.0
