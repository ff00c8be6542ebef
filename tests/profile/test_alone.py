"""Stages are measured by themselves: those that a loader has, and what goes in and out of them."""

import time

import pytest

import datapipe
from datapipe import ImageSpec
from datapipe.decode.dali.graph import installed
from datapipe.profile.measure.alone import StageCost, measure_alone
from datapipe.profile.measure.samples import COLD

IMAGES = ["read", "decode", "resize", "collate"]


def measured(loader, samples=32):
    return measure_alone(loader, samples=samples, seconds=60.0)


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


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ({"image": None}, ["read", "collate"]),
        ({"device": "cpu"}, [*IMAGES, "transfer"]),
        pytest.param(
            *({"decoder": "dali"}, ["read", "decode", "collate"]),
            marks=pytest.mark.skipif(not installed(), reason="DALI is not installed"),
        ),
    ],
    ids=["no images", "device", "DALI"],
)
def test_the_stages_are_those_of_the_loader(endless, options, stages):
    with endless(**options) as loader:
        alone = measured(loader)
    assert [name for name in alone.stages if name != COLD] == stages
    if "transfer" in stages:  # pixels are carried over as bytes, and normalised there
        assert alone.stages["transfer"].bytes > 3 * alone.stages["collate"].bytes


def test_a_transform_is_a_stage_whose_waiting_takes_no_cpu(endless):
    def slow(sample, generator):
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
    endless, delivers, delivered, cold
):
    delivers(delivered)
    assert (COLD in measured(endless()).stages) == cold


def test_damaged_samples_are_counted_and_few_are_measured_again_and_again(tmp_path, make_tar, jpeg):
    images = [(f"{n}.jpg", b"no image" if n == 1 else jpeg(n)) for n in range(3)]
    make_tar(tmp_path / "0.tar", images)
    options = {"batch_size": 8, "epochs": None, "image": ImageSpec(size=32), "on_error": "skip"}
    alone = measured(datapipe.make_loader(tmp_path, **options), samples=30)
    assert alone.samples >= 30
    assert alone.failed in (10, 11)


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
