"""Batches of samples with different images and texts: as each dataset's own loader makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import datapipe
from datapipe import CacheSpec, ImageSpec, PlanError
from datapipe.cache.factory import kept_transform
from datapipe.decode import normalize
from datapipe.decode.forms.fixed import FixedTransform
from datapipe.decode.normalize import ImageMoves
from datapipe.loader.batch.token_batch import TextKind, TokenContext, TokenSlots, check_texts
from datapipe.plan.units import PASS_BIT, RandomKeys, Units
from datapipe.text.encode import SampleText

from .kinds import (
    META,
    NATIVE,
    PAIRS,
    SAMPLES,
    Make,
    MakeText,
    alone,
    build,
    check_images,
    job,
    kinds_of,
    together,
)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("meta", [META, (*META, "image_geometry")], ids=["plain", "geometry"])
def test_images_are_those_of_each_dataset(make: Make, pair: str, meta: tuple[str, ...]) -> None:
    specs = PAIRS[pair]
    loaders = [make(image=spec, meta=meta) for spec in specs]
    references = [alone(make, spec, meta=meta) for spec in specs]
    # One of them alone, a few, and samples without images only.
    for samples in map(np.array, (SAMPLES, SAMPLES[:9], [0, 1], [5, 6], [1, 2, 19], [19, 29])):
        batch = build(together(loaders), job(loaders, samples))
        kinds = kinds_of(samples).tolist()
        expected = [references[k][s] for k, s in zip(kinds, samples.tolist(), strict=True)]
        assert batch["sample"].tolist() == samples.tolist()
        check_images(batch, expected, padded="shortest" in pair)


@pytest.fixture(scope="module")
def qwen(tokenizer: Path) -> MakeText:
    vocabulary = Tokenizer.from_file(str(tokenizer))
    vocabulary.add_special_tokens(["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"])

    def make(**options: Any) -> datapipe.TextSpec:
        options = {"template": "chatml", "image_token": "<|image_pad|>"} | options
        return datapipe.TextSpec(tokenizer=vocabulary, **options)

    return make


TEXTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fixed": ({"image_tokens": 6}, {"image_tokens": 9, "system": "Be brief."}),
    "fixed and tiles": (
        {"image_tokens": 6},
        {"image_tokens": lambda widths, heights: 1 + widths // 50, "system": "Be brief."},
    ),
    "native": (
        {"image_tokens": "native", "max_length": 40, "overlong": "truncate"},
        {"image_tokens": "native", "system": "Be brief."},
    ),
    "none": ({"image_tokens": 6}, {"image_tokens": 5, "system": "Be brief."}),
}


@pytest.mark.parametrize("pack", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("pair", "mrope"), [*((p, False) for p in TEXTS), ("native", True)])
def test_tokens_are_those_of_each_dataset(
    make: Make, qwen: MakeText, pair: str, mrope: bool, pack: bool
) -> None:
    images: Sequence[ImageSpec | None] = PAIRS.get(pair, (None, None))
    specs = [replace(spec, mrope=mrope) if spec is not None else None for spec in images]
    texts = [qwen(**options) for options in TEXTS[pair]]
    loaders, references = [], []
    for spec, text in zip(specs, texts, strict=True):
        loaders.append(make(image=spec, text=text, meta=META, batch_size=4))
        references.append(alone(make, spec, text=text, meta=META))
    batch = build(together(loaders, pack=pack), job(loaders, SAMPLES))
    chosen = zip(kinds_of(SAMPLES).tolist(), SAMPLES.tolist(), strict=True)
    expected = [references[kind][sample] for kind, sample in chosen]
    if images[0] is not None:
        check_images(batch, expected, padded=False)
    start = 0
    for slot, one in enumerate(expected):
        length = one["input_ids"].shape[1]
        row, part = (0, slice(start, start + length)) if pack else (slot, slice(0, length))
        start += length
        for name in ("input_ids", "labels"):
            assert torch.equal(batch[name][row, part], one[name][0]), name
        if mrope:
            positions = batch["position_ids"][1:] if pack else batch["position_ids"]
            assert torch.equal(positions[:, row, part], one["position_ids"][:, 0])
        if not pack:
            assert int(batch["attention_mask"][slot].sum()) == length
    lengths = [one["input_ids"].shape[1] for one in expected]
    if pack:
        assert batch["cu_seq_lens_q"].diff().tolist() == lengths
    assert len(set(lengths)) > 3


def test_a_failed_sample_keeps_the_tokens_and_rows_of_its_kind(
    damaged: Path, text: MakeText
) -> None:
    texts = [text(image_tokens=6), text(image_tokens=9)]
    loaders = [
        datapipe.make_loader(
            damaged, batch_size=4, image=image, text=each, meta=META, on_error="skip"
        )
        for each, image in zip(texts, PAIRS["fixed"], strict=True)
    ]
    samples = np.arange(37)
    batch = build(together(loaders), job(loaders, samples))
    failed = np.flatnonzero(~batch["valid"].numpy())
    assert failed.tolist() == [6, 20]
    encoder = together(loaders).tokens.texts[0].encoder  # type: ignore[union-attr]
    counts = (batch["input_ids"][failed] == encoder.image_id).sum(1)
    assert counts.tolist() == [9, 6]
    assert (batch["labels"][failed] == -100).all()
    first = batch["images_per_sample"].cumsum(0) - batch["images_per_sample"]
    assert not batch["pixel_values"][first[failed]].any()
    assert batch["pixel_values"][first[7]].any()


def test_texts_of_one_encoder_are_encoded_together(
    make: Make, qwen: MakeText, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds may share an encoder, and number their samples from 0 on."""
    loader = make(image=None, text=qwen(image_tokens=6), batch_size=4)
    (kind,) = loader.components().context.tokens.texts  # type: ignore[union-attr]
    asked: list[int] = []
    later = TextKind(
        encoder=kind.encoder,
        stored=None,
        image_runs=lambda sample: asked.append(sample) or kind.image_runs(sample),  # type: ignore[func-returns-value]
        image_grids=None,
        limit=None,
        first=37,
    )
    calls: list[int] = []
    encode = type(kind.encoder).encode

    def counted(encoder: Any, texts: Sequence[SampleText]) -> Any:
        calls.append(len(texts))
        return encode(encoder, texts)

    monkeypatch.setattr(type(kind.encoder), "encode", counted)
    context = TokenContext(texts=(kind, later), kinds=lambda samples: samples // 37, pack=True)
    samples = np.array([3, 40, 4, 41])
    sizes = loader.components().schedule.origin.parts[0].text().measure(samples % 37)
    slots = TokenSlots(context, samples, sizes)
    said = {"conversations": [{"from": "human", "value": "<image><image>What is number 3?"}]}
    answer = {"from": "gpt", "value": "It is 3."}
    texts = {0: said, 1: said}
    texts = {slot: {"conversations": [*r["conversations"], answer]} for slot, r in texts.items()}
    valid = np.ones(4, bool)
    slots.fill({slot: SampleText(None, record, 2) for slot, record in texts.items()}, valid)
    slots.empty(3)
    assert calls == [2]
    assert asked == [3, 4]
    ids = slots.result()["input_ids"][0]
    bounds = np.concatenate([[0], np.cumsum(sizes.tokens)])
    assert torch.equal(ids[: bounds[1]], ids[bounds[1] : bounds[2]])


def paint(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    shade = generator.integers(256)
    return sample | {"images": [np.full_like(image, shade) for image in sample["images"]]}


def test_random_numbers_are_of_each_samples_pass_and_identity(make: Make) -> None:
    """The shade and the mirroring of a sample are those of another one in a plain dataset."""
    spec = ImageSpec(size=8, flip=0.5)
    options: dict[str, Any] = {"meta": (*META, "image_geometry"), "transform": paint}
    plain: dict[tuple[int, int], tuple[int, bool]] = {}
    for number, batch in enumerate(
        make(image=spec, epochs=3, shuffle=False, batch_size=1, **options)
    ):
        if len(batch["pixel_values"]):
            place = number // 37, int(batch["sample"])
            plain[place] = _seen(batch, 0)
    loaders = [make(image=spec, **options)] * 2
    with_images = np.unique([sample for _, sample in plain])
    identities = np.random.default_rng(3).permutation(with_images)
    passes = identities % 3
    units = Units(with_images | passes << PASS_BIT, np.arange(len(passes) + 1), None)
    keys = RandomKeys(units, identities=lambda numbers: identities)  # type: ignore[arg-type]
    step = job(loaders, with_images, epoch=7, keys=keys)
    batch = build(together(loaders), step)
    first = (batch["images_per_sample"].cumsum(0) - batch["images_per_sample"]).tolist()
    found = [_seen(batch, image) for image in first]
    wanted = zip(passes.tolist(), identities.tolist(), strict=True)
    assert found == [plain[place] for place in wanted]
    assert len({mirrored for _, mirrored in found}) == 2


def _seen(batch: dict[str, Any], image: int) -> tuple[int, bool]:
    return int(batch["pixel_values"][image, 0, 0, 0]), float(batch["image_geometry"][image, 0]) < 0


@pytest.mark.parametrize("normalizes", [torch.float32, torch.uint8], ids=["float32", "uint8"])
def test_decoded_images_of_one_cache_are_finished_by_kind(
    make: Make, monkeypatch: pytest.MonkeyPatch, normalizes: torch.dtype
) -> None:
    normalize.KERNEL.load()
    both = {"dtype": normalizes}
    names = ("clip", "siglip") if normalizes == torch.float32 else (None, None)
    specs = [
        ImageSpec(size=24, flip=flip, normalize=name, **both)  # type: ignore[arg-type]
        for flip, name in zip((1.0, 0.3), names, strict=True)
    ]
    cache = CacheSpec(memory=1 << 30, keep="decoded")
    named = dict(zip(("one", "other"), specs, strict=True))
    kept = kept_transform(cache, named, decoder=False, transform=False)
    plain = [make(image=spec) for spec in specs]
    cached = [make(image=spec, cache=cache) for spec in specs]
    context = together(cached)
    assert context.images is not None
    context = replace(
        context,
        images=replace(context.images, kept=kept),
    )
    expected = build(together(plain), job(plain, SAMPLES))["pixel_values"]
    assert torch.equal(build(context, job(cached, SAMPLES))["pixel_values"], expected)
    calls: list[int] = []
    finish_many = FixedTransform.finish_many

    def counted(transform: Any, moves: list[ImageMoves], out: Any, **way: Any) -> bool:
        calls.extend(len(each.starts) for each in moves)
        return finish_many(transform, moves, out, **way)

    monkeypatch.setattr(FixedTransform, "finish_many", counted)
    again = build(context, job(cached, SAMPLES))
    assert torch.equal(again["pixel_values"], expected)
    assert sum(calls) == len(expected)  # none was decoded, or finished by itself


def test_texts_that_make_no_batch_are_refused(
    make: Make, text: MakeText, qwen: MakeText, tokenizer: Path
) -> None:
    def kind(spec: datapipe.TextSpec, **image: Any) -> TextKind:
        loader = make(image=replace(NATIVE, **image), text=spec, batch_size=4)
        (found,) = loader.components().context.tokens.texts  # type: ignore[union-attr]
        return found

    native = {"image_tokens": "native"}
    first = kind(qwen(**native))
    check_texts([first, kind(qwen(system="Be brief.", **native))], ["one", "other"])
    again = Tokenizer.from_str(Tokenizer.from_file(str(tokenizer)).to_str())
    others = {
        "one and other have different tokenizers": kind(text(**native)),
        "<|image_pad|>.* and .*<image>": kind(qwen(image_token="<image>", **native)),
        "one axis and along three": kind(qwen(**native), mrope=True),
    }
    for told, other in others.items():
        with pytest.raises(PlanError, match=told.replace("|", r"\|")):
            check_texts([first, other], ["one", "other"])
    same = (
        kind(text(**native)),
        kind(datapipe.TextSpec(tokenizer=again, template="chatml", **native)),
    )  # type: ignore[arg-type]
    check_texts(same, ["one", "other"])
