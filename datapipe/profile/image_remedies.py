"""Remedies for images: other forms, which are measured, and caches, which are predicted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from shlex import quote

import numpy as np
import torch

from datapipe.decode.array_spec import unnormalized
from datapipe.decode.image import Encoded
from datapipe.decode.shrink import ShrinkOptions, shrink
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import Draw, ImageTransform, make_transform
from datapipe.errors import SampleError
from datapipe.geometry.sizes import one
from datapipe.index.images.header import probe
from datapipe.index.tar.listing import names_shards
from datapipe.loader.loader import Loader
from datapipe.profile.forecast import FITS, Forecast, Measured, Remedy, free_memory
from datapipe.profile.model import SampleCost
from datapipe.progress import readable_size
from datapipe.remote.folder import is_remote
from datapipe.report.table import ratio

_COMPARED = 32  # images that forms are compared on
_LEAST_COMPARED = 3
_ROUNDS = 3  # in which forms of an image are compared in turn
_COMPARING = 0.6  # seconds, after which no round is begun
_SHRINKS = 0.95  # of their pixels, that smaller images keep at most
_ASPECT = 4 / 3  # of photographs: the longer side that goes with a shorter one
_ROUNDED = 16  # pixels that sides are rounded up to


def image_remedies(loader: Loader, forecast: Forecast, shards: str) -> Iterator[Remedy]:
    """List remedies that make images cheaper."""
    context = loader.components().context
    assert context.images is not None
    if context.images.decoder is not None:
        return  # decoding and resizing cannot be measured apart
    if context.images.several:
        return  # a remedy changes one ImageSpec
    (transform,) = context.images.transforms
    spec = transform.spec
    images = _images_to_compare(forecast.measured)
    if len(images) < _LEAST_COMPARED:
        return
    base = transform, images
    if not spec.scaled_decode:
        changed = replace(spec, scaled_decode=True)
        factors = compare_images(base, (make_transform(changed), images))
        yield forecast.remedy(
            "scaled_decode",
            "decode JPEGs at 1/2, 1/4 or 1/8 where that is large enough",
            "ImageSpec(scaled_decode=True)",
            cost=forecast.cost.scaled(factors),
            note="some 3 grey levels off",
            changes={"image": changed} if loader.components().prefetcher is None else None,
        )
    yield from _uint8(loader, forecast, images)
    if loader.components().schedule.origin.is_alone:  # a command packs one dataset
        yield from _smaller(forecast, spec, images, shards)
    yield from _caches(loader, forecast, shards)


def _uint8(loader: Loader, forecast: Forecast, images: Sequence[Encoded]) -> Iterator[Remedy]:
    """Propose uint8 up to the device, if workers normalise."""
    context, prefetcher = loader.components().context, loader.components().prefetcher
    assert context.images is not None
    (transform,) = context.images.transforms
    spec = transform.spec
    if spec.out_dtype == torch.uint8:
        return
    assert prefetcher is None, "images for a device are uint8 already"
    changed = unnormalized(spec)
    factors = compare_images((transform, images), (make_transform(changed), images))
    cuda = torch.cuda.is_available()
    yield forecast.remedy(
        "uint8",
        "images as uint8 to the device, normalised there",
        'make_loader(device="cuda")' if cuda else "ImageSpec(normalize=None)",
        cost=forecast.cost.scaled(factors),
        note=(
            "a quarter of the bytes cross the bus"
            if cuda
            else "and datapipe.decode.batched.normalize_batch on the device; a quarter of the bytes"
        ),
        changes={"device": "cuda"} if cuda else {"image": changed},
    )


def _smaller(
    forecast: Forecast, spec: ImageSpec, images: Sequence[Encoded], shards: str
) -> Iterator[Remedy]:
    """Propose images in the shards that are no larger than training needs them."""
    side = sufficient_side(spec)
    options = ShrinkOptions(max_side=side)
    smaller, before, after = [], 0, 0
    for data in images:
        info = probe(data)
        shrunk = shrink(data, info, options)
        smaller.append(data if shrunk is None else shrunk[0])
        before += info.width * info.height
        after += info.width * info.height if shrunk is None else shrunk[1].width * shrunk[1].height
    if after > _SHRINKS * before:
        return
    transform = make_transform(spec)
    factors = compare_images((transform, images), (transform, smaller))
    size = sum(map(len, smaller)) / sum(map(len, images))
    # Part of the time of a read does not depend on its size.
    latency = forecast.measured.latency
    shorter = latency + (1 - latency) * size
    cost = forecast.cost.scaled(factors | {"read": shorter})
    wait = {name: value * (shorter if name == "read" else 1) for name, value in cost.wait.items()}
    storage = forecast.machine.storage
    source, out, note = shards.rstrip("/"), "", "better from the raw data: JPEGs are encoded anew"
    if is_remote(source):
        # Packing needs local files.
        source, out, note = "RAW", "OUT", "of the raw data"
    elif names_shards(source) or source.endswith(".tar"):
        out = f"shards-{side}"
    yield forecast.remedy(
        "smaller images",
        f"images of at most {side} pixels a side in the shards, {after / before:.0%} of the pixels",
        f"datapipe pack {quote(source)} {quote(out or f'{source}-{side}')} --max-side {side}",
        cost=replace(cost, wait=wait),
        machine=replace(forecast.machine, storage=storage / size if storage else None),
        note=note,
        max_side=side,
    )


def _caches(loader: Loader, forecast: Forecast, shards: str) -> Iterator[Remedy]:
    """Propose images that are kept decoded and resized, in memory or in arrays."""
    measured, context = forecast.measured, loader.components().context
    assert context.images is not None
    (transform,) = context.images.transforms
    copy = measured.roofline.ceilings.get("memory copy")
    stages = measured.alone.stages
    resize, normalize = stages.get("resize"), stages.get("normalize")
    if copy is None or copy.bandwidth is None or not resize or not normalize:
        return
    if context.transform is not None or transform.spec.random:
        return  # the images differ from epoch to epoch
    values = normalize.bytes_in / max(normalize.samples, 1)
    each = ratio(copy.bandwidth, forecast.machine.speed(copy.threads))
    share = ratio(normalize.cpu, resize.cpu + normalize.cpu)
    cost = forecast.cost
    cached = replace(
        cost,
        cpu={name: value for name, value in cost.cpu.items() if name != "decode"}
        | {"resize": share * cost.cpu.get("resize", 0.0) + values / each},
        wait={name: value for name, value in cost.wait.items() if name != "read"},
    )
    origin = loader.components().schedule.origin
    samples = origin.source.count
    need, free = samples * values, free_memory()
    part = min(1.0, FITS * free / max(need, 1.0))
    mixed = _mixed(cached, cost, part)
    size = f"{readable_size(round(need))} as uint8"
    budget = 1 + round(1.1 * part * need / 1e6)  # texts and metadata take memory too
    yield forecast.remedy(
        "decoded cache",
        "keep decoded and resized images in memory, after the first epoch",
        f'make_loader(cache=datapipe.CacheSpec(memory="{budget}MB"))',
        cost=mixed,
        machine=replace(forecast.machine, storage=None) if part == 1 else None,
        note=f"{size}, of which {part:.0%} fit into memory",
    )
    if transform.spec.one_size and origin.is_alone:
        yield forecast.remedy(
            "memmap arrays",
            "images decoded and resized once, into an array on disk",
            convert_command(shards, transform.spec),
            cost=cached,
            machine=replace(forecast.machine, storage=_from_disk(measured, values, part)),
            note=f"then give the loader that folder; {size}, of which {part:.0%} fit into the page "
            "cache",
        )


def convert_command(shards: str, spec: ImageSpec) -> str:
    """Return the command that writes arrays of the images that a loader with `spec` decodes."""
    source = shards.rstrip("/")
    local = not is_remote(source) and not names_shards(source)
    out = f"{source.removesuffix('.tar')}-arrays" if local else "arrays"
    options = {"size": f"{spec.height}x{spec.width}", "resize": spec.resize}
    if spec.interpolation != "bilinear":
        options["interpolation"] = spec.interpolation
    if spec.crop_from is not None:
        options["crop_from"] = str(spec.crop_from)
    if spec.scaled_decode:
        options["scaled_decode"] = ""
    if spec.fills_borders and isinstance(spec.normalize, str):
        options["normalize"] = spec.normalize  # its mean is the colour of the padding
    text = ",".join(f"{name}={value}" if value else name for name, value in options.items())
    same = not spec.fills_borders or (spec.fill is None and not isinstance(spec.normalize, tuple))
    if same:
        return f"datapipe convert {quote(source)} {quote(out)} --image {quote(text)}"
    # No option of the command sets such a colour.
    return (
        f"datapipe.convert_dataset({source!r}, {out!r}, image=IMAGE), with the loader's ImageSpec"
    )


def _mixed(first: SampleCost, second: SampleCost, part: float) -> SampleCost:
    """Mix two costs: `part` of the samples have the first one, and the rest the second one."""

    def mean(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
        return {name: part * a.get(name, 0.0) + (1 - part) * b.get(name, 0.0) for name in {*a, *b}}

    return replace(second, cpu=mean(first.cpu, second.cpu), wait=mean(first.wait, second.wait))


def _from_disk(measured: Measured, values: float, part: float) -> float | None:
    """Return samples per second that storage delivers if `part` of the bytes are in memory."""
    cold = measured.storage
    if part == 1 or cold is None or cold.bandwidth is None:
        return None
    return ratio(cold.bandwidth, (1 - part) * values)


def _images_to_compare(measured: Measured) -> list[Encoded]:
    """Return the first undamaged image of several samples."""
    found: list[Encoded] = []
    for sample in measured.alone.kept:
        for data in sample.images[:1]:
            with suppress(SampleError):
                probe(data)
                found.append(data)
    return found[:_COMPARED]


def sufficient_side(spec: ImageSpec) -> int:
    """Return the longer side, in pixels, from which on no photograph has to be enlarged."""
    side = make_transform(spec).sufficient_side(_ASPECT)
    return -int(-side // _ROUNDED) * _ROUNDED


Form = tuple[ImageTransform, Sequence[Encoded]]
"""A transform, and images for it."""


def compare_images(base: Form, changed: Form) -> dict[str, float]:
    """Compare the time of decoding and resizing in two forms.

    The two forms of an image are made in turn, so that both find the machine the same.

    Returns:
        Factors of the stages "decode" and "resize", normalisation included.
    """
    times = np.zeros((2, 2))  # of each form: decoding, resizing
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        began = time.perf_counter()
        for _ in range(_ROUNDS):
            if time.perf_counter() - began > _COMPARING:
                break
            for images in zip(base[1], changed[1], strict=True):
                for form, (transform, _) in enumerate((base, changed)):
                    times[form] += _time_image(transform, images[form])
    finally:
        torch.set_num_threads(threads)
    decode, resize = times[1] / np.maximum(times[0], 1e-9)
    return {"decode": float(decode), "resize": float(resize)}


def _time_image(transform: ImageTransform, data: Encoded) -> tuple[float, float]:
    """Measure CPU seconds of decoding and of placing into memory that is mapped already."""
    began = time.thread_time()
    try:
        image = transform.decode(data)
    except SampleError:
        return 0.0, 0.0
    decoded = time.thread_time()
    sides = one(image.width, image.height)
    rows = torch.ones(
        int(transform.rows(*sides)[0]),
        *transform.row_shape(*sides),
        dtype=transform.dtype,
        device="cpu",
    )
    ready = time.thread_time()
    transform.place(image, rows, Draw(0) if transform.spec.random else None)
    return decoded - began, time.thread_time() - ready
