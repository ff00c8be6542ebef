"""Batches of tokens: padded and packed."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import datapipe
from datapipe import ImageSpec, PlanError
from datapipe.geometry.sizes import native
from datapipe.geometry.tiles import per_tile
from datapipe.index.dataset import open_dataset

from .conftest import IMAGE_ID, SAMPLES

META = ("key", "valid", "images_per_sample", "num_items_in_batch")


def one_by_one(make, text, **options):
    """Every sample's own batch, by key."""
    loader = make(text=text, batch_size=1, meta=META, shuffle=False, **options)
    return {batch["key"][0]: batch for batch in loader}


def test_a_batch_is_what_a_model_takes_and_nothing_else(make, text):
    batch = next(iter(make(text=text(), batch_size=5)))
    assert batch.keys() == {"pixel_values", "input_ids", "labels", "attention_mask"}
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    assert batch["input_ids"].shape[0] == 5
    batch = next(iter(make(text=text(), pack=256)))
    assert batch.keys() == {
        *("pixel_values", "input_ids", "labels", "position_ids"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
    }
    length = batch["input_ids"].shape[1]
    assert batch["input_ids"].shape == batch["position_ids"].shape == (1, length)
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert int(batch["cu_seq_lens_q"][-1]) == length <= 256


def test_padding_and_image_tokens_are_never_learnt(make, text):
    for batch in make(text=text(image_tokens=9), batch_size=6):
        outside, images = batch["attention_mask"] == 0, batch["input_ids"] == IMAGE_ID
        assert (batch["labels"][outside | images] == -100).all()
        assert (batch["input_ids"][outside] == 0).all()  # <|endoftext|>
        assert (batch["attention_mask"].diff(dim=1) <= 0).all()
        assert images.sum() == 9 * len(batch["pixel_values"])


@pytest.mark.parametrize(
    "pack", [datapipe.PackSpec(200), datapipe.PackSpec(256, multiple_of=8)], ids=str
)
def test_packs_hold_the_samples_as_they_are_one_by_one(make, text, pack):
    alone = one_by_one(make, text())
    seen = []
    for batch in make(text=text(), meta=META, pack=pack):
        bounds = pairwise(batch["cu_seq_lens_q"].tolist())
        pixels = []
        for key, (start, stop) in zip(batch["key"], bounds, strict=True):
            one = alone[key]
            length = one["input_ids"].shape[1]
            assert (stop - start) - length == -length % pack.multiple_of
            assert torch.equal(batch["input_ids"][0, start : start + length], one["input_ids"][0])
            assert torch.equal(batch["labels"][0, start : start + length], one["labels"][0])
            assert (batch["labels"][0, start + length : stop] == -100).all()
            assert batch["position_ids"][0, start:stop].tolist() == list(range(stop - start))
            pixels += one.get("pixel_values", ())
            seen.append(key)
        assert torch.equal(batch["pixel_values"], torch.stack(pixels))
    assert sorted(seen) == sorted(alone)


@pytest.mark.parametrize(
    ("image", "tokens"),
    [
        (ImageSpec.preset("siglip"), 729),  # google/siglip-so400m-patch14-384
        (ImageSpec(size=(28, 70), patch=14), 10),
        (ImageSpec(size=56, patch=14, merge=2), 4),
        (None, 576),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{"batch_size": 2}, {"pack": 4096}], ids=str)
def test_an_image_has_the_tokens_that_its_size_and_patch_make(make, text, image, tokens, options):
    spec = text(image_tokens=None)
    batch = next(iter(make(image=image, text=spec, meta="images_per_sample", **options)))
    images = int(batch["images_per_sample"].sum())
    assert (batch["input_ids"] == IMAGE_ID).sum() == tokens * images


@pytest.mark.parametrize("rule", ["native", "per-tile", lambda widths, heights: 1 + widths // 2])
def test_tokens_are_counted_by_rule_or_function_if_images_are_left_out(make, text, packed, rule):
    columns = open_dataset(packed).columns
    sizes = [side[:].astype(np.int64) for side in (columns.image_width, columns.image_height)]
    count = {"native": native, "per-tile": per_tile}.get(rule, rule)
    (batch,) = make(image=None, text=text(image_tokens=rule), batch_size=SAMPLES)
    assert int((batch["input_ids"] == IMAGE_ID).sum()) == count(*sizes).sum()


def test_tokens_of_an_image_that_nothing_says_are_asked_for(make, text):
    message = (
        r"how many tokens an image of 224 x 224 pixels has depends on the model; give the side "
        r"of its patches as ImageSpec\(patch=...\) \(patch=14 makes 256, patch=16 makes 196, "
        r"patch=32 makes 49\), or the number as TextSpec\(image_tokens=...\)"
    )
    with pytest.raises(PlanError, match=message):
        make(image=ImageSpec(size=224), text=text(image_tokens=None))
    make(image=ImageSpec(size=224), text=text(image_tokens=576))  # a model may make any number


@pytest.mark.parametrize(
    "options", [{"batch_size": 4}, {"pack": 200}, {"batch_size": 3, "buckets": 4}]
)
@pytest.mark.parametrize("world_size", [1, 3])
def test_the_labels_of_a_step_are_known_without_asking_the_ranks(make, text, options, world_size):
    ranks = [
        list(make(text=text(), meta=META, rank=rank, world_size=world_size, **options))
        for rank in range(world_size)
    ]
    for batches in zip(*ranks, strict=True):
        counted = sum(int((batch["labels"][..., 1:] != -100).sum()) for batch in batches)
        assert {batch["num_items_in_batch"] for batch in batches} == {counted}


def test_shapes_are_constant_where_asked_for(make, text):
    pack = datapipe.PackSpec(300, static_shapes=True, max_images=12, max_samples=20)
    batches = list(make(text=text(), pack=pack))
    shapes = [{name: getattr(each, "shape", each) for name, each in b.items()} for b in batches]
    assert all(shape == shapes[0] for shape in shapes)
    assert shapes[0]["pixel_values"] == (12, 3, 32, 32)
    assert {int(batch["cu_seq_lens_q"][-1]) for batch in batches} == {300}


def test_overlong_samples_are_refused_dropped_left_out_or_cut(make, text):
    whole = one_by_one(make, text())
    lengths = {key: batch["input_ids"].shape[1] for key, batch in whole.items()}
    limit = int(np.median(list(lengths.values())))
    with pytest.raises(PlanError, match=r"do not fit, such as .* more than .*overlong='drop'"):
        make(text=text(max_length=limit), batch_size=1)
    with pytest.raises(PlanError, match=r"tokens"):
        make(text=text(), pack=limit)
    dropped = one_by_one(make, text(max_length=limit, overlong="drop"))
    assert dropped.keys() == {key for key, length in lengths.items() if length <= limit}
    few = one_by_one(make, text(), where=f"images >= 1 and tokens <= {limit}")
    assert few.keys() == {key for key in dropped if "pixel_values" in dropped[key]}
    assert 0 < len(few) < len(dropped)
    cut = one_by_one(make, text(max_length=limit, overlong="truncate"))
    assert cut.keys() == lengths.keys()
    for key, batch in cut.items():
        kept = batch["input_ids"].shape[1]
        assert kept <= limit
        assert torch.equal(batch["input_ids"], whole[key]["input_ids"][:, :kept])
        images = len(batch.get("pixel_values", ()))
        assert not images or torch.equal(batch["pixel_values"], whole[key]["pixel_values"][:images])


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"pack": 60}], ids=str)
def test_a_batch_without_images_has_no_pixel_values(make, text, options):
    batches = list(make(text=text(), where="images == 0", **options))
    assert batches
    assert all("pixel_values" not in batch for batch in batches)
    assert all(len(batch["pixel_values"]) for batch in make(text=text(), where="images > 0"))


def test_a_step_without_labels_divides_by_one(make, text):
    loader = make(text=text(), pack=200, meta=META, exclude=range(37))
    assert {batch["num_items_in_batch"] for batch in loader} == {1}
