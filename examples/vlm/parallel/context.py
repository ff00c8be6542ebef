"""Context parallelism: a rank's share of a row of tokens, and the images in it."""

from bisect import bisect_left, bisect_right

import torch
import torch.distributed as dist
from torch import Tensor

from examples.vlm.model.attention import Table, prepare
from examples.vlm.model.inputs import Inputs, Patches


def own_share(
    inputs: Inputs, group: dist.ProcessGroup, *, image_id: int, merged: int, kernel: str | Table
) -> Inputs:
    """Return this rank's neighbouring tokens of a row, and the images that some of them are of.

    The row is the same on every rank of the group; `merged` patches are a token of an image. Waits
    for the device, because the host must know the number of patches.
    """
    ranks, total = dist.get_world_size(group), len(inputs.ids)
    if total % ranks:
        raise ValueError(
            f"a row of {total} tokens does not divide over {ranks} ranks of the context; pad the "
            f"samples: pack=PackSpec(tokens, multiple_of={ranks})"
        )
    size = total // ranks
    start = dist.get_rank(group) * size
    own = slice(start, start + size)
    wanted = inputs.ids == image_id
    before, count = torch.stack([wanted[:start].sum(), wanted[own].sum()]).tolist()
    patches, encoded = own_images(inputs.patches, before * merged, count * merged, kernel)
    return Inputs(
        ids=inputs.ids[own],
        targets=inputs.targets[own],
        positions=inputs.positions[own],
        segments=inputs.segments._replace(group=group),
        patches=patches,
        skipped=before - encoded // merged,
    )


def own_images(
    patches: Patches, start: int, count: int, kernel: str | Table
) -> tuple[Patches, int]:
    """Return the images that have some of `count` patches, and the patches before these images.

    Without patches, it is the first image: every rank runs the encoder, as in `make_patches`.
    """
    bounds: list[int] = patches.segments.bounds.tolist()
    first = bisect_right(bounds, start) - 1 if count else 0
    last = min(bisect_left(bounds, start + count) if count else 1, len(bounds) - 1)
    own = slice(bounds[first], bounds[last])
    of_images: Tensor = patches.segments.bounds[first : last + 1] - bounds[first]
    segments = patches.segments._replace(bounds=of_images, mask=None)
    found = Patches(
        values=patches.values[own],
        rows=patches.rows[own],
        columns=patches.columns[own],
        segments=prepare(segments, own.stop - own.start, kernel),
    )
    return found, bounds[first] if count else start
