"""Batches of samples with different images and texts: as each dataset's own loader makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import datapipe
from datapipe import CacheSpec, ImageSpec, Loader, PlanError
from datapipe.array_types import Int64
from datapipe.cache.factory import kept_transform
from datapipe.decode import normalize
from datapipe.decode.forms.fixed import FixedTransform
from datapipe.decode.forms.together import check_together
from datapipe.decode.normalize import ImageMoves
from datapipe.decode.transform import make_transform
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.batch.image_batch import ImageSlots
from datapipe.loader.batch.token_batch import TextKind, TokenContext, TokenSlots, check_texts
from datapipe.loader.device.device_cache import DeviceCache
from datapipe.loader.image_path import choose_path
from datapipe.loader.metrics.watch import Watch
from datapipe.loader.specs import BatchSpec, DeviceSpec
from datapipe.loader.work import Work
from datapipe.plan.random_keys import RandomKeys
from datapipe.plan.steps import Share
from datapipe.plan.units import PASS_BIT, Sizes, Units
from datapipe.text.encode import SampleText

Make = Callable[..., Loader]
MakeText = Callable[..., datapipe.TextSpec]

SAMPLES = np.random.default_rng(5).permutation(37)
META = ("sample", "key", "valid", "images_per_sample")
NATIVE = ImageSpec(resize="native", patch=8, merge=2, min_pixels=256, max_pixels=4096)

PAIRS = {
    "fixed": (
        ImageSpec(size=24, random_crop=(0.2, 1.0), flip=0.5, normalize="imagenet"),
        ImageSpec(size=24, resize="pad", normalize="siglip"),
    ),
    "bfloat16": (
        ImageSpec(size=24, normalize="clip", dtype=torch.bfloat16),
        ImageSpec(size=24, normalize="siglip", flip=0.5, dtype=torch.bfloat16),
    ),
    "scaled": (ImageSpec(size=24), ImageSpec(size=24, scaled_decode=True)),
    "tiles": (
        ImageSpec(resize="tiles", size=16, tiles=4, normalize="imagenet"),
        ImageSpec(resize="tiles", size=16, tiles=2, thumbnail=False, normalize="clip"),
    ),
    "fixed and tiles": (
        ImageSpec(size=16, flip=0.5, normalize="clip"),
        ImageSpec(resize="tiles", size=16, tiles=4, normalize="clip"),
    ),
    "anyres": (
        ImageSpec(resize="tiles", size=16, grids=((16, 32), (32, 16)), normalize="clip"),
        ImageSpec(resize="tiles", size=16, grids=((16, 48), (48, 48)), normalize="siglip"),
    ),
    "native": (
        replace(NATIVE, normalize="clip"),
        replace(NATIVE, normalize="siglip", min_pixels=4096, max_pixels=16384),
    ),
    "shortest": (
        ImageSpec(resize="shortest", size=16, normalize="clip"),
        ImageSpec(resize="shortest", size=32, normalize="siglip"),
    ),
    "shortest and dynamic": (
        ImageSpec(resize="shortest", size=32, patch=16, normalize="clip"),
        ImageSpec(resize="dynamic", patch=16, max_pixels=4096, normalize="clip"),
    ),
}


def kinds_of(samples: Int64) -> Int64:
    """Every other five samples are of the second kind."""
    kinds: Int64 = samples // 5 % 2
    return kinds


def together(loaders: Sequence[Loader], *, pack: bool = False) -> BatchContext:
    """A context whose samples are of one loader's kind or of the other's."""
    contexts = [loader.components().context for loader in loaders]
    first, images, tokens = contexts[0], None, None
    if first.images is not None:
        transforms = tuple(c.images.transforms[0] for c in contexts if c.images is not None)
        check_together(transforms, ("one", "other"))
        images = replace(first.images, transforms=transforms, kinds=kinds_of)
    if first.tokens is not None:
        texts = tuple(c.tokens.texts[0] for c in contexts if c.tokens is not None)
        check_texts(texts, ("one", "other"))
        tokens = TokenContext(texts=texts, kinds=kinds_of, pack=pack)
    return replace(first, images=images, tokens=tokens)


def job(loaders: Sequence[Loader], samples: Int64, **changes: Any) -> StepJob:
    texts = [loader.components().schedule.origin.parts[0].selection().text for loader in loaders]
    kinds, sizes = kinds_of(samples).tolist(), None
    if texts[0] is not None:
        parts = zip(kinds, samples, strict=True)
        sizes = Sizes.join([texts[kind].measure(np.array([each])) for kind, each in parts])  # type: ignore[union-attr]
    units = Units(samples, np.arange(len(samples) + 1), sizes)
    keys = loaders[0].components().schedule.origin.random_keys(units)
    return StepJob(
        share=Share(
            units=units,
            valid=np.ones(len(samples), bool),
            excluded=np.zeros(len(samples), bool),
        ),
        run_after=loaders[0].components().start,
        **{"epoch": 0, "keys": keys} | changes,
    )


def build(context: BatchContext, step: StepJob) -> dict[str, Any]:
    builder = BatchBuilder(context, step)
    for piece in range(builder.pieces):
        builder.run(piece, Watch())
    context.store.close()
    return builder.result()


def alone(make: Make, image: ImageSpec | None, **options: Any) -> dict[int, dict[str, Any]]:
    """Batches of one sample each, by its number."""
    loader = make(image=image, shuffle=False, batch_size=1, **options)
    return {int(batch["sample"]): batch for batch in loader}


def check_images(
    batch: dict[str, Any], expected: Sequence[dict[str, Any]], *, padded: bool
) -> None:
    """Assert that images are those of batches of one sample each, in this order."""
    row = image = 0
    for one in expected:
        rows = one.get("pixel_values")
        count = int(one["images_per_sample"])
        for name in ("image_sizes", "image_grid_thw", "image_geometry"):
            if name in one:
                assert torch.equal(batch[name][image : image + count], one[name]), name
        image += count
        if not count:
            continue
        found = batch["pixel_values"][row : row + len(rows)]
        row += len(rows)
        if padded:
            height, width = rows.shape[2:]
            assert not found[:, :, height:].any()
            assert not found[:, :, :, width:].any()
            found = found[:, :, :height, :width]
        assert torch.equal(found, rows)
    assert row == len(batch["pixel_values"])
    if padded and row:
        sizes = [one["pixel_values"].shape[1:] for one in expected if one["images_per_sample"]]
        assert batch["pixel_values"].shape[1:] == torch.Size(map(max, *sizes))


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
        image_tokens=lambda sample: asked.append(sample) or kind.image_tokens(sample),  # type: ignore[func-returns-value]
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
    sizes = loader.components().schedule.origin.parts[0].measure(samples % 37)  # type: ignore[union-attr]
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


def test_caches_refuse_decoded_images_of_two_forms() -> None:
    specs = {"one": ImageSpec(size=24), "other": ImageSpec(size=24, resize="crop")}
    cache = CacheSpec(memory=1 << 30, keep="auto")
    assert kept_transform(cache, specs, decoder=False, transform=False) is None
    cache = CacheSpec(memory=1 << 30, keep="decoded")
    with pytest.raises(PlanError, match="one and other differ"):
        kept_transform(cache, specs, decoder=False, transform=False)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (ImageSpec(size=448), r"\[3, 336, 336\] of one, \[3, 448, 448\] of other"),
        (ImageSpec(size=336, normalize="clip"), "torch.uint8 of one, torch.float32 of other"),
        (NATIVE, "'image_grid_thw'"),
        (ImageSpec(resize="tiles", size=336, grids=((336, 672),)), "'image_sizes'"),
        (ImageSpec(resize="shortest", size=336), "of the largest image of other"),
    ],
    ids=str,
)
def test_images_that_make_no_batch_are_refused(other: ImageSpec, told: str) -> None:
    first = make_transform(ImageSpec(size=336))
    alike = make_transform(ImageSpec(size=336, flip=0.5, resize="crop"))
    check_together([first, alike], ["one", "alike"])
    with pytest.raises(PlanError, match=told):
        check_together([first, alike, make_transform(other)], ["one", "alike", "other"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"merge": 1}, "merge: 2 of one, 1 of other"),
        ({"patch": 4, "temporal": 8}, "patch: 8 of one, 4 of other"),
    ],
)
def test_patches_of_equal_length_are_no_equal_patches(changes: dict[str, Any], told: str) -> None:
    specs = NATIVE, replace(NATIVE, **changes)
    with pytest.raises(PlanError, match=told):
        check_together([make_transform(spec) for spec in specs], ["one", "other"])


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


def test_what_works_on_all_images_alike_refuses_several_kinds(make: Make) -> None:
    loaders = [make(image=spec) for spec in PAIRS["fixed"]]
    images = together(loaders).images
    assert images is not None
    with pytest.raises(PlanError, match="2 different ImageSpecs"):
        replace(images, decoder=object())  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="2 different ones"):
        DeviceCache(None, images, 0.0)  # type: ignore[arg-type]


def work_on(**options: Any) -> Work:
    options = {"device": DeviceSpec("cpu"), "decoder": "auto", "cache": None} | options
    nothing: dict[str, Any] = {"image": None, "text": None, "transform": None, "where": None}
    return Work(static_shapes=False, **{"batch": BatchSpec(4)} | nothing | options)


@pytest.mark.parametrize("pair", ["fixed and tiles", "shortest and dynamic"])
def test_a_device_normalises_images_of_two_specs(make: Make, pair: str) -> None:
    first, other = PAIRS[pair]
    loaders = [make(image=spec) for spec in (first, other)]
    context, work = together(loaders), work_on(image=first)
    expected = build(context, job(loaders, SAMPLES))["pixel_values"]
    path = choose_path(work, loaders[0].options)
    transforms = [path.transform(spec) for spec in (None, other)]
    assert context.images is not None
    images = replace(context.images, transforms=tuple(transforms))  # type: ignore[arg-type]
    batch = build(replace(context, images=images), job(loaders, SAMPLES))
    assert batch["pixel_values"].dtype == torch.uint8
    assert path.prefetcher is not None
    there = path.prefetcher.receive(path.prefetcher.send(batch))
    assert torch.equal(there["pixel_values"], expected)


@pytest.mark.parametrize(
    ("options", "changes", "told"),
    [
        ({}, {"normalize": "siglip"}, "normalised on the device"),
        ({}, {"resize": "shortest"}, "pads images of resize='stretch'"),
        ({"cache": CacheSpec(device=1 << 20)}, {"flip": 0.5}, "keeps images of one ImageSpec"),
        ({"batch": BatchSpec(4, sample_images=2)}, {"resize": "tiles"}, "sample_images=2"),
    ],
    ids=["normalised", "padded", "device cache", "shapes"],
)
def test_images_of_a_dataset_that_the_rest_of_the_loader_cannot_take_are_refused(
    make: Make, options: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    image = ImageSpec(size=24, normalize="clip")
    path = choose_path(work_on(image=image, **options), make().options)
    same = path.transform(replace(image)), path.transform()
    assert len({repr(transform.spec) for transform in same if transform}) == 1
    with pytest.raises(PlanError, match=told):
        path.transform(replace(image, **changes))
    if not options:
        return
    dali = replace(path, decoder=object())  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="DALI makes all images of a batch alike"):
        dali.transform(replace(image, flip=0.5))


def test_one_kind_takes_no_kinds_into_account(make: Make) -> None:
    images = make(image=PAIRS["fixed"][0]).components().context.images
    assert images is not None
    counted = replace(images, kinds=lambda samples: pytest.fail("asked for kinds"))
    samples = np.arange(3)
    ImageSlots(counted, samples, np.ones_like(samples), lambda slot: (0, slot))
