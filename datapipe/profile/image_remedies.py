"""Remedies for images: other forms, which are measured, and caches, which are predicted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil
from shlex import quote
from typing import Any

import numpy as np
import torch

from datapipe.cache.factory import kept_transform
from datapipe.cache.spec import CacheSpec
from datapipe.decode.array_spec import unnormalized
from datapipe.decode.image import Encoded
from datapipe.decode.normalize import array_of
from datapipe.decode.shrink import ShrinkOptions, shrink
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import Draw, ImageTransform, make_transform
from datapipe.errors import SampleError
from datapipe.index.images.header import probe
from datapipe.index.tar.listing import names_shards
from datapipe.loader.loader import Loader
from datapipe.loader.schedule.image_token_counts import has_frames
from datapipe.profile.forecast import Forecast, Remedy
from datapipe.profile.sizes import FITS, cache_bytes, free_memory
from datapipe.progress import readable_size
from datapipe.remote.folder import is_remote
from datapipe.report.table import ratio
from datapipe.torch_threads import alone

_COMPARED = 32  # images that forms are compared on
_LEAST_COMPARED = 3
_ROUNDS = 3  # in which forms of an image are compared in turn
_COMPARING = 0.6  # seconds, after which no round is begun
_SHRINKS = 0.95  # of their pixels, that smaller images keep at most
_ASPECT = 4 / 3  # of photographs: the longer side that goes with a shorter one
_DEFAULTS = (None, "bilinear")  # of options of images, which a command need not name
_ROUNDED = 16  # pixels that sides are rounded up to


def image_remedies(loader: Loader, forecast: Forecast, shards: str) -> Iterator[Remedy]:
    parts = loader.components()
    images = parts.context.images
    # DALI decodes and resizes at once; a remedy changes one ImageSpec.
    if images is None or images.decoder is not None or images.kinds is not None:
        return
    samples = _images_to_compare(forecast)
    if len(samples) < _LEAST_COMPARED:
        return
    (transform,) = images.transforms
    spec, base = transform.spec, (transform, samples)
    one_dataset = parts.schedule.origin.is_alone  # which commands pack and convert
    if not spec.scaled_decode and any(probe(data).scalable for data in samples):
        changed = replace(spec, scaled_decode=True)
        yield forecast.remedy(
            "scaled_decode",
            "decode JPEGs at 1/2, 1/4 or 1/8 where that is large enough",
            "ImageSpec(scaled_decode=True)",
            cost=forecast.cost.scaled(compare_images(base, (make_transform(changed), samples))),
            note="some 3 grey levels off",
            changes={"image": changed} if parts.prefetcher is None else None,
        )
    factors = {"decode": 1.0, "resize": 1.0}
    if spec.out_dtype != torch.uint8:
        changed = unnormalized(spec)
        factors = compare_images(base, (make_transform(changed), samples))
        how = "ImageSpec(normalize=None)"
        note = "normalised by datapipe.decode.batched.normalize_batch"
        changes: dict[str, Any] = {"image": changed}
        if torch.cuda.is_available():
            how, changes = 'make_loader(device="cuda")', {"device": "cuda"}
            note = "normalised there"
        yield forecast.remedy(
            "uint8",
            "images as uint8 to the device, a quarter of the bytes",
            how,
            cost=forecast.cost.scaled(factors),
            note=note,
            changes=changes,
        )
    if one_dataset:
        yield from _smaller(forecast, base, shards)
    kept = kept_transform(
        CacheSpec(memory=free_memory()),
        {"": spec},
        decoder=False,
        transform=parts.context.transform is not None,
    )
    if kept is not None and parts.context.cache is None:
        share = 1 - min(1.0, factors["resize"])
        # Arrays hold all frames of videos, and not which images these are.
        chosen = spec.max_frames is not None or (
            spec.flip and has_frames(loader.dataset.columns.extensions)
        )
        command = convert_command(shards, spec) if one_dataset and not chosen else None
        yield from _caches(loader, forecast, kept, share, command)


def _smaller(forecast: Forecast, base: Form, shards: str) -> Iterator[Remedy]:
    transform, images = base
    side = sufficient_side(transform.spec)
    smaller, before, after = [], 0, 0
    for data in images:
        info = made = probe(data)
        shrunk = shrink(data, info, ShrinkOptions(max_side=side))
        if shrunk is not None:
            data, made = shrunk
        smaller.append(data)
        before += info.width * info.height
        after += made.width * made.height
    if after > _SHRINKS * before:
        return
    size = sum(map(len, smaller)) / sum(map(len, images))
    setup = forecast.setup
    source, out, note = shards.rstrip("/"), f"shards-{side}", ""
    if any(probe(data).format == "jpg" for data in images):
        note = "better from the raw data: JPEGs are encoded a second time"
    if is_remote(source):
        source, out, note = "RAW", "OUT", "of the raw data"  # packing needs local files
    elif not names_shards(source) and not source.endswith(".tar"):
        out = f"{source}-{side}"
    yield forecast.remedy(
        "smaller images",
        f"images of at most {side} pixels a side in the shards, {after / before:.0%} of the pixels",
        f"datapipe pack {quote(source)} {quote(out)} --max-side {side}",
        # The wait of a read is taken to be latency: storage bounds what is read in all.
        cost=forecast.cost.scaled(compare_images(base, (transform, smaller)) | {"read": size}),
        setup=replace(setup, storage=setup.storage / size if setup.storage else None),
        note=note,
        max_side=side,
    )


def _caches(
    loader: Loader, forecast: Forecast, kept: ImageTransform, share: float, command: str | None
) -> Iterator[Remedy]:
    """Propose images that are kept decoded and resized by `kept`, in memory or in arrays.

    `share` of the time of resizing is normalising; `command` makes the arrays.
    """
    cost, setup = forecast.cost, forecast.setup
    copy = forecast.roofline.ceilings.get("memory copy")
    if copy is None or copy.bandwidth is None:
        return
    whole, free = cache_bytes(loader.dataset, kept), free_memory()
    part_of_dataset = loader.components().schedule.origin.source.count / len(loader.dataset)
    values = whole / len(loader.dataset)
    each = ratio(copy.bandwidth, setup.speed(copy.threads))
    resize = share * cost.cpu.get("resize", 0.0) + values / each
    cached = replace(
        cost,
        cpu={name: cpu for name, cpu in cost.cpu.items() if name != "decode"} | {"resize": resize},
        wait={name: wait for name, wait in cost.wait.items() if name != "read"},
    )
    need = whole * part_of_dataset
    fits = min(1.0, FITS * free / max(need, 1.0))
    size = f"{readable_size(round(need))} as uint8, of which {fits:.0%} fit into"
    yield forecast.remedy(
        "decoded cache",
        "keep decoded and resized images in memory, after the first epoch",
        f'make_loader(cache=datapipe.CacheSpec(memory="{ceil(fits * need / 1e6)}MB"))',
        cost=cached.mixed(cost, fits),
        setup=replace(setup, storage=None) if fits == 1 else None,
        note=f"{size} memory",
    )
    if kept.spec.one_size and command is not None:
        cold = forecast.storage
        storage = None
        if fits < 1 and cold is not None and cold.bandwidth is not None:
            storage = ratio(cold.bandwidth, (1 - fits) * values)
        yield forecast.remedy(
            "memmap arrays",
            "images decoded and resized once, into an array on disk",
            command,
            cost=cached,
            setup=replace(setup, storage=storage),
            note=f"then give the loader that folder; {size} the page cache",
        )


def convert_command(shards: str, spec: ImageSpec) -> str:
    """Return the command that writes arrays of the images that a loader with `spec` decodes."""
    source = shards.rstrip("/")
    local = not is_remote(source) and not names_shards(source)
    out = f"{source.removesuffix('.tar')}-arrays" if local else "arrays"
    if spec.fills_borders and (spec.fill is not None or isinstance(spec.normalize, tuple)):
        # No option of the command sets such a colour.
        return f"datapipe.convert_dataset({source!r}, {out!r}, image=IMAGE), with its ImageSpec"
    given = [f"size={spec.height}x{spec.width}"]
    names = ["resize", "interpolation", "crop_from"]
    if spec.fills_borders:
        names.append("normalize")  # its mean is the colour of the padding
    values = {name: getattr(spec, name) for name in names}
    given += [f"{name}={value}" for name, value in values.items() if value not in _DEFAULTS]
    text = ",".join(given + ["scaled_decode"] * spec.scaled_decode)
    return f"datapipe convert {quote(source)} {quote(out)} --image {quote(text)}"


def _images_to_compare(forecast: Forecast) -> list[Encoded]:
    found: list[Encoded] = []
    for data in forecast.alone.first.images[:_COMPARED]:
        with suppress(SampleError):
            probe(data)
            found.append(data)
    return found


def sufficient_side(spec: ImageSpec) -> int:
    """Return the longer side, in pixels, from which on no photograph has to be enlarged."""
    return ceil(make_transform(spec).sufficient_side(_ASPECT) / _ROUNDED) * _ROUNDED


Form = tuple[ImageTransform, Sequence[Encoded]]
"""A transform, and images for it."""


def compare_images(base: Form, changed: Form) -> dict[str, float]:
    """Return the factors of the time of "decode" and "resize", normalisation included.

    The two forms of an image are made in turn, so that both find the machine the same.
    """
    times = np.zeros((2, 2))  # of each form: decoding, resizing
    began = time.perf_counter()
    with alone():
        for _ in range(_ROUNDS):
            if time.perf_counter() - began > _COMPARING:
                break
            for images in zip(base[1], changed[1], strict=True):
                for form, (transform, _) in enumerate((base, changed)):
                    times[form] += time_image(transform, images[form])
    decode, resize = times[1] / np.maximum(times[0], 1e-9)
    return {"decode": float(decode), "resize": float(resize)}


def time_image(transform: ImageTransform, data: Encoded) -> tuple[float, float]:
    """Measure CPU seconds of decoding and of placing into memory that is mapped already."""
    began = time.thread_time()
    try:
        image = transform.decode(data)
    except SampleError:
        return 0.0, 0.0
    decoded = time.thread_time()
    shape = transform.own_shape(image.width, image.height)
    rows = array_of(torch.ones(shape, dtype=transform.dtype, device="cpu"))
    ready = time.thread_time()
    transform.place(image, rows, Draw(0) if transform.spec.random else None)
    return decoded - began, time.thread_time() - ready
