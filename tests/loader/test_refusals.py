"""Options that cannot be meant, with a message that names value and remedy, and short forms."""

import inspect

import numpy as np
import pytest
import torch

import datapipe
from datapipe import (
    BatchSpec,
    CacheSpec,
    DeviceSpec,
    ImageSpec,
    PackSpec,
    PlanError,
    RemoteSpec,
    RunSpec,
    WorkerSpec,
)
from datapipe.decode.dali.graph import installed
from datapipe.testing import assert_same_batches

LOTS = 1 << 30
CROP = ImageSpec(size=8, random_crop=(0.5, 1.0))
NATIVE = ImageSpec(resize="native", patch=8, merge=2, min_pixels=256, max_pixels=4096)
TILES = ImageSpec(resize="tiles", size=16, tiles=4)
DYNAMIC = ImageSpec(resize="dynamic", patch=8, min_pixels=256, max_pixels=1024)
PADDED = BatchSpec(4, pad_to=64)
TWO_IMAGES, TWO_PATCHES = BatchSpec(4, sample_images=2), BatchSpec(4, sample_patches=2)
STATIC = PackSpec(200, static_shapes=True)
TOKENS = {"text": {}}
OWN, PER_TILE = {"text": {"image_tokens": "native"}}, {"text": {"image_tokens": "per-tile"}}
DECODED = {"cache": {"memory": 5000, "keep": "decoded"}}
DALI = {"decoder": "dali"}
ON_DEVICE = {"device": "cpu", "cache": {"device": LOTS}}


def same(sample, generator):
    return sample


# `text` and `cache` are options of `TextSpec` and `CacheSpec`.
REFUSALS = [
    ({"batch_size": 0}, "batch_size 0"),
    ({"batch_size": None}, "batch_size"),
    ({"prefetch_factor": 0}, "prefetch_factor 0"),
    ({"num_workers": -1}, "num_workers -1"),
    ({"num_workers": 10**6}, "num_workers 1000000: give at most .* CPU cores"),
    ({"on_error": "ignore"}, "on_error 'ignore'"),
    ({"rank": 2, "world_size": 2}, "rank 2"),
    ({"rank": 0}, "give both"),
    ({"world_size": 2}, "give both"),
    ({"num_workers": "many"}, "num_workers 'many': give an integer, 'auto' or None"),
    ({"prefetch_factor": "many"}, "prefetch_factor 'many': give an integer, 'auto' or None"),
    ({"batch_size": 38, "drop_last": True}, "leaves no step"),
    ({"batch_size": 2**62}, "more than the 2147483647"),
    ({"epochs": 0}, "epochs 0"),
    ({"epochs": np.bool_(True)}, "epochs .*: give an integer or None"),
    ({"shuffle": "shard"}, "shuffle 'shard': give True, False or 'shards'"),
    ({"where": "widht > 3"}, "width"),
    ({"run": RunSpec(global_batch_size=5)}, "global_batch_size 5"),
    # names in meta
    ({"meta": "labels"}, "keys of batches"),
    ({"meta": "image_geometry", "image": None}, "image_geometry"),
    ({"meta": np.array("key")}, "meta array"),
    ({"meta": ("key", 5)}, "meta .*: give a string"),
    # samples to leave out
    ({"exclude": "nobody"}, "nobody"),
    ({"exclude": 37}, "0 to 36"),
    ({"exclude": -1}, "sample -1"),
    ({"exclude": [{"epoch": 1}]}, "loader.plan.step"),
    ({"exclude": np.array(5.0)}, "exclude array"),
    ({"exclude": b"000000001"}, "exclude b'000000001'"),
    ({"exclude": {"epoch": 0, "start": 0.5, "stop": 3}}, "exclude"),
    # what needs a text
    ({"pack": 100}, "TextSpec"),
    ({"buckets": 3}, "TextSpec"),
    ({"group": 2}, "TextSpec"),
    ({"run": RunSpec(train_tokens=100)}, "TextSpec"),
    ({"meta": "num_items_in_batch"}, "TextSpec"),
    ({"text": "chatml"}, "TextSpec"),
    ({"where": "text_tokens < 10"}, r"text_tokens.*TextSpec"),
    # padded batches of constant shapes
    ({"batch_size": PADDED}, "pad_to=64: only batches of tokens"),
    (TOKENS | {"pack": 64, "batch_size": PADDED}, "packs are not padded"),
    (TOKENS | {"max_tokens": 99, "batch_size": BatchSpec(multiple_of=8)}, "multiple_of=8: the num"),
    (TOKENS | {"buckets": 3, "batch_size": PADDED}, "pad_to=64: buckets=3"),
    (TOKENS | {"batch_size": BatchSpec(pad_to=64)}, "give batch_size="),
    (TOKENS | {"batch_size": TWO_IMAGES, "image": None}, "sample_images=2 is about images"),
    (PER_TILE | {"batch_size": TWO_IMAGES, "image": TILES}, "'tiles' .* give sample_patches="),
    (OWN | {"batch_size": TWO_PATCHES, "image": DYNAMIC}, "resize='dynamic' .* of their own size"),
    # images, and their tokens
    ({"image": 336}, "image 336: give an ImageSpec or None"),
    (OWN | {"pack": 4096}, "native"),
    ({"text": {"image_tokens": 576}, "pack": STATIC}, "an image has 576 tokens and a pack 200"),
    (PER_TILE | {"image": NATIVE}, "goes with image_tokens='native'"),
    ({"text": {"image_tokens": 256}, "image": TILES}, "one number.*give image_tokens='per-tile'"),
    ({"text": {"image_tokens": 5}, "image": DYNAMIC}, "is one number"),
    # caches
    ({"cache": {"memory": "8 gigs"}}, "cache memory '8 gigs': give a size such as 8GB"),
    ({"cache": {"disk_size": 5000}}, "needs room|disk="),
    ({"cache": {"disk": 5}}, "cache disk 5: give a path or None"),
    ({"cache": {"memory": 5000, "keep": "raw"}}, "cache keep 'raw': give 'auto', 'decoded' or"),
    ({"cache": {"memory": 5000, "policy": "lru"}}, "cache policy 'lru': give 'auto', 'pin' or"),
    (DECODED | {"image": CROP}, "random_crop takes a different part"),
    (DECODED | {"transform": same}, "transform= may be random"),
    ({"cache": {"memory": 5000, "policy": "next-use"}, "workers": "processes"}, "policy='pin'"),
    ({"cache": {"device": LOTS}}, "give device= too"),
    (ON_DEVICE | {"image": None}, "has none"),
    (ON_DEVICE | {"image": CROP}, "has none"),
    (ON_DEVICE | {"image": ImageSpec(resize="shortest", size=16)}, "resize='shortest' pads them"),
    (ON_DEVICE | {"cache": {"device": LOTS, "keep": "encoded"}}, "has none"),
    # decoders
    ({"decoder": "nvjpeg"}, "decoder 'nvjpeg'"),
    (DALI | {"image": None}, "image=None leaves them out"),
    (DALI | {"image": ImageSpec(resize="native")}, "resize='native'"),
    (DALI | {"image": ImageSpec(scaled_decode=True)}, "scaled_decode"),
    (DALI | {"transform": same}, "transform="),
    (DALI | {"workers": "processes"}, "does not work in processes"),
]


