"""Samples of a mixture are those of each dataset alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import datapipe
from datapipe import (
    CacheSpec,
    ImageSpec,
    PackSpec,
    PlanError,
    RunSpec,
)
from datapipe.testing import assert_same_batches

from .datasets import (
    META,
    SIZES,
    SMALL,
    Draw,
    Make,
    content,
    draws,
    pixels_of,
    plain,
)


def test_random_numbers_differ_between_passes_and_samples(make: Make, mixture: Any) -> None:
    """A dataset that is passed several times in an epoch is cropped anew each time."""
    loader = make(mixture(parts=("chats", "drawings", "captions")), batch_size=1, epochs=3)
    seen: dict[Draw, list[bytes]] = {}
    for batch in loader:
        (draw,) = draws([batch])
        seen.setdefault(draw, []).append(pixels_of(batch))
    crops = [images for (name, _), images in seen.items() if name == "captions"]
    assert min(map(len, crops)) >= 3
    assert all(len(set(images)) == len(images) for images in crops)
    assert all(len(set(images)) == 1 for (name, _), images in seen.items() if name == "chats")


def test_neighbours_have_random_numbers_of_their_own(make: Make, mixture: Any) -> None:
    draws_of = make(mixture()).components().schedule.origin  # type: ignore[attr-defined]
    numbers = np.arange(sum(SIZES.values()))
    identities = draws_of.identities(numbers)
    assert len(np.unique(identities)) == len(numbers)
    assert identities.min() >= 0


def test_samples_are_those_of_their_own_loaders(
    make: Make, mixture: Any, folders: dict[str, Path], tokenizer: Path
) -> None:
    """Tokens, labels and pixels are those that each dataset's own loader makes."""
    short = datapipe.TextSpec(
        tokenizer=tokenizer,
        template="chatml",
        image_tokens=4,
        max_length=24,
        overlong="truncate",
    )
    specs = {
        "chats": (short, ImageSpec(size=16, resize="pad")),
        "captions": (None, ImageSpec(size=16, resize="crop")),
        "drawings": (None, None),
    }
    own = {
        name: {key: value for key, value in zip(("text", "image"), spec, strict=True) if value}
        for name, spec in specs.items()
    }
    expected: dict[Draw, dict[str, list[Any]]] = {}
    for name, options in own.items():
        for batch in make(str(folders[name]), **{"batch_size": 1, **options}):
            expected[name, batch["key"][0]] = content(batch)
    given = mixture(
        parts=specs, **{name: {"image": SMALL, **options} for name, options in own.items()}
    )
    checked = set()
    for batch in make(given, batch_size=1):
        (draw,) = draws([batch])
        assert content(batch) == expected[draw]
        checked.add(draw)
    assert len(checked) == sum(SIZES[name] for name in specs)
    for batch in make(given, batch_size=7, num_workers=2, meta=(*META, "images_per_sample")):
        row = image = 0
        counts = batch["images_per_sample"].tolist()
        for draw, count in zip(draws([batch]), counts, strict=False):
            alone = expected[draw]
            length = len(alone["input_ids"][0])
            assert batch["input_ids"][row, :length].tolist() == alone["input_ids"][0]
            assert batch["labels"][row, :length].tolist() == alone["labels"][0]
            pixels = batch["pixel_values"][image : image + count].tolist() if count else []
            assert pixels == alone.get("pixel_values", [])
            row, image = row + 1, image + count
    for batch in make(given, pack=200, meta=(*META, "images_per_sample")):
        parts = datapipe.unpack(
            {"input_ids": batch["input_ids"], "labels": batch["labels"]},
            batch["cu_seq_lens_q"],
            samples=len(batch["key"]),
        )
        image = 0
        counts = batch["images_per_sample"].tolist()
        for draw, part, count in zip(draws([batch]), parts, counts, strict=True):
            alone = expected[draw]
            assert part["input_ids"].tolist() == alone["input_ids"][0]
            # Of a pack, the first token of a sample is predicted from none.
            assert part["labels"].tolist()[1:] == alone["labels"][0][1:]
            pixels = batch["pixel_values"][image : image + count].tolist() if count else []
            assert pixels == alone.get("pixel_values", [])
            image += count


