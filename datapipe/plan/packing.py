"""Packs: samples that fill a fixed number of tokens, from a window over their order.

`packing_kernel` explains the algorithm; `python -m benchmarks.plan` measures how full packs are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from datapipe.array_types import Int64
from datapipe.declared import Count, checked
from datapipe.errors import PlanError
from datapipe.plan.options import BLOCK
from datapipe.plan.order import Permutation
from datapipe.plan.ragged import edges
from datapipe.plan.rng import derive

_PACKING = 0x7061636B  # purpose of a derived key
# Sums stay below `packing_kernel.UNLIMITED`; those of images are shifted by its `DENSITY_BITS`.
_LENGTH_BITS = 60
_IMAGE_BITS = 48


@checked(PlanError)
def pack_lengths(
    lengths: npt.ArrayLike,
    capacity: Count,
    *,
    window: Count = 256,
    images: npt.ArrayLike | None = None,
    max_images: Count | None = None,
    seed: int | None = 0,
) -> tuple[Int64, Int64]:
    """Put samples into packs of at most `capacity` tokens.

    Samples are taken in a random order. Packing restarts every 65,536 samples, as in a
    loader, which leaves the last pack of each of these blocks unfilled.

    Args:
        lengths: integers [n], tokens of each sample, at least 1.
        capacity: most tokens of a pack.
        window: most samples that wait for a pack they fit into.
        images: integers [n], images of each sample; packs get similar numbers of them as far as
            fill allows. Needed for `max_images`.
        max_images: most images of a pack; None for no limit.
        seed: seed of the order; None keeps the order given.

    Returns:
        Order int64 [n] and offsets int64 [packs + 1]. Pack p has the samples
        `order[offsets[p]:offsets[p + 1]]`. The same on every machine.

    Raises:
        PlanError: a sample fits into no pack, or an argument is impossible.

    Examples:
        >>> order, offsets = pack_lengths([700, 300, 600, 400], 1000)
        >>> offsets.tolist()
        [0, 2, 4]
    """
    tokens, carried = _checked(
        lengths, images, capacity=capacity, window=window, max_images=max_images
    )
    indices = np.arange(len(tokens), dtype=np.int64)
    if seed is not None:
        indices = Permutation(len(tokens), derive(seed, _PACKING))(indices)
    orders, counts = [], []
    for start in range(0, len(tokens), BLOCK):
        block = indices[start : start + BLOCK]
        order, offsets = pack_units(
            tokens[block], capacity, window=window, images=carried[block], max_images=max_images
        )
        orders.append(block[order])
        counts.append(np.diff(offsets))
    if not orders:
        return indices, np.zeros(1, np.int64)
    return np.concatenate(orders), edges(np.concatenate(counts))


def pack_units(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    window: int = 256,
    images: npt.ArrayLike | None = None,
    max_images: int | None = None,
    max_samples: int | None = None,
) -> tuple[Int64, Int64]:
    """Put samples into packs, in the order given and as one block; see `pack_lengths`."""
    limits = {"window": window, "max_images": max_images, "max_samples": max_samples}
    tokens, carried = _checked(lengths, images, capacity=capacity, **limits)
    if not len(tokens):
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    from datapipe.plan.packing_kernel import UNLIMITED, pack  # imports numba

    return pack(
        tokens,
        carried,
        # What no pack can use costs memory for nothing.
        min(capacity, int(tokens.sum())),
        min(window, len(tokens)),
        UNLIMITED if max_images is None else max_images,
        UNLIMITED if max_samples is None else max_samples,
    )


def _integers(name: str, values: npt.ArrayLike, *, least: int, most_bits: int) -> Int64:
    try:
        array = np.asarray(values)
    except ValueError:  # a list of lists of different lengths
        array = np.asarray(None)
    if array.ndim != 1:
        raise PlanError(f"{name} have the shape {array.shape}; give one number for each sample")
    if not array.size:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu":
        raise PlanError(f"{name} have the type {array.dtype}; give integers")
    if array.min() < least:
        first = int(np.argmax(array < least))
        raise PlanError(
            f"{name}: sample {first} has {array[first]}, and at least {least} is needed; "
            "leave such samples out"
        )
    if int(array.max()).bit_length() + len(array).bit_length() > most_bits:
        raise PlanError(f"{name} of up to {array.max()} are too large to add up")
    # The compiled packer has one form, for arrays that are contiguous and writable.
    return np.require(array, np.int64, ("C", "W"))


def _checked(
    lengths: npt.ArrayLike, images: npt.ArrayLike | None, *, capacity: int, **limits: int | None
) -> tuple[Int64, Int64]:
    """Return lengths and numbers of images as int64 [n], once they are sure to fit into packs."""
    tokens = _integers("lengths", lengths, least=1, most_bits=_LENGTH_BITS)
    for name, value in {"capacity": capacity, **limits}.items():
        if value is not None and value < 1:
            raise PlanError(f"{name} {value}: at least 1 is needed")
    max_images = limits["max_images"]
    if len(tokens) and tokens.max() > capacity:
        first = int(np.argmax(tokens > capacity))
        raise PlanError(
            f"sample {first} has {tokens[first]} tokens and a pack holds {capacity}; raise the "
            f"capacity to at least {tokens.max()}, or leave out the {(tokens > capacity).sum()} "
            "samples that are longer"
        )
    if images is None:
        if max_images is not None:
            raise PlanError(f"max_images {max_images} needs images=, the images of each sample")
        return tokens, np.zeros_like(tokens)
    carried = _integers("images", images, least=0, most_bits=_IMAGE_BITS)
    if len(carried) != len(tokens):
        raise PlanError(f"there are {len(tokens)} lengths and {len(carried)} numbers of images")
    if max_images is not None and len(carried) and carried.max() > max_images:
        first = int(np.argmax(carried > max_images))
        raise PlanError(
            f"sample {first}, of {tokens[first]} tokens, has {carried[first]} images and a pack "
            f"holds {max_images}; raise max_images to at least {carried.max()}, or leave out the "
            f"{(carried > max_images).sum()} samples that have more"
        )
    return tokens, carried
