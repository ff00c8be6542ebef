"""Two loaders of different images and texts, and batches of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import datapipe
from datapipe import ImageSpec, Loader
from datapipe.array_types import Int64
from datapipe.decode.forms.together import check_together
from datapipe.loader.batch.builder import BatchBuilder
from datapipe.loader.batch.context import BatchContext, StepJob
from datapipe.loader.batch.token_batch import TokenContext, check_texts
from datapipe.loader.metrics.watch import Watch
from datapipe.plan.steps import Share
from datapipe.plan.units import Sizes, Units

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
