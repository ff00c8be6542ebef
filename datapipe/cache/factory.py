"""Factories for the tiers of a loader's cache."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from datapipe.cache.device import DeviceRows
from datapipe.cache.entries import RowCounts
from datapipe.cache.layout import EntryLayout
from datapipe.cache.memory import FixedEntries
from datapipe.cache.next_use_planner import MOST_SAMPLES
from datapipe.cache.sample_cache import KEY, SampleCache
from datapipe.cache.spec import CacheSpec
from datapipe.decode.array_spec import unnormalized
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import ImageTransform, make_transform
from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset
from datapipe.progress import readable_size

logger = logging.getLogger(__name__)


def kept_transform(
    spec: CacheSpec, image: ImageSpec | None, *, decoder: bool, transform: bool
) -> ImageTransform | None:
    """Return the transform of images that a cache keeps decoded; None if it keeps encoded ones.

    Args:
        decoder: whether DALI decodes.
        transform: whether there is a user's transform.

    Raises:
        PlanError: decoded images were asked for, and the loader has none that could be kept.
    """
    if spec.keep == "encoded" or image is None:
        return None
    reason = None
    if transform:
        reason = "transform= may be random, and takes images before they are fitted"
    elif image.random_crop is not None:
        reason = "random_crop takes another part of an image each time"
    elif decoder:
        reason = "decoder='dali' decodes, fits and normalises at once"
    if reason is None:
        return make_transform(replace(unnormalized(image), flip=0.0, mrope=False))
    if spec.keep == "decoded":
        raise PlanError(f"cache keep='decoded': {reason}; give keep='encoded' or 'auto'")
    return None


def kept_together(
    spec: CacheSpec, kept: Sequence[ImageTransform | None], names: Sequence[str]
) -> ImageTransform | None:
    """Return the transform of images of several datasets in one cache; None for encoded ones.

    Args:
        kept: `kept_transform` of each dataset.
        names: of the datasets, for the message.

    Raises:
        PlanError: decoded images were asked for, and those of two datasets are kept differently.
    """
    first = kept[0]
    for transform, name in zip(kept[1:], names[1:], strict=True):
        if first is not None and transform is not None and transform.spec == first.spec:
            continue
        if spec.keep == "decoded":
            raise PlanError(
                f"cache keep='decoded' keeps images of one form, and the ImageSpecs of {names[0]} "
                f"and {name} differ in more than flip, mean and std; give keep='encoded' or 'auto'"
            )
        return None
    return first


def make_cache(
    spec: CacheSpec,
    dataset: Dataset,
    *,
    images: bool,
    kept: ImageTransform | None,
    world_size: int,
    processes: bool,
    device: DeviceRows | None,
) -> SampleCache:
    """Make the cache of a loader, and log what it keeps.

    `device` are the rows of `make_device_rows`, where there is such a tier.

    Raises:
        PlanError: worker processes cannot keep to its policy.
    """
    if processes and spec.policy in ("next-use", "lru"):
        raise PlanError(
            f"cache policy={spec.policy!r}: worker processes share a fixed part; give "
            "policy='pin', or workers='threads'"
        )
    # One rank that reads all of a permutation can hit no more than the part that fits. Several
    # ranks that deal it anew each epoch use a sample at times that only the plan knows.
    policy = spec.policy
    if policy == "auto":
        several = world_size > 1 and not processes and len(dataset) <= MOST_SAMPLES
        policy = "next-use" if several else "pin"
    cache = SampleCache(
        spec,
        dataset,
        images=images,
        kept=kept,
        policy=policy,
        device=None if device is None else device.layout,
        world_size=world_size,
    )
    memory = cache.memory
    if isinstance(memory, FixedEntries) and not memory.layout.kept and device is None:
        logger.warning(
            "the cache keeps nothing in memory: no sample of %s fits into %s bytes; give more, "
            "such as '8GB'",
            *(dataset.title, f"{spec.memory:,}"),
        )
    parts = ([] if device is None else [_describe(device, len(dataset))]) + cache.describe()
    logger.info("the cache keeps %s", "; ".join(parts))
    return cache


def make_device_rows(
    spec: CacheSpec,
    dataset: Dataset,
    *,
    image: ImageSpec | None,
    kept: ImageTransform | None,
    device: torch.device | None,
) -> DeviceRows | None:
    """Make the rows of the device tier of a loader; None if it has none.

    Args:
        device: that batches go to; None for none.

    Raises:
        PlanError: the images of this loader cannot be kept on a device.
    """
    if spec.device is None:
        return None
    if device is None:
        raise PlanError("cache device=... is of the device that batches go to; give device= too")
    if kept is None or image is None:
        raise PlanError(
            "cache device=... keeps decoded images, which this loader has none of: image=None, "
            "keep='encoded', transform=, random_crop and decoder='dali' have none"
        )
    if kept.padded:
        raise PlanError(
            f"cache device=... keeps rows of one shape, and resize={image.resize!r} pads them to "
            "the largest of a batch; give CacheSpec(memory=...)"
        )
    nothing = np.zeros(0, np.int64)
    shape = kept.row_shape(nothing, nothing)
    layout = EntryLayout(
        len(dataset),
        RowCounts(dataset.columns, kept),
        int(spec.device) // torch.Size(shape).numel(),
        KEY,
        alignment=1,
    )
    return DeviceRows(layout, shape, device)


def _describe(rows: DeviceRows, samples: int) -> str:
    layout = rows.layout
    size = readable_size(layout.bytes * torch.Size(rows.shape).numel())
    share = f"{layout.kept / max(samples, 1):.1%}"
    kept = f"{layout.kept:,} of {samples:,} samples ({size}) decoded on {rows.device}"
    return f"{kept}, which will serve {share} of reads"
