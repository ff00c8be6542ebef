"""Advice on shards, a cache of decoded images, or arrays: their sizes, rates and demands.

`look` measures a dataset and reads its index, `forms` and `advise` are pure functions of that.
"""

from __future__ import annotations

import itertools
import shutil
import time
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from datapipe.cpus import available_cpus
from datapipe.decode.array_spec import array_spec
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import make_transform
from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset
from datapipe.index.images.header import is_stored_image
from datapipe.profile.image_remedies import time_image
from datapipe.profile.sizes import FITS, FormSizes, form_sizes, free_memory, megabytes
from datapipe.progress import readable_size
from datapipe.remote.folder import RemoteFolder
from datapipe.store.open import open_store
from datapipe.torch_threads import alone

_SECONDS = 0.5  # that images are decoded for
_TRIED = 64  # images at most, and then again
_COPIED = 64 << 20  # bytes that copying is timed over: more than caches hold
_SPARE = 1.2  # times the needed rate, that a form should have


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts that decide between forms."""

    images: int  # of the dataset
    sizes: FormSizes
    decode: float | None  # seconds of a core to decode and resize an image; None if it is decoded
    copy: float  # seconds of a core to copy a decoded one
    cores: int
    # memory, disk: bytes that are free
    memory: int
    disk: int


@dataclass(frozen=True, kw_only=True)
class FormCost:
    """A form of a dataset."""

    name: str
    disk: int  # bytes
    memory: int = 0  # bytes
    rate: float  # images a second of all cores, at most
    read: int  # bytes of an image to read from storage, if the page cache does not hold it
    before: float = 0.0  # seconds of all cores before the first epoch, or in it


def look(dataset: Dataset, image: ImageSpec) -> Facts:
    """Find the facts of a dataset; takes about a second.

    Raises:
        PlanError: it has no images, or they would have many sizes.
    """
    if not dataset.manifest.images:
        raise PlanError(f"{dataset.folder} holds no images, so there is no form of them to choose")
    if not image.one_size:
        raise PlanError(
            f"resize={image.resize!r} gives images of many sizes, which arrays cannot hold; a "
            "cache of decoded images can, see docs/choosing.md"
        )
    spec = array_spec(image)
    home = dataset.home if isinstance(dataset.folder, RemoteFolder) else dataset.folder
    return Facts(
        images=dataset.manifest.images,
        sizes=form_sizes(dataset, make_transform(spec)),
        decode=_time_decoding(dataset, spec) if dataset.manifest.arrays is None else None,
        copy=_time_copying(spec.height * spec.width * 3),
        cores=available_cpus(),
        memory=free_memory(),
        disk=shutil.disk_usage(home).free,
    )


def forms(facts: Facts) -> list[FormCost]:
    """Compute the costs and the rate of each form."""
    sizes, images, copied = facts.sizes, facts.images, facts.cores / facts.copy
    assert sizes.arrays is not None, "look refuses images of many sizes"
    arrays = FormCost(name="arrays", disk=sizes.arrays, rate=copied, read=sizes.arrays // images)
    if facts.decode is None:
        return [arrays]
    rate = facts.cores / facts.decode
    shards = FormCost(name="shards", disk=sizes.shards, rate=rate, read=sizes.shards // images)
    cache = FormCost(
        name="shards, cached decoded",
        disk=sizes.shards,
        memory=sizes.cache,
        rate=copied,
        read=0,
        before=images / rate,
    )
    return [shards, cache, replace(arrays, before=images / rate)]


def advise(facts: Facts, *, rate: float | None, epochs: int) -> list[str]:
    """Recommend a form, with the reason; `rate` are images a second of training, if known."""
    if facts.decode is None:
        return ["these are arrays already: nothing is decoded"]
    shards, cache, arrays = forms(facts)
    if rate is not None and shards.rate >= _SPARE * rate:
        cores = max(1, round(_SPARE * rate * facts.decode + 0.5))
        return [
            f"shards: {cores} of {facts.cores} cores decode {rate:,.0f} images/s, with a fifth to "
            "spare"
        ]
    lines = []
    if rate is None:
        least = shards.rate / _SPARE
        lines.append(f"where training takes less than {least:,.0f} images/s, shards keep up")
    if epochs < 2:
        return [
            *lines,
            f"in a single epoch every image is decoded once, whatever the form: {shards.rate:,.0f} "
            "images/s; more cores, a smaller size, or scaled_decode=True",
        ]
    fitting = []
    if cache.memory <= FITS * facts.memory:
        fitting.append(
            f"a cache of {readable_size(cache.memory)} in memory: "
            f"CacheSpec(memory='{megabytes(cache.memory)}'), from the second epoch on"
        )
    if arrays.disk <= facts.disk:
        storage = "which the page cache then holds"
        if arrays.disk > FITS * facts.memory:
            needs = "" if rate is None else f", {readable_size(round(rate * arrays.read))}/s of it"
            storage = f"read from storage{needs}"
        fitting.append(
            f"arrays of {readable_size(arrays.disk)}, {storage}: for many runs, and for ranks that "
            f"share a machine; {arrays.before:,.0f} s to convert"
        )
    return lines + (
        fitting
        or [
            f"neither a cache nor arrays fit ({readable_size(cache.memory)} of "
            f"{readable_size(facts.memory)} memory, {readable_size(arrays.disk)} of "
            f"{readable_size(facts.disk)} disk): keep a part, CacheSpec(memory=..., disk=...), or "
            "take a smaller size"
        ]
    )


def _time_decoding(dataset: Dataset, spec: ImageSpec) -> float:
    """Measure the seconds of a core to decode and resize an image from memory."""
    columns, transform = dataset.columns, make_transform(spec)
    images: list[memoryview] = []
    with closing(open_store(dataset)) as store:
        for sample in np.unique(np.linspace(0, len(dataset) - 1, _TRIED).astype(int)).tolist():
            members = [m for m in columns.members(sample) if is_stored_image(m.ext)]
            images += store.read(columns.shard(sample), members)
    times, until = [], time.perf_counter() + _SECONDS
    with alone():
        for data in itertools.cycle(images):
            times.append(sum(time_image(transform, data)))
            if time.perf_counter() > until:
                break
    done = [seconds for seconds in times if seconds]
    if not done:
        raise PlanError(
            f"{dataset.folder}: none of {_TRIED} samples has an image to decode; `datapipe verify` "
            "lists damaged ones"
        )
    return sum(done) / len(done)


def _time_copying(size: int) -> float:
    """Measure the seconds of a core to copy `size` bytes that no cache holds."""
    count = max(2, _COPIED // size)
    source, target = np.ones((count, size), np.uint8), np.ones((count, size), np.uint8)
    started = time.thread_time()
    np.copyto(target, source)
    return (time.thread_time() - started) / count
