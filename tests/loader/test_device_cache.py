"""Images that stay on the device: the same batches, and nothing is decoded or carried twice."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

import datapipe
from datapipe import CacheSpec
from datapipe.testing import assert_same_batches

from .stated import IMAGES
from .test_cache import LOTS


def check_cached(make, cache, **options):
    """Assert that three epochs of a cached loader are those of a plain one, and return it."""
    options = {"device": "cpu", "epochs": 3} | options
    cached = make(**options, cache=cache)
    plain = make(**options | {"workers": "threads"})
    assert_same_batches(list(cached), list(plain))
    return cached


META = ("image_geometry", "text", "sample")


@pytest.mark.parametrize("more", [{}, {"memory": LOTS}])
def test_a_device_that_is_too_small_holds_a_part(make, more):
    cache = CacheSpec(device=8 * 3 * 24 * 24, **more)
    cached = check_cached(make, cache, image=IMAGES["flip"], meta=META)
    stats = cached.stats()
    assert 0 < stats["device"].kept <= 8
    assert 2 * stats["device"].kept <= stats["device"].hits <= 3 * stats["device"].kept
    if more:
        # What is on the device need not be in memory too.
        count = len(cached.dataset)
        # With repeats of the last step.
        assert 0 <= stats["memory"].kept - (count - stats["device"].kept) < 4
        assert count <= stats["source"].hits < count + 4
        assert stats["memory"].expected == 1 - stats["device"].expected


def test_static_shapes_are_filled_up(make, text):
    pack = datapipe.PackSpec(256, max_images=8, max_samples=8, static_shapes=True)
    options = {"image": IMAGES["stretch"], "text": text(), "pack": pack}
    cached = check_cached(make, CacheSpec(device=6 * 3 * 24 * 24), **options)
    assert cached.stats()["device"].hits > 0
    assert {len(batch["pixel_values"]) for batch in cached} == {8}


def test_nothing_is_decoded_once_all_lie_there(make):
    loader = make(image=IMAGES["stretch"], device="cpu", cache=CacheSpec(device=LOTS))
    meter = loader.start_metering()
    decoded = []
    for _ in range(3):
        list(loader)
        decoded.append(meter.reading().stages["decode"].count)
    assert 0 < decoded[0] == decoded[1] == decoded[2]


class Full(TorchFunctionMode):
    """Torch on a device that has no room for bytes of several dimensions."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        options = kwargs or {}
        if func is torch.empty and options.get("dtype") is torch.uint8 and len(args[0]) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return func(*args, **options)


def test_a_device_without_room_says_so(make):
    loader = make(image=IMAGES["uint8"], device="cpu", cache=CacheSpec(device=LOTS))
    with Full(), pytest.raises(datapipe.DatapipeError, match="has no room for"):
        list(loader)
