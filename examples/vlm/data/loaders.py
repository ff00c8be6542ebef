"""Loaders of a run: for training, for a look at samples in order, and for data on the device."""

import argparse
from typing import Any

import datapipe
from datapipe import CacheSpec, ImageSpec, TextSpec
from examples.vlm.data.resident import Resident
from examples.vlm.data.texts import Vocabulary
from examples.vlm.measure.memory import bytes_of
from examples.vlm.model.config import MODELS
from examples.vlm.parallel.ranks import Ranks


def make_loader(
    options: argparse.Namespace, vocabulary: Vocabulary, ranks: Ranks, **more: Any
) -> datapipe.Loader:
    """Batches on the device, without end unless `more` options of the loader say otherwise."""
    vision = MODELS[options.model].vision
    if options.native:
        image = ImageSpec(
            resize="native",
            patch=vision.patch,
            merge=vision.merge,
            min_pixels=vision.cell**2,
            max_pixels=vision.max_patches * vision.patch**2,
            normalize="siglip",
        )
    else:
        image = ImageSpec(size=vision.image_size, normalize="siglip")
    text = TextSpec(
        tokenizer=vocabulary.tokenizer,
        template=options.template,
        image_tokens="native" if options.native else vision.image_tokens,
        image_token=vocabulary.image,
        max_length=options.max_length,
        overlong=options.overlong,
    )
    if options.accumulate_samples and ranks.world_size > 1 and (options.pack or options.buckets):
        raise ValueError(
            "--accumulate-samples: packs and buckets of several ranks have different numbers of "
            "samples, and only their labels are known to all; give --accumulate-tokens"
        )
    pack = None
    if options.static_shapes and options.pack is None:
        raise ValueError("--static-shapes works with packs only; give --pack")
    if options.pack is not None:
        pack = datapipe.PackSpec(
            options.pack,
            multiple_of=options.multiple_of or options.context,
            max_images=options.max_images,
            static_shapes=options.static_shapes,
        )
    sizes = {"batch_size": options.batch_size, "buckets": options.buckets}
    if options.pack is None and options.batch_size is None:
        sizes["batch_size"] = 8
    # With a device the loader brings batches there ahead of the loop.
    device = ranks.device if ranks.device.type == "cuda" and options.ahead else None
    cache = None
    if options.cache or options.disk_cache or options.device_cache:
        cache = CacheSpec(
            memory=options.cache, disk=options.disk_cache, device=options.device_cache
        )
    return datapipe.make_loader(
        options.shards,
        image=image,
        text=text,
        pack=pack,
        **sizes,
        seed=options.seed,
        device=ranks.device if options.device_cache else device,
        cache=cache,
        num_workers=options.num_workers,
        workers=options.workers,
        prefetch_factor=options.prefetch,
        on_error=options.on_error,
        **{
            "epochs": None,
            "run": datapipe.RunSpec(global_batch_size=options.global_batch_size),
            "meta": ("key", "num_items_in_batch", "dataset", "valid"),
            "mesh": ranks.mesh,
        }
        | more,
    )


def ordered_loader(
    options: argparse.Namespace,
    vocabulary: Vocabulary,
    ranks: Ranks,
    shards: str,
    *,
    samples: int = 0,
    **more: Any,
) -> datapipe.Loader:
    """Return one epoch of a dataset in its order, kept nowhere.

    With `samples`, every rank has padded batches of so many, in place of packs.
    """
    changed: dict[str, Any] = {"shards": shards}
    changed |= dict.fromkeys(("global_batch_size", "cache", "disk_cache", "device_cache"))
    if samples:
        longest = min(filter(None, (options.max_length, options.pack)), default=None)
        changed |= dict.fromkeys(("pack", "buckets", "multiple_of"))
        changed |= {"batch_size": samples, "max_length": longest}
        changed |= {"static_shapes": False, "context": 1}
        more = {"mesh": None, "rank": 0, "world_size": 1, "meta": ("key", "valid")} | more
    other = argparse.Namespace(**vars(options) | changed)
    return make_loader(other, vocabulary, ranks, **{"epochs": 1, "shuffle": False} | more)


def make_resident(
    options: argparse.Namespace, vocabulary: Vocabulary, ranks: Ranks, loader: datapipe.Loader
) -> Resident:
    names = ("cache", "disk_cache", "device_cache", "global_batch_size", "multiple_of")
    alone = dict.fromkeys(names) | {"static_shapes": False, "context": 1}
    for name, value in alone.items():
        if getattr(options, name) != value:
            raise ValueError(
                f"--resident takes no --{name.replace('_', '-')}: its batches are gathered on the "
                "device from all samples; leave one of them out"
            )
    if options.on_error != "raise":
        raise ValueError("--resident reads all samples at the start; --on-error must be raise")
    meta = ("key", "dataset", "sample", "valid", "images_per_sample")
    every = ordered_loader(options, vocabulary, ranks, options.shards, samples=64, meta=meta)
    with every:
        packed, limit = options.pack is not None, bytes_of(options.resident)
        return Resident(loader, every, ranks.device, packed=packed, limit=limit)
