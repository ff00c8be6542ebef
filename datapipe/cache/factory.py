"""Factories for the tiers of a loader's cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from datapipe.cache.disk import disk_tier
from datapipe.cache.entries import EntrySizes, image_rows
from datapipe.cache.layout import EntryLayout
from datapipe.cache.memory import SharedMemoryTier, memory_tier
from datapipe.cache.next_use import MOST_SAMPLES, NextUse
from datapipe.cache.sample_cache import SampleCache, expect
from datapipe.cache.spec import CacheSpec
from datapipe.cache.tier import Policy, Tier, TierRequest
from datapipe.decode.array_spec import unnormalized
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import ImageTransform, make_transform
from datapipe.errors import PlanError
from datapipe.index.dataset import Dataset

logger = logging.getLogger(__name__)

TIERS: tuple[Callable[[TierRequest], Tier | None], ...] = (memory_tier, disk_tier)
"""Factories of the tiers on the host, fastest first; each returns None if it is not asked for."""

POLICIES: dict[str, Callable[[int], Policy]] = {"next-use": NextUse}
"""Eviction policies, by budget; under other names a fixed part is kept."""

_NO_LIMIT = 1 << 62


class DeviceRows(NamedTuple):
    """Rows of images that are kept on a device, uint8 of this shape each."""

    layout: EntryLayout  # whose sizes are numbers of rows
    shape: tuple[int, ...]
    device: torch.device


def kept_transform(
    spec: CacheSpec, images: Mapping[str, ImageSpec], *, decoder: bool, transform: bool
) -> ImageTransform | None:
    """Return the transform of images that a cache keeps decoded; None if it keeps encoded ones.

    `images` are different specs by the name of a dataset that has each. `decoder` is true for DALI,
    `transform` for a user's transform. `PlanError` if decoded images were asked for, and none can
    be kept.
    """
    if spec.keep == "encoded" or not images:
        return None
    kept = {
        name: replace(unnormalized(image), flip=0.0, mrope=False, max_frames=None)
        for name, image in images.items()
    }
    name, first = next(iter(kept.items()))
    differing = next((other for other, made in kept.items() if made != first), None)
    if transform:
        reason = "transform= may be random, and takes images before they are fitted"
    elif any(image.random_crop is not None for image in images.values()):
        reason = "random_crop takes a different part of an image each time"
    elif any(image.video is not None for image in images.values()):
        reason = "frames of videos are parts of patches"
    elif any(image.pad_several is not None for image in images.values()):
        reason = "pad_several makes other tiles of images that are not alone in their sample"
    elif any(image.resize == "naflex" for image in images.values()):
        reason = "rows of resize='naflex' are padded after they are normalised"
    elif decoder:
        reason = "decoder='dali' decodes, fits and normalises at once"
    elif differing is not None:
        reason = (
            f"entries have images of one form, and the ImageSpecs of {name} and {differing} "
            "differ in more than flip, mean and std"
        )
    else:
        return make_transform(first)
    if spec.keep == "decoded":
        raise PlanError(f"cache keep='decoded': {reason}; give keep='encoded' or 'auto'")
    return None


def make_cache(
    spec: CacheSpec,
    dataset: Dataset,
    *,
    image: ImageSpec | None,
    kept: ImageTransform | None,
    world_size: int,
    processes: bool,
    device: torch.device | None,
) -> tuple[SampleCache, DeviceRows | None]:
    """Make the cache of a loader, and its rows on the device that batches go to, if asked for.

    Log what is kept. Raise `PlanError` if the policy is impossible, or the device cannot keep
    images.
    """
    rows = None
    if spec.device is not None:
        rows = _device_rows(int(spec.device), dataset, image, kept, device)
    if processes and spec.policy in POLICIES:
        raise PlanError(
            f"cache policy={spec.policy!r}: worker processes share a fixed part; give "
            "policy='pin', or workers='threads'"
        )
    # One rank that reads all of a permutation can hit no more than the part that fits. Several
    # ranks that deal it again each epoch use a sample at times that only the plan knows.
    policy: str = spec.policy
    if policy == "auto":
        several = world_size > 1 and not processes and len(dataset) <= MOST_SAMPLES
        policy = "next-use" if several else "pin"
    sizes = EntrySizes(dataset.columns, kept, images=image is not None)
    request = TierRequest(
        spec=spec,
        dataset=dataset,
        sizes=sizes,
        policy=POLICIES.get(policy),
        ranks=world_size,
        covered=0 if rows is None else rows.layout.kept,
    )
    tiers: list[Tier] = []
    for make in TIERS:
        tier = make(request)
        if tier is not None:
            tiers.append(tier)
            request = replace(request, covered=tier.covered)
    texts = None
    if rows is not None:
        text_sizes = EntrySizes(dataset.columns, None, images=False)
        layout = EntryLayout(len(dataset), text_sizes, _NO_LIMIT, stop=rows.layout.kept)
        texts = SampleCache([SharedMemoryTier(layout)], samples=len(dataset), sizes=text_sizes)
    cache = SampleCache(tiers, samples=len(dataset), sizes=sizes, texts=texts)
    parts = cache.describe()
    if rows is not None:
        unit = torch.Size(rows.shape).numel()
        held = rows.layout.describe("decoded", unit=unit)
        parts.insert(0, expect(f"{held} on {rows.device}", rows.layout.share))
    logger.info("the cache keeps %s", "; ".join(parts))
    return cache, rows


def _device_rows(
    room: int,
    dataset: Dataset,
    image: ImageSpec | None,
    kept: ImageTransform | None,
    device: torch.device | None,
) -> DeviceRows:
    if device is None:
        raise PlanError(
            "cache device=... caches on the device that batches are sent to; give device= too"
        )
    if kept is None or image is None:
        raise PlanError(
            "cache device=... keeps decoded images, but this loader has none: image=None, "
            "keep='encoded', transform=, random_crop, pad_several, 'naflex', videos and DALI have "
            "none"
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
        partial(image_rows, dataset.columns, kept),
        room // torch.Size(shape).numel(),
        alignment=1,
    )
    return DeviceRows(layout, shape, device)
