"""Factory for the context of a loader's batches."""

from __future__ import annotations

from datapipe.cache.factory import kept_transform, make_cache, make_device_rows
from datapipe.decode.array_spec import array_spec
from datapipe.decode.normalize import load_soon
from datapipe.decode.transform import ImageTransform, make_transform
from datapipe.index.dataset import Dataset
from datapipe.loader.batch.buffer_pool import BufferPool, can_pin
from datapipe.loader.batch.context import BatchContext
from datapipe.loader.batch.image_batch import GEOMETRY
from datapipe.loader.batch.image_context import ImageContext
from datapipe.loader.batch.token_batch import TextKind, TokenContext
from datapipe.loader.device.device_cache import DeviceCache
from datapipe.loader.schedule.run_options import LoaderOptions
from datapipe.loader.schedule.sample_source import TextSizes
from datapipe.loader.work import ImagePath, Work
from datapipe.plan.options import PlanOptions
from datapipe.store.arrays import open_images, open_token_arrays
from datapipe.store.open import open_store


def make_context(
    dataset: Dataset,
    text: TextSizes | None,
    plan: PlanOptions,
    options: LoaderOptions,
    *,
    work: Work,
    path: ImagePath,
    transform: ImageTransform | None,
) -> tuple[BatchContext, DeviceCache | None]:
    """Make the context of the batches, and the cache of images on the device.

    Args:
        text: of the samples; None without a tokenizer.
        transform: of images in the workers; None if images are left out.

    Raises:
        PlanError: a cache cannot keep what is asked for.
    """
    arrays, prefetcher = dataset.manifest.arrays, path.prefetcher
    kept = rows = cache = images = device_cache = None
    if work.cache is not None:
        kept = kept_transform(
            work.cache,
            path.made,
            decoder=path.decoder is not None,
            transform=work.transform is not None,
        )
        rows = make_device_rows(
            work.cache,
            dataset,
            image=path.made,
            kept=kept,
            device=None if prefetcher is None else prefetcher.device,
        )
    if arrays is not None and arrays.image and path.made is not None:
        kept = make_transform(array_spec(path.made))
        load_soon()  # there is nothing to decode that would hide how long torch takes
    if transform is not None:
        assert path.made is not None
        most = None
        if work.static_shapes:
            most = (plan.max_patches or plan.max_images or 0) * options.units_per_rank
        elif work.batch.sample_rows is not None:
            most = work.batch.sample_rows * (work.batch.batch_size or 1)
        on_gpu = prefetcher is not None and prefetcher.device.type == "cuda"
        pin = (work.device.pin_memory and can_pin()) or on_gpu
        images = ImageContext(
            transforms=(transform,),
            columns=dataset.columns,
            # Prepared batches, the one in use, the one before it and one on its way to a device.
            pool=BufferPool(keep=options.prefetch_factor + 3, pin=pin),
            seed=plan.seed,
            rows=most,
            geometry=GEOMETRY in options.meta,
            decoder=path.decoder,
            kept=kept,
        )
        if rows is not None:
            device_cache = DeviceCache(rows, images, path.made.flip)
    if work.cache is not None:
        cache = make_cache(
            work.cache,
            dataset,
            images=work.image is not None,
            kept=kept,
            world_size=options.world_size,
            processes=options.in_processes,
            device=rows,
        )
    context = BatchContext(
        dataset=dataset,
        store=open_store(dataset),
        arrays=open_images(dataset),
        images=images,
        transform=work.transform,
        tokens=_token_context(text, plan, options, work=work),
        meta=options.meta,
        seed=plan.seed,
        verify=options.verify,
        cache=cache,
        on_error=options.on_error,
        workers=0 if options.in_processes else options.num_workers,
        ahead=options.prefetch_factor,
    )
    return context, device_cache


def _token_context(
    text: TextSizes | None, plan: PlanOptions, options: LoaderOptions, *, work: Work
) -> TokenContext | None:
    if text is None:
        return None
    arrays = open_token_arrays(text.dataset, text.encoder.digest)
    total, segments = work.batch.pad_to, None
    if work.static_shapes:
        assert plan.pack is not None
        assert plan.max_samples is not None
        total = plan.pack * options.units_per_rank
        segments = plan.max_samples * options.units_per_rank + 1  # the last one is the rest
    return TokenContext(
        texts=(
            TextKind(
                encoder=text.encoder,
                stored=None if arrays is None else (arrays, text.columns),
                image_tokens=text.image_tokens,
                image_grids=text.image_grids if text.images.grids is not None else None,
                limit=text.limit,
            ),
        ),
        pack=plan.unit == "pack",
        # One of the two is 1: packs are not padded.
        multiple_of=plan.pack_multiple_of * work.batch.multiple_of,
        total=total,
        segments=segments,
    )
