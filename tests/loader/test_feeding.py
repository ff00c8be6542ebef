"""`make_loader(device=...)`: the same batches, normalised there."""

import time

import pytest
import torch

import datapipe
from datapipe.testing import assert_same_batches

from .stated import IMAGES

SPECS = {name: image for name, image in IMAGES.items() if name not in ("flip", "random-crop")}


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        *((spec, {}) for spec in SPECS),
        *((spec, {"batch_size": 1, "num_workers": 0}) for spec in ("stretch", "native")),
        ("stretch", {"pack": datapipe.PackSpec(200, max_images=12, static_shapes=True)}),
    ],
)
def test_batches_on_a_device_are_those_of_the_host(make, text, spec, options):
    """Also those without an image, and rows that fill a pack up."""
    options = {"image": SPECS[spec], "text": text() if "pack" in options else None} | options
    assert_same_batches(make(device="cpu", **options), make(**options))


def test_a_batch_is_sent_while_the_one_before_is_used_if_it_is_ready(make):
    """The meter counts what was sent and what was received."""
    seen = []

    def transform(sample, generator):
        seen.append(sample["key"])
        return sample

    for workers, ahead in ((0, 0), (1, 1)):
        seen.clear()
        options = {"num_workers": workers, "prefetch_factor": 8, "shuffle": False}
        loader = make(device="cpu", transform=transform, **options)
        meter = loader.start_metering()
        iterator = iter(loader)
        for number in range(1, 5):
            iterator.executor.ready()  # starts the workers
            while ahead and len(seen) <= 4 * (number + 1):  # until the next batch is done
                time.sleep(0.001)
            next(iterator)
            assert meter.reading().caller["transfer"].count == 2 * number + ahead
        loader.close()


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_empty_slots_are_zero_on_the_device_too(damaged, workers):
    for name in ("pad", "native"):
        options = {"batch_size": 5, "image": SPECS[name], "on_error": "skip", "workers": workers}
        there = datapipe.make_loader(damaged, device="cpu", **options)
        assert_same_batches(there, datapipe.make_loader(damaged, **options))
        assert there.skipped == 2
        there.close()


def test_values_of_a_pixel_lie_together_where_that_is_asked(make):
    for batch in make(
        image=SPECS["stretch"], device=datapipe.DeviceSpec("cpu", channels_last=True)
    ):
        assert batch["pixel_values"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_batches_on_a_gpu_are_those_of_the_host(make, spec, workers):
    options = {"image": SPECS[spec], "decoder": "cpu", "workers": workers}
    there = make(device="cuda", **options)
    for batch, expected in zip(there, make(**options), strict=True):
        assert batch["pixel_values"].device.type == "cuda"
        torch.testing.assert_close(
            batch["pixel_values"].cpu().float(), expected["pixel_values"].float(), rtol=0, atol=1e-2
        )
    there.close()
