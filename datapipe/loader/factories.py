"""Factory for the context of a loader's batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from datapipe.array_types import Int64
from datapipe.cache.factory import kept_transform, make_cache
from datapipe.decode.array_spec import array_spec, spec_of
from datapipe.decode.forms.frame import VideoSizes
from datapipe.decode.forms.together import check_together
from datapipe.decode.normalize import KERNEL
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import ImageTransform, make_transform
from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset
from datapipe.index.files.random_read import gather_counts
from datapipe.loader.batch.buffer_pool import BufferPool, can_pin
from datapipe.loader.batch.context import BatchContext
from datapipe.loader.batch.image_batch import GEOMETRY, ImageContext
from datapipe.loader.batch.token_batch import TextKind, TokenContext, check_texts
from datapipe.loader.device.device_cache import DeviceCache
from datapipe.loader.schedule.mixture.part import MixturePart
from datapipe.loader.schedule.origin import Origin
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.loader.schedule.sample_source import TextRule
from datapipe.loader.work import ImagePath, SampleWork
from datapipe.store.open import open_arrays, open_store


def make_context(
    dataset: Dataset, schedule: Schedule, path: ImagePath
) -> tuple[BatchContext, DeviceCache | None]:
    """Make the context of the batches, and the cache on the device, or raise `PlanError`."""
    work, options, made = path.work, schedule.options, path.made
    kinds = None if made is None else ImageKinds.of(schedule.origin, dataset)
    kept = rows = cache = images = device_cache = None
    if work.cache is not None:
        if options.on_cluster:
            raise PlanError(
                "workers='ray': cache= keeps samples on this machine, and other nodes decode them; "
                "leave it out, or give workers='threads'"
            )
        kept = kept_transform(
            work.cache,
            {} if kinds is None else kinds.specs,
            decoder=path.decoder is not None,
            transform=work.transform is not None,
        )
        cache, rows = make_cache(
            work.cache,
            dataset,
            image=made,
            kept=kept,
            world_size=options.world_size,
            processes=options.in_processes,
            device=None if path.prefetcher is None else path.prefetcher.device,
        )
    held = [part.data.arrays for part in schedule.origin.parts]
    # All parts share the form of their images.
    stored = next((spec_of(arrays.image) for arrays in held if arrays and arrays.image), None)
    if stored is not None and made is not None:
        kept = make_transform(array_spec(stored))
        KERNEL.load_soon()  # there is nothing to decode that would hide how long torch takes
    if kinds is not None and made is not None:
        images = _image_context(dataset, schedule, path, kinds, kept)
        if rows is not None:
            device_cache = DeviceCache(rows, images, made.flip)
    store = open_store(dataset)
    context = BatchContext(
        dataset=dataset,
        store=store,
        arrays=open_arrays(dataset, store, images=images is not None),
        images=images,
        transform=work.transform,
        tokens=_token_context(dataset, schedule, work),
        options=options,
        seed=schedule.plan.seed,
        cache=cache,
    )
    return context, device_cache


def _image_context(
    dataset: Dataset,
    schedule: Schedule,
    path: ImagePath,
    kinds: ImageKinds,
    kept: ImageTransform | None,
) -> ImageContext:
    work, plan, options = path.work, schedule.plan, schedule.options
    if any(kinds.videos) and (work.batch.sample_rows or work.static_shapes):
        raise PlanError(
            "constant shapes of batches with ImageSpec(video=...): frames of videos share rows of "
            "pixel_values_videos; leave one of them out: with video=None each frame is an image"
        )
    most = None
    if work.static_shapes:
        most = (plan.max_patches or plan.max_images or 0) * options.units_per_rank
    elif work.batch.sample_rows is not None:
        most = work.batch.sample_rows * (work.batch.batch_size or 1)
    on_gpu = path.prefetcher is not None and path.prefetcher.device.type == "cuda"
    pin = (work.device.pin_memory and can_pin()) or on_gpu
    return ImageContext(
        transforms=kinds.transforms,
        kinds=kinds.kinds,
        columns=dataset.columns,
        # Prepared batches, the one in use, the one before it and one on its way to a device.
        pool=BufferPool(keep=options.prefetch_factor + 3, pin=pin),
        seed=plan.seed,
        rows=most,
        geometry=GEOMETRY in options.meta,
        decoder=path.decoder,
        kept=kept,
        videos=kinds.videos if any(kinds.videos) else None,
    )


def _token_context(dataset: Dataset, schedule: Schedule, work: SampleWork) -> TokenContext | None:
    origin, plan = schedule.origin, schedule.plan
    units_per_rank = schedule.options.units_per_rank
    texts = tuple(
        _text_kind(part, part.rule, first)
        for part, first in zip(origin.parts, origin.edges[:-1].tolist(), strict=True)
        if part.rule is not None
    )
    if not texts:
        return None
    check_texts(texts, [part.name for part in origin.parts])
    if plan.unit == "pack" and texts[0].rule.spec.token_types:
        named = f"TextSpec(token_types={texts[0].rule.spec.token_types!r})"
        raise PlanError(
            f"pack= with {named}: the Gemma models of transformers 5.24 let the tokens of an image "
            "see each other, and count them from the beginning of each sample, and a pack has many "
            "samples; give batch_size= or max_tokens=, with buckets= for less padding"
        )
    row = (plan.pack or 0) * units_per_rank
    for text in texts:
        chunk = text.rule.spec.attention_chunk
        if chunk is not None and row > chunk:
            raise PlanError(
                f"a row of packs has {row:,} tokens, and TextSpec(attention_chunk={chunk}): the "
                f"model cuts its attention after each {chunk:,} of them, within samples; give "
                "smaller pack= or batch_size=, so that a row has no more"
            )
    total, segments = work.batch.pad_to, None
    if work.static_shapes:
        assert plan.pack is not None
        assert plan.max_samples is not None
        total = plan.pack * units_per_rank
        segments = plan.max_samples * units_per_rank + 1  # the last one is the rest
    return TokenContext(
        texts=texts,
        kinds=dataset.kinds if len(texts) > 1 else None,
        pack=plan.unit == "pack",
        # One of the two is 1: packs are not padded.
        multiple_of=plan.pack_multiple_of * work.batch.multiple_of,
        total=total,
        segments=segments,
        constants={"use_cache": False} if work.for_model and plan.unit == "pack" else {},
    )


def _text_kind(part: MixturePart, rule: TextRule, first: int) -> TextKind:
    video = None
    if rule.images.videos is not None and part.image is not None:
        video = part.image.spec.video
    rate = None if video is None else video.tokens_per_second
    kind = TextKind(part=part, rule=rule, first=first, tokens_per_second=rate)
    if video is not None and kind.is_stored:
        raise PlanError(
            f"{part.data.prefix}arrays have the tokens of videos without their times; load the "
            "shards, or give ImageSpec(video=None)"
        )
    return kind


@dataclass(frozen=True)
class ImageKinds:
    """Different transforms of the images of a loader."""

    transforms: tuple[ImageTransform, ...]
    kinds: Callable[[Int64], Int64] | None  # transform of each sample; None if there is but one
    specs: dict[str, ImageSpec]  # of the transforms, by the name of a part that has each
    videos: tuple[VideoSizes | None, ...]  # of the frames of each; None if they are images

    @staticmethod
    def of(origin: Origin, dataset: Dataset) -> ImageKinds:
        """Find the transforms of all parts; `PlanError` if two cannot be in one batch."""
        found: dict[tuple[str, bool], tuple[ImageTransform, str]] = {}
        table = []
        for part in origin.parts:
            assert part.image is not None
            alone, several = part.image, part.image.of_several
            name = repr(alone.spec)
            found.setdefault((name, False), (alone, part.data.name))
            if several is not None:
                found.setdefault((name, True), (several, part.data.name))
            keys = (name, False), (name, several is not None)
            table.append([list(found).index(key) for key in keys])
        transforms, names = zip(*found.values(), strict=True)
        check_together(transforms, names)
        specs = {name: one.spec for one, name in found.values()}
        by_part = np.array(table, np.int64)
        kinds = partial(_kinds_of, dataset, by_part) if len(transforms) > 1 else None
        return ImageKinds(transforms, kinds, specs, tuple(map(VideoSizes.of, transforms)))


def _kinds_of(dataset: Dataset, by_part: Int64, samples: Int64) -> Int64:
    """Return the kinds of samples, from those [parts, 2] of one image and of several."""
    kinds = by_part[dataset.kinds(samples)]
    if (by_part[:, 0] == by_part[:, 1]).all():
        return kinds[:, 0]
    several = gather_counts(dataset.columns.sample_image, samples) > 1
    return np.where(several, kinds[:, 1], kinds[:, 0])
