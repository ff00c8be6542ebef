"""The largest batch that fits, found by real steps of the optimizer.

    python -m examples.vlm.train SHARDS --batch-size 8 --find-batch-size
    python -m examples.vlm.train SHARDS --pack 2048 --find-batch-size 8GB --device cpu

Every size is tried with the shapes of the plan's heaviest batches: that of most tokens, and that
of most images. Their content is random, since memory depends on shapes alone; images of native size
are as large as the loader makes them.
"""

import gc
from collections.abc import Callable
from itertools import islice, pairwise
from typing import NamedTuple

import torch

import datapipe
from examples.vlm.data.batches import LABELS, Batch, join_texts
from examples.vlm.loop import Run, train_step
from examples.vlm.measure.memory import memory_report, peak_of
from examples.vlm.model.config import VisionConfig

MARGIN = 0.1  # share of the limit that stays free, for fragmentation and the unforeseen
STEPS = 10_000  # of the plan, in which the heaviest batches are searched

# Errors of the CPU's allocator, of oneDNN, which gives no reason, and of CUDA outside of torch's.
_OUT_OF_MEMORY = (
    *("DefaultCPUAllocator", "could not create a primitive", "could not create a memory"),
    *("CUDA error: out of memory", "Triton Error [CUDA]: out of memory"),
    *("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
)


class Shape(NamedTuple):
    """Sizes of a batch: tokens of each sample (of each row, if padded), and images of all."""

    lengths: tuple[int, ...]
    images: int
    packed: bool


def bisect(fits: Callable[[int], bool], start: int, *, unit: int = 1) -> list[tuple[int, bool]]:
    """Double until a size does not fit, or halve until one does; then bisect between the two.

    Return all sizes that were tried, and whether they fit; of these, the largest is the answer.
    Sizes are multiples of `unit`, but for `start`.
    """
    tried: list[tuple[int, bool]] = []

    def fit(size: int) -> bool:
        tried.append((size, fits(size)))
        return tried[-1][1]

    low, high = 0, start
    while fit(high):
        low, high = high, 2 * high
    while not low and high >= 2 * unit:
        smaller = high // 2 // unit * unit
        low, high = (smaller, high) if fit(smaller) else (0, smaller)
    while low and high - low > unit:
        middle = low + max(1, (high - low) // 2 // unit) * unit
        low, high = (middle, high) if fit(middle) else (low, middle)
    return tried


def find_batch_size(
    run: Run,
    loader_of: Callable[[int], datapipe.Loader],
    start: int,
    *,
    packed: bool,
    native: bool = False,
    limit: int | None = None,
    log: Callable[[str], None] = print,
) -> int:
    """Return the largest number of samples of a batch, or tokens of a pack, that fits.

    Args:
        run: its model learns from random batches; its loader is not read.
        loader_of: makes the loader with a size; its plan is read, and no sample.
        packed, native: whether sizes are tokens of packs, and images differ in size.
        limit: bytes, of which `MARGIN` must stay free; None for all memory of the GPU.
    """
    device = run.ranks.device
    if run.ranks.world_size > 1:
        raise ValueError(
            f"{run.ranks.world_size} ranks: find the batch size on one, its memory is what counts"
        )
    if limit is None and device.type != "cuda":
        raise ValueError(
            "the CPU's memory is shared with all other processes; give a limit, such as "
            "--find-batch-size 8GB"
        )
    limit = limit or torch.cuda.get_device_properties(device).total_memory
    most = int(limit * (1 - MARGIN))
    what = "pack of {:,} tokens" if packed else "batch of {:,}"

    def fits(size: int) -> bool:
        shapes = heaviest(loader_of(size), size, packed)
        if not shapes:
            log(f"{what.format(size)}: the dataset has not as much")
            return False
        peaks = [peak_of_step(run, shape, native=native) for shape in shapes]
        peak = None if None in peaks else max(each for each in peaks if each is not None)
        good = peak is not None and peak <= most
        shown = ", ".join(
            f"{sum(shape.lengths):,} tokens with {shape.images:,} images" for shape in shapes
        )
        found = "out of memory" if peak is None else f"{peak / 1e6:,.0f} of {most / 1e6:,.0f} MB"
        log(f"{what.format(size)} ({shown}): {found}: {'fits' if good else 'does not fit'}")
        return good

    run.model.train()
    # States of the optimizer come with its first step, and count in every later one.
    if peak_of_step(run, Shape((8,), 0, packed), native=native) is None:
        raise ValueError(f"not even a step of 8 tokens fits into {limit:,} bytes")
    tried = bisect(fits, start, unit=128 if packed and start >= 256 else 1)
    fitting = [size for size, good in tried if good]
    if not fitting:
        raise ValueError(
            f"no {what.format(tried[-1][0])} fits into {limit:,} bytes less {MARGIN:.0%}; give "
            "--recompute, --precision bf16, --lora or a smaller model"
        )
    log(f"{what.format(max(fitting))} is the largest that fits, with {MARGIN:.0%} to spare")
    return max(fitting)


def heaviest(loader: datapipe.Loader, size: int, packed: bool) -> list[Shape]:
    """Return the shapes of the batches with most tokens and with most images; none of too few."""
    found: list[Shape] = []
    for step in islice(loader.plan.steps(), STEPS):
        sizes, offsets = step.units.sizes, step.units.offsets.tolist()
        assert sizes is not None, "the loader has text="
        tokens, images = sizes.tokens.tolist(), sizes.images.tolist()
        if packed:
            for begin, end in pairwise(offsets):
                found.append(Shape(tuple(tokens[begin:end]), sum(images[begin:end]), True))
        else:
            found.append(Shape((max(tokens),) * len(tokens), sum(images), False))
        by_tokens = max(found, key=lambda shape: (sum(shape.lengths), shape.images))
        by_images = max(found, key=lambda shape: (shape.images, sum(shape.lengths)))
        found = [by_tokens] if by_tokens == by_images else [by_tokens, by_images]
    largest = max((sum(s.lengths) if packed else len(s.lengths) for s in found), default=0)
    return found if largest > size / 2 else []


def make_batch(shape: Shape, vision: VisionConfig, image_id: int, *, native: bool) -> Batch:
    word = 1 if image_id == 0 else 0
    ids = [torch.full((length,), word) for length in shape.lengths]
    batch = join_texts(ids, ids, packed=shape.packed)
    batch |= {"key": [""] * len(ids), LABELS: sum(shape.lengths)}
    if shape.images and native:
        cells = vision.max_patches // vision.merge**2
        patches = cells * vision.merge**2
        grid = torch.tensor([[1, vision.merge, cells * vision.merge]])
        batch["pixel_values"] = torch.randn(shape.images * patches, 3 * vision.patch**2)
        batch["image_grid_thw"] = grid.repeat(shape.images, 1)
    elif shape.images:
        batch["pixel_values"] = torch.randn(shape.images, 3, vision.image_size, vision.image_size)
    return batch


def peak_of_step(run: Run, shape: Shape, *, native: bool) -> int | None:
    """Make a step of the optimizer; bytes in use at a time at most, None if there are too few."""
    device = run.ranks.device
    batches = 2 if run.techniques.keeps_gradients else 1
    batch = make_batch(shape, run.model.config.vision, run.model.image_id, native=native)

    def step() -> None:
        train_step(run, [batch] * batches)

    run.optimizer.zero_grad(set_to_none=True)
    try:
        if device.type == "cuda":
            before = torch.cuda.memory_allocated(device)
            return before + peak_of(step, device)
        given = sum(value.nbytes for value in batch.values() if isinstance(value, torch.Tensor))
        peak = peak_of(step, device) + given
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        return None
    finally:
        run.optimizer.zero_grad(set_to_none=True)
        gc.collect()  # the frames of an error have tensors
        if device.type == "cuda":
            torch.cuda.empty_cache()
    held = memory_report(run.model, run.optimizer, device)
    return peak + held["parameters"] + held["optimizer"]


def ran_out(error: Exception) -> bool:
    """Return whether an error says that there was too little memory."""
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or any(name in str(error) for name in _OUT_OF_MEMORY)