def test_tiles_of_two_datasets_are_those_of_each(make: Make, mixture: Any) -> None:
    specs = {
        "captions": ImageSpec(resize="tiles", size=16, tiles=4),
        "drawings": ImageSpec(resize="tiles", size=16, tiles=2, thumbnail=False),
    }
    given = mixture(parts=specs, **{name: {"image": spec} for name, spec in specs.items()})
    images = {}
    for name, spec in specs.items():
        alone = mixture(parts=(name,), **{name: {"image": spec}})
        for batch in make(alone, batch_size=1, text=None, meta=("dataset", "key", "valid")):
            images[draws([batch])[0]] = batch["pixel_values"]
    for batch in make(given, batch_size=5, text=None, meta=("dataset", "key", "valid")):
        rows = torch.cat([images[draw] for draw in draws([batch])])
        assert torch.equal(batch["pixel_values"][: len(rows)], rows)


def turned(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    if generator.random() < 0.5:
        return sample | {"images": [np.ascontiguousarray(i[::-1]) for i in sample["images"]]}
    return sample


def test_a_transform_draws_the_same_whoever_calls_it(make: Make) -> None:
    expected = list(make(transform=turned, epochs=2))
    assert_same_batches(make(transform=turned, epochs=2, num_workers=2), expected)
    loader = make(transform=turned, epochs=2, num_workers=1, workers="processes")
    assert_same_batches(loader, expected)
    loader.close()


def test_dali_makes_the_images_of_a_mixture(make: Make, mixture: Any) -> None:
    pytest.importorskip("nvidia.dali")
    parts = ("captions", "drawings")
    same = {name: {"image": SMALL} for name in parts}
    given = mixture(parts=parts, **same)
    expected = list(make(given, decoder="dali"))
    assert_same_batches(make(given, decoder="dali", num_workers=2), expected)
    for batch, other in zip(expected, make(given, decoder="cpu"), strict=True):
        assert draws([batch]) == draws([other])
        difference = (batch["pixel_values"].float() - other["pixel_values"].float()).abs()
        assert difference.mean() < 3
    with pytest.raises(PlanError, match="DALI"):
        make(mixture(parts=parts), decoder="dali")


@pytest.mark.parametrize(
    "options",
    [
        {"pack": 128},
        {"pack": PackSpec(128, static_shapes=True)},
        {"max_tokens": 200},
        {"batch_size": 3, "buckets": 2, "meta": META},
        {"batch_size": 3, "run": RunSpec(train_tokens=200)},
    ],
    ids=str,
)
def test_texts_of_the_datasets_are_enough(
    make: Make, mixture: Any, caption: datapipe.TextSpec, options: dict[str, Any]
) -> None:
    expected = list(make(**options))
    given = mixture(**{name: {"text": caption} for name in SIZES if name != "chats"})
    assert_same_batches(make(given, **{"meta": META, **options, "text": None}), expected)
    whole = {"datasets": mixture(), "text": caption}
    assert_same_batches(make(whole, **{"meta": META, **options, "text": None}), expected)


def test_a_dataset_without_text_beside_others_with_one_is_refused(make: Make, mixture: Any) -> None:
    with pytest.raises(PlanError, match="dataset 'captions' of the mixture has no text"):
        make(text=None)
    mixed = mixture(parts=("captions", "drawings"))
    assert "input_ids" not in next(iter(make(mixed, text=None)))


def test_tokens_of_an_image_follow_from_the_images_of_its_dataset(
    make: Make, folders: dict[str, Path], tokenizer: Path
) -> None:
    text = datapipe.TextSpec(tokenizer=tokenizer, template="caption")
    large, small = ImageSpec(size=56, patch=14), ImageSpec(size=56, patch=28)
    parts = {
        "captions": {"path": folders["captions"], "image": large},
        "one": {"path": folders["one"], "image": small},
    }
    placeholder = Tokenizer.from_file(str(tokenizer)).token_to_id("<image>")
    found = {
        origin: int((ids == placeholder).sum())
        for batch in make(parts, text=text, image=large, batch_size=1, meta="dataset")
        for origin, ids in zip(batch["dataset"], batch["input_ids"], strict=True)
    }
    assert found == {"captions": 16, "one": 4}
    unknown = parts | {"one": {"path": folders["one"], "image": ImageSpec(size=56)}}
    with pytest.raises(PlanError, match=r"dataset 'one' of the mixture: how many tokens an image"):
        make(unknown, text=text, image=large)


def test_images_of_one_kind_are_kept_on_the_device(make: Make, folders: dict[str, Path]) -> None:
    given = plain("chats", "drawings", folders=folders)
    image = ImageSpec(size=16, flip=0.5)
    expected = list(make(given, image=image, device="cpu", epochs=2))
    loader = make(given, image=image, device="cpu", epochs=2, cache=CacheSpec(device="20MB"))
    assert_same_batches(loader, expected)
    loader.close()
    with pytest.raises(PlanError, match="of one ImageSpec"):
        make(device="cpu", cache=CacheSpec(device="20MB"))