@pytest.mark.parametrize(("options", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_impossible_options_are_refused(make, text, options, message):
    if options.get("decoder") == "dali" and not installed():
        pytest.skip("DALI is not installed")

    def load():
        made = {"text": text, "cache": CacheSpec}
        specs = {
            name: make_spec(**options[name])
            for name, make_spec in made.items()
            if isinstance(options.get(name), dict)
        }
        return make(**options | specs)

    with pytest.raises(PlanError, match=message):
        load()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            PackSpec,
            {"tokens": 99, "multiple_of": 8},
            "99 tokens is not a multiple of multiple_of 8",
        ),
        (PackSpec, {"tokens": 99, "max_images": 2, "max_patches": 9}, "max_images=2 and max_p"),
        (BatchSpec, {"pad_to": 64, "multiple_of": 8}, "pad_to=64 and multiple_of=8 both set"),
        (BatchSpec, {"sample_images": 2, "sample_patches": 9}, "sample_images=2 and sample_p"),
        (RunSpec, {"max_skipped": -1}, "max_skipped -1: give an integer from 0"),
        (DeviceSpec, {"channels_last": True}, "channels_last .* give device="),
        (WorkerSpec, {"kind": "fork"}, "workers kind 'fork': give 'threads', 'processes' or 'ray'"),
        (WorkerSpec, {"stall_warning": 0}, "stall_warning 0: give seconds"),
        (RemoteSpec, {"read_ahead": "many"}, "read_ahead 'many': give a size"),
        (CacheSpec, {"plan": __file__}, "this is not a folder"),
        (CacheSpec, {}, "a cache needs room"),
    ],
)
def test_options_that_belong_together_check_themselves(kind, options, message):
    with pytest.raises(PlanError, match=message):
        kind(**options)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"device": "cpu"}, {"device": DeviceSpec(torch.device("cpu"))}),
        ({"device": None, "workers": "threads"}, {"device": DeviceSpec(), "workers": WorkerSpec()}),
        ({"batch_size": 5}, {"batch_size": BatchSpec(5)}),
        ({}, {"run": RunSpec(), "remote": RemoteSpec()}),
        ({"workers": "processes"}, {"workers": WorkerSpec("processes", persistent=False)}),
    ],
    ids=str,
)
def test_a_short_form_stands_for_the_spec(packed, short, long):
    one, other = (
        datapipe.make_loader(packed, **{"batch_size": 5, "num_workers": 1} | options)
        for options in (short, long)
    )
    assert_same_batches(one, other)


def test_make_loader_has_at_most_thirty_one_arguments():
    assert len(inspect.signature(datapipe.make_loader).parameters) <= 31
