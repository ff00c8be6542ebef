"""`make_loader`: a packed dataset as an iterable of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

from datapipe.cache.spec import CacheSpec
from datapipe.declared import Count, Word, checked
from datapipe.decode.dali.options import DaliOptions
from datapipe.decode.spec import ImageSpec
from datapipe.errors import PlanError
from datapipe.loader.batch.user_transform import UserTransform
from datapipe.loader.distributed import check_agreement, peer_groups, resolve_ranks
from datapipe.loader.factories import make_context
from datapipe.loader.iterator import short_interrupts
from datapipe.loader.loader import Loader
from datapipe.loader.peers import Peers
from datapipe.loader.schedule.mixture.opened import OpenedMixture
from datapipe.loader.schedule.options import DEFAULT_PREFETCH, LoaderOptions, OnError, resolve_plan
from datapipe.loader.schedule.plan_view import parse_exclude
from datapipe.loader.schedule.run_schedule import Schedule
from datapipe.loader.specs import (
    BatchSpec,
    DeviceSpec,
    PackSpec,
    RemoteSpec,
    RunSpec,
    Workers,
    WorkerSpec,
    as_spec,
)
from datapipe.loader.tuned_settings import given_or, tuning_key, with_tuned
from datapipe.loader.work import DecoderName, SampleWork, choose_path, default_count, work_on
from datapipe.loader.workers.ray_steps import cluster_workers
from datapipe.mixture.given import image_of, mixture_of, text_of
from datapipe.mixture.spec import Mixture
from datapipe.models.families import Model, specs_for
from datapipe.plan.options import Shuffle
from datapipe.quantities import take_bytes
from datapipe.text.spec import TextSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


_DEFAULT_IMAGE = ImageSpec()


@short_interrupts
@checked(PlanError)
def make_loader(
    path: str | PathLike[str] | Mixture | Mapping[Any, Any] | Sequence[str | PathLike[str]],
    *,
    model: Model | None = None,
    batch_size: int | BatchSpec | None = None,
    image: ImageSpec | None = _DEFAULT_IMAGE,
    transform: UserTransform | None = None,
    text: TextSpec | None = None,
    pack: Count | PackSpec | None = None,
    max_tokens: int | None = None,
    buckets: int | Sequence[int] | None = None,
    where: str | None = None,
    shuffle: Shuffle = True,
    shards_mixed: int = 16,
    seed: int = 0,
    group: int | None = None,
    drop_last: bool = False,
    exclude: Any = (),
    epochs: int | None = 1,
    run: RunSpec | None = None,
    meta: str | Sequence[str] = (),
    decoder: DecoderName | DaliOptions = "auto",
    device: Word | int | torch.device | DeviceSpec | None = None,
    verify: bool = True,
    num_workers: int | Literal["auto"] | None = None,
    workers: Workers | WorkerSpec = "threads",
    prefetch_factor: int | Literal["auto"] | None = DEFAULT_PREFETCH,
    on_error: OnError = "raise",
    rank: int | None = None,
    world_size: int | None = None,
    mesh: DeviceMesh | None = None,
    cache: int | str | CacheSpec | None = None,
    remote: RemoteSpec | None = None,
) -> Loader:
    """Open a packed dataset, or a folder of WebDataset tars, as an iterable of batches.

    Every batch is a dict. Without `text` it has `pixel_values`, `images_per_sample`, `text`, `key`
    and `valid`. With it, a batch has the arguments of a Hugging Face model: `pixel_values`,
    `input_ids`, `labels`, and `attention_mask`, or for packs `position_ids`, `cu_seq_lens_q`,
    `cu_seq_lens_k`, `max_length_q` and `max_length_k`. Packs for a `model` have `use_cache`, which
    is False: with a cache, models of Hugging Face let the samples of a pack see each other.
    docs/loading.md has shapes and dtypes.

    Args:
        path: folder that `datapipe pack` or `datapipe convert` wrote, or that holds `.tar` shards
            in WebDataset format, or a list of these ("data/train-{000..099}.tar"); they are indexed
            once, on first use. Or the URL of a dataset that `datapipe pack` wrote: http(s)://,
            s3://, gs://, hf://; its index is fetched once. Or a mixture of several: a `Mixture`, a
            dict such as `{"captions/": 0.7, "chats/": 0.3}`, or a `.yaml` or `.json` file; a list
            of datasets is the mixture that draws each sample of all of them once an epoch.
        model: folder of the model that is trained, as `save_pretrained` writes it, or its processor
            of transformers: images and texts become what its processor makes of them
            (docs/models.md). `image` and `text` override that; `datapipe.specs_for` returns the
            specs of the model, to change them.
        batch_size: samples a rank takes in a step; with `pack` packs, by default 1; with
            `max_tokens` the most samples of a batch. Or a `BatchSpec`, which also has constant
            shapes of padded batches.
        image: size and normalisation of images; None leaves them out. Images of arrays are only
            normalised, by default not at all.
        transform: a function of a sample (a dict with `images`, uint8 [h, w, 3] each, `text`, `key`
            and `record`) and a `numpy.random.Generator` that is the same for the sample in every
            worker; it returns the sample with other images, or text if there is no `text=`.
        text: tokenizer and template; tokens are counted once for a dataset, on first use.
        pack: tokens of a pack, or a `PackSpec`. Samples are put together to fill a pack, without
            attention between them.
        max_tokens: tokens of a padded batch, padding included.
        buckets: length buckets: samples of a batch have similar numbers of tokens. How many, or
            their boundaries in tokens.
        where: condition that selects samples, such as `"width >= 336 and text_tokens < 4096"`.
        shuffle: a new global order every epoch; "shards" mixes a few shards at a time, for remote
            storage; False keeps the order of the dataset.
        shards_mixed: number of shards that are mixed at once with `shuffle="shards"`.
        seed: seed of the order, which follows from epoch, seed, dataset and plan; workers and ranks
            do not change it.
        group: number of consecutive units of equal cost, so that the ranks of a step have equal
            work. By default 64, or a step of the first launch if that has more, for packs and
            batches that are shuffled. Launches with equal groups have one order.
        drop_last: leave out the last step if it has too few units for all ranks. Otherwise some of
            them are repeated, marked as not valid and with labels -100.
        exclude: samples (keys or numbers; in a mixture "dataset:key" for a key that several
            datasets have) and steps (as `loader.plan.step` returns them) to leave out. Order and
            state stay as they are: a sample becomes an empty slot, a step is skipped.
        epochs: epochs of a run, which is one iteration over the loader; None for no end.
        run: end of a run in steps or tokens, and accumulation of steps: a `RunSpec`.
        meta: further keys of each batch: "key", "source", "dataset" (its name), "sample" (its
            number), "text", "valid", "images_per_sample", "num_items_in_batch" (labels of the step
            over all ranks), and fields of the samples' JSON members, as lists.
        decoder: "cpu" for the CPU kernels, "dali" for NVIDIA DALI, on a GPU if `device` is one;
            "auto" is DALI on a GPU if it is installed and supports the options, else "cpu". A
            `DaliOptions` is "dali" with its options.
        device: device to which batches are copied, one ahead of the training loop, such as "cuda",
            or a `DeviceSpec`. Images cross the bus as uint8 and are normalised there. None leaves
            batches in the CPU's memory.
        verify: compare every member with the checksum from packing or indexing, which also finds
            damage that can be decoded. It costs about 2 µs for 80 KB.
        num_workers: threads that read and decode. 0 works in the caller's thread, without
            prefetch. None takes this rank's share of the machine's CPUs, but at most 8 threads to
            decode for a GPU. "auto" takes the number that `datapipe tune-workers` found for this
            machine, dataset and options; without one it is None.
        workers: "threads", or "processes" for a transform or tokenizer in Python that holds the
            interpreter's lock, or "ray" for other machines' CPUs; or a `WorkerSpec`. Batches are
            the same.
        prefetch_factor: steps that are prepared ahead; with worker processes, where each makes
            whole batches, the steps that each of them prepares ahead. None is the default; "auto"
            as for `num_workers`.
        on_error: "raise", or "skip" to leave a sample that cannot be decoded as an empty slot
            (zeros, labels -100, not valid); order and shapes do not change. Samples whose text
            cannot be used are then left out of the plan.
        rank, world_size: share of each step; None takes them from `mesh`, `torch.distributed` or
            torchrun's environment. Ranks of a process group then check that they agree on dataset
            and plan, so all of them must make the loader.
        mesh: a `DeviceMesh`; ranks along its data-parallel axes take different shares, others the
            same.
        cache: caches of samples in memory or on a disk, or of the plan in a folder: a `CacheSpec`.
            "8GB" is `CacheSpec(memory="8GB")`. None reads and decodes each time.
        remote: options of reading a dataset behind a URL: a `RemoteSpec`.

    Raises:
        PlanError: options are impossible or contradict each other.
        IndexMismatch: there is no finished dataset at `path`, or its shards changed.

    Examples:
        >>> text = datapipe.TextSpec(
        ...     tokenizer="tokenizer.json", template="caption", image_tokens=16
        ... )
        >>> for batch in datapipe.make_loader("shards/", batch_size=4, text=text):
        ...     print(tuple(batch["pixel_values"].shape), tuple(batch["input_ids"].shape))
        (4, 3, 336, 336) (4, 19)
        (4, 3, 336, 336) (4, 19)
    """
    mixture = mixture_of(path)
    image_given = image is not _DEFAULT_IMAGE or model is not None
    if model is not None:
        of_model, text_of_model = specs_for(model)
        image = of_model if image is _DEFAULT_IMAGE else image
        text = text or text_of_model
    image = image_of(mixture, image, given=image_given)
    packs = None if pack is None else as_spec(PackSpec, pack)
    batch, run = as_spec(BatchSpec, batch_size), as_spec(RunSpec, run)
    remote = as_spec(RemoteSpec, remote)
    if cache is not None:
        cache = as_spec(CacheSpec, cache)
    meta = (meta,) if isinstance(meta, str) else tuple(meta)
    ranks_found = rank is None
    rank, world_size = resolve_ranks(rank, world_size, mesh)
    work = SampleWork(
        image=image,
        text=text_of(mixture, text, image),
        transform=transform,
        where=where,
        decoder=decoder,
        device=as_spec(DeviceSpec, device),
        cache=cache if cache is not None and cache.keeps_samples else None,
        static_shapes=packs if packs is not None and packs.static_shapes else None,
        batch=batch,
        for_model=model is not None,
    )
    work.check(meta, train_tokens=run.train_tokens is not None)
    plan, units_per_rank = resolve_plan(
        work.text,
        packs,
        batch,
        max_tokens=max_tokens,
        buckets=buckets,
        shuffle=shuffle,
        shards_mixed=shards_mixed,
        seed=seed,
        group=group,
        drop_last=drop_last,
        world_size=world_size,
    )
    worker_spec = as_spec(WorkerSpec, workers)
    on_cluster = worker_spec.kind == "ray" and num_workers != 0
    default = cluster_workers(world_size) if on_cluster else default_count(work, worker_spec.kind)
    options = LoaderOptions(
        units_per_rank=units_per_rank,
        meta=meta,
        verify=verify,
        num_workers=given_or(num_workers, default),
        prefetch_factor=given_or(prefetch_factor, DEFAULT_PREFETCH),
        on_error=on_error,
        rank=rank,
        world_size=world_size,
        read_ahead=take_bytes(remote.read_ahead),
        epochs=epochs,
        batch=batch,
        run=run,
        workers=worker_spec,
    )
    opened = OpenedMixture(mixture, remote.folder_options(), image)
    dataset = opened.dataset
    own_images = [entry.image for entry in mixture.datasets]
    work = work_on(dataset, work, own_images, image_given=image_given)
    find_key = partial(tuning_key, dataset.fingerprint, work.described(plan, options))
    options = with_tuned(
        options, find_key, num_workers=num_workers, prefetch_factor=prefetch_factor
    )
    peers = peer_groups(mesh) if worker_spec.decode_once else []
    loads = not any(map(dist.get_rank, peers))
    if not loads:
        work = replace(work, cache=None, decoder="cpu")
    images = choose_path(work, options)
    origin = opened.origin(text, where, plan, options, images.transform)
    exclusion, seen_in = parse_exclude(exclude, origin)
    schedule = Schedule(
        fingerprint=dataset.fingerprint,
        origin=origin,
        plan=plan,
        options=options,
        exclusion=exclusion,
        seen_in=seen_in,
        group_given=group is not None,
        plan_cache=None if cache is None or cache.plan is None else Path(cache.plan),
    )
    schedule.check()
    if ranks_found:
        check_agreement(schedule.digest(), mesh)
    context, device_cache = make_context(dataset, schedule, images)
    return Loader(
        dataset,
        schedule,
        context=context,
        prefetcher=images.prefetcher,
        device_cache=device_cache,
        peers=Peers(peers, images.device, pin=context.pinned) if peers else None,
        ranks_found=ranks_found and mesh is None,
        find_tuning_key=find_key,
    )
