"""Batches of datasets with different images and texts: each sample as its own loader makes it."""

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

import datapipe
from datapipe import CacheSpec, ImageSpec, PlanError
from datapipe.testing import assert_same_batches

from .stated import read, with_specs

META = ("dataset", "key", "valid", "images_per_sample", "image_geometry")
STATED = read("kinds")
PAIRS = {
    name: [None if fields is None else ImageSpec(**fields) for fields in pair]
    for name, pair in STATED["pairs"].items()
}
NATIVE = PAIRS["native"][0]


@pytest.fixture
def mix(packed):
    """Makes a loader of `one` and `other`, of the same samples, with specs of their own."""

    def make(one, other, **options):
        datasets = {"one": {"path": packed} | one, "other": {"path": packed} | other}
        options = {"num_workers": 2, "meta": META if options.get("image") else META[:4]} | options
        return datapipe.make_loader(datasets, **options)

    return make


TEXTS = {
    "fixed": ({"image_tokens": 6}, {"image_tokens": 9, "system": "Be brief."}),
    "fixed and tiles": (
        {"image_tokens": 6},
        {"image_tokens": lambda widths, heights: 1 + widths // 50, "system": "Be brief."},
    ),
    "native": ({"max_length": 40, "overlong": "truncate"}, {"system": "Be brief."}),
    "mrope": ({}, {"system": "Be brief."}),
    "none": ({"image_tokens": 6}, {"image_tokens": 5, "system": "Be brief."}),
}


def check_images(batch, expected, *, padded):
    """Assert that images are those of batches of one sample each, in this order."""
    row = image = 0
    for one in expected:
        rows, count = one.get("pixel_values"), int(one["images_per_sample"])
        for name in ("image_sizes", "image_grid_thw", "image_geometry"):
            if name in one:
                assert torch.equal(batch[name][image : image + count], one[name]), name
        image += count
        if rows is None or not count:
            continue
        for name in ("pixel_attention_mask", "spatial_shapes"):  # of rows, not of images
            if name in one:
                assert torch.equal(batch[name][row : row + len(rows)], one[name]), name
        found = batch["pixel_values"][row : row + len(rows)]
        row += len(rows)
        if padded:
            height, width = rows.shape[2:]
            assert not found[:, :, height:].any()
            assert not found[:, :, :, width:].any()
            found = found[:, :, :height, :width]
        assert torch.equal(found, rows)


def check_tokens(batch, expected):
    """Assert that tokens are those of batches of one sample each, padded or packed."""
    packed, start = "cu_seq_lens_q" in batch, 0
    for slot, one in enumerate(expected):
        length = one["input_ids"].shape[1]
        row, part = (0, slice(start, start + length)) if packed else (slot, slice(0, length))
        start += length
        assert torch.equal(batch["input_ids"][row, part], one["input_ids"][0])
        assert torch.equal(batch["labels"][row, part][1:], one["labels"][0, 1:])
        if len(one.get("position_ids", ())) == 3:
            positions = batch["position_ids"][-3:, row, part]
            assert torch.equal(positions, one["position_ids"][:, 0])
        if not packed:
            assert int(batch["attention_mask"][slot].sum()) == length
    if packed:
        lengths = [one["input_ids"].shape[1] for one in expected]
        assert batch["cu_seq_lens_q"].diff().tolist() == lengths


@pytest.mark.parametrize("pair", PAIRS)
def test_samples_of_a_batch_are_as_alone(mix, make, qwen, pair):
    given = [{"image": spec} if spec else {} for spec in PAIRS[pair]]
    options = {"image": PAIRS[pair][0]}
    if pair in TEXTS:
        options["text"] = qwen(**TEXTS[pair][0])
        for own, text in zip(given, TEXTS[pair], strict=True):
            own["text"] = qwen(**text)
    alone = {}
    for batch in mix(*given, batch_size=1, **options):
        alone[batch["dataset"][0], batch["key"][0]] = batch
    assert len(alone) == 2 * 37
    for name, own in zip(("one", "other"), given, strict=True):
        spec = own.get("image")
        for batch in make(image=spec, text=own.get("text"), batch_size=1, meta="key"):
            there = alone[name, batch.pop("key")[0]]
            for value, expected in batch.items():
                random = value == "pixel_values" and (spec.flip or spec.random_crop)
                if torch.is_tensor(expected) and not random:
                    assert torch.equal(there[value], expected), value
    units = [{"batch_size": 7}, {"batch_size": 2}]
    for unit in [*units, {"pack": 300}] if pair in TEXTS else units:
        seen = 0
        for batch in mix(*given, **unit, **options):
            valid = batch["valid"].tolist()
            samples = zip(batch["dataset"], batch["key"], strict=True)
            expected = [alone[sample] for sample, ok in zip(samples, valid, strict=True) if ok]
            check_images(batch, expected, padded="shortest" in pair)
            if pair in TEXTS:
                check_tokens(batch, expected)
            seen += sum(valid)
        assert seen == len(alone)


def test_a_failed_sample_keeps_the_tokens_and_rows_of_its_kind(mix, damaged, text):
    given = [
        {"path": damaged, "text": text(image_tokens=tokens), "image": image}
        for tokens, image in zip((6, 9), PAIRS["fixed"], strict=True)
    ]
    options = {"text": text(), "image": PAIRS["fixed"][0], "on_error": "skip", "batch_size": 74}
    (batch,) = mix(*given, **options)
    failed = (~batch["valid"]).nonzero()[:, 0].tolist()
    assert len(failed) == 4
    first = batch["images_per_sample"].cumsum(0) - batch["images_per_sample"]
    for slot in failed:
        assert batch["key"][slot] in ("000000006", "000000020")
        tokens = int((batch["input_ids"][slot] == 3).sum())
        assert tokens == (6 if batch["dataset"][slot] == "one" else 9)
        assert (batch["labels"][slot] == -100).all()
        assert not batch["pixel_values"][first[slot]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=str)
def test_decoded_images_of_one_cache_are_finished_by_kind(mix, kernel, dtype):
    names = ("clip", "siglip") if dtype == torch.float32 else (None, None)
    given = [
        {"image": ImageSpec(size=24, flip=flip, normalize=name, dtype=dtype)}
        for flip, name in zip((1.0, 0.3), names, strict=True)
    ]
    options = {"batch_size": 7, "epochs": 3, "image": given[0]["image"]}
    cached = mix(*given, cache=CacheSpec(memory=1 << 30, keep="decoded"), **options)
    meter = cached.start_metering()
    assert_same_batches(cached, mix(*given, **options))
    images = 2 * int(cached.dataset.parts[0].dataset().columns.sample_image[-1])
    assert images <= meter.reading().stages["decode"].count < 1.5 * images


@pytest.mark.parametrize(
    ("pair", "more"),
    [
        ("fixed and tiles", {"device": "cpu"}),
        ("shortest and dynamic", {"device": "cpu"}),
        ("tiles", {"cache": CacheSpec(memory=1 << 30)}),  # which keeps them encoded
    ],
    ids=str,
)
def test_devices_and_caches_take_images_of_two_specs(mix, pair, more):
    first, other = ({"image": image} for image in PAIRS[pair])
    options = {"batch_size": 7, "epochs": 2, **first}
    plain = mix(first, other, **options)
    assert_same_batches(mix(first, other, **options | more), plain)


@pytest.mark.parametrize(("one", "other", "options", "told"), STATED["refused"], ids=str)
def test_images_that_cannot_be_in_one_batch_are_refused(mix, text, one, other, options, told):
    if options.get("decoder"):
        pytest.importorskip("nvidia.dali")
    options = with_specs({"batch_size": 4, "image": one} | options, text=text)
    alike = {"image": ImageSpec(**one)}
    mix(alike, alike, **options)
    with pytest.raises(PlanError, match=told):
        mix(alike, {"image": ImageSpec(**one | other)}, **options)


def test_texts_that_make_no_batch_are_refused(mix, text, qwen, tokenizer):
    own = {"text": text()}
    with pytest.raises(PlanError, match="'other' of the mixture has no text, and 'one' has"):
        mix(own, {}, batch_size=4)
    assert "input_ids" in next(iter(mix(own, {}, batch_size=4, text=text(), image=None)))
    native = {"image_tokens": "native"}
    first = {"text": qwen(), "image": NATIVE}
    options = {"batch_size": 4, **first}
    mix(first, {"text": qwen(system="Be brief.")}, **options)
    for told, other in {
        "one and other have different tokenizers": {"text": text(**native)},
        r"<\|image_pad\|>.* and .*<image>": {"text": qwen(image_token="<image>")},
        "one axis and along three": {"image": replace(NATIVE, mrope=True)},
    }.items():
        with pytest.raises(PlanError, match=told):
            mix(first, first | other, **options)
    again = Tokenizer.from_str(Tokenizer.from_file(str(tokenizer)).to_str())
    same = datapipe.TextSpec(tokenizer=again, template="chatml", **native)
    mix({"text": text(**native)}, {"text": same}, **options | {"text": text(**native)})
