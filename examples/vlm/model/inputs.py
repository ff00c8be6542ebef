"""A batch of datapipe, padded or packed, as the model takes it: one row of tokens.

A padded batch `[B, L]` becomes B segments of L tokens; a packed one `[1, T]` is such a row already.
Causal attention sees no padding, which comes after each sample, so no mask is needed.
"""

from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from examples.vlm.data.batches import IGNORE
from examples.vlm.model.attention import Segments, Table, prepare
from examples.vlm.model.config import ModelConfig, VisionConfig


class Patches(NamedTuple):
    """Patches of the images of a batch."""

    values: Tensor  # [P, 3 * patch**2], those of a token together
    rows: Tensor  # int64 [P], in their image
    columns: Tensor
    segments: Segments  # the images


class Inputs(NamedTuple):
    """Inputs of the model."""

    ids: Tensor  # int64 [T]
    targets: Tensor  # int64 [T], the token that follows each, or `IGNORE`
    positions: Tensor  # int64 [T], from 0 for each sample
    segments: Segments  # of the samples
    patches: Patches  # of the images; of a blank one if there is none
    skipped: int = 0  # features of the first image whose tokens are on another rank


def make_inputs(batch: dict[str, Any], config: ModelConfig, kernel: str | Table) -> Inputs:
    """Turn a batch of a loader with `text=` into the model's inputs. Waits for no device.

    `pixel_values` are float `[images, 3, H, W]` of fixed size, or `[patches, 3 * patch**2]` of
    native size with `image_grid_thw`, or not there.
    """
    ids, labels = batch["input_ids"], batch["labels"]
    rows, length = ids.shape
    if "cu_seq_lens_q" in batch:
        # Of positions along several axes the first is the ordinary one.
        positions = batch["position_ids"].reshape(-1, length)[0]
        segments = Segments(batch["cu_seq_lens_q"], batch["max_length_q"], 0, True)
    else:
        positions = torch.arange(length, device=ids.device).repeat(rows)
        segments = Segments.of_rows(rows, length, causal=True, device=ids.device)
    patches = make_patches(batch, config.vision, ids.device)
    return Inputs(
        ids=ids.flatten(),
        targets=following(labels).flatten(),
        positions=positions,
        segments=prepare(segments, ids.numel(), kernel),
        patches=patches._replace(segments=prepare(patches.segments, len(patches.values), kernel)),
    )


def following(labels: Tensor) -> Tensor:
    """Return the label of the next token in each row; the first token of a sample is never one."""
    return torch.cat([labels[:, 1:], labels.new_full((len(labels), 1), IGNORE)], dim=1)


def make_patches(batch: dict[str, Any], vision: VisionConfig, device: torch.device) -> Patches:
    """Return the images of a batch in patches; see `make_inputs`."""
    pixels = batch.get("pixel_values")
    if pixels is None:
        # The encoder runs all the same: other ranks would wait for the exchange of its gradients.
        values = torch.zeros(vision.merge**2, 3 * vision.patch**2, device=device)
        return _fixed(values, 1, vision.merge, vision)
    if not pixels.is_floating_point():
        raise ValueError(
            f"pixel_values are {pixels.dtype}, and the encoder takes normalised values; give the "
            "loader image=ImageSpec(..., normalize='siglip')"
        )
    if pixels.ndim == 4:
        _, _, height, width = pixels.shape
        if height != width or height % vision.cell:
            raise ValueError(
                f"images of {height}x{width} pixels: this model takes squares whose side is a "
                f"multiple of {vision.cell}, such as ImageSpec(size={vision.image_size})"
            )
        return _fixed(cut(pixels, vision), len(pixels), height // vision.patch, vision)
    if "image_grid_thw" not in batch or pixels.shape[1] != 3 * vision.patch**2:
        raise ValueError(
            f"pixel_values are {list(pixels.shape)}: this model takes native patches of "
            f"{3 * vision.patch**2} values; give ImageSpec(resize='native', patch={vision.patch}, "
            f"merge={vision.merge}, normalize='siglip')"
        )
    return _native(pixels, batch["image_grid_thw"], vision)


def cut(pixels: Tensor, vision: VisionConfig) -> Tensor:
    """Images `[I, 3, S, S]` in patches `[I * P, 3 * patch**2]`, those of a token together."""
    side, merge, patch = pixels.shape[-1] // vision.cell, vision.merge, vision.patch
    blocks = pixels.reshape(-1, 3, side, merge, patch, side, merge, patch)
    return blocks.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(-1, 3 * patch * patch)


def _fixed(values: Tensor, images: int, side: int, vision: VisionConfig) -> Patches:
    """Patches of `images` squares of `side` by `side` patches."""
    device, each = values.device, side * side
    sides = torch.full((1,), side, device=device)
    rows, columns = _places(torch.arange(each, device=device), sides, vision.merge)
    segments = Segments.of_rows(images, each, causal=False, device=device)
    return Patches(values, rows.repeat(images), columns.repeat(images), segments)


def _native(values: Tensor, grids: Tensor, vision: VisionConfig) -> Patches:
    """Patches of images of their own size; `grids` are int64 `[I, 3]`: 1, patches down, across."""
    total, most = len(values), vision.max_patches
    counts = grids.prod(1)
    if counts.device.type == "cpu" and (counts > most).any():
        raise ValueError(
            f"an image has {int(counts.max())} patches, and the model was made for {most}; give "
            f"ImageSpec(max_pixels={most * vision.patch**2}), or a config with more max_pixels"
        )
    starts = functional.pad(counts.cumsum(0), (1, 0))
    patches = torch.arange(total, device=values.device)
    owners = torch.searchsorted(starts[1:], patches, right=True)
    across = torch.cat([grids[:, 2], grids.new_full((1,), vision.merge)])[owners]
    rows, columns = _places(patches - starts[owners], across, vision.merge)
    # Padding of constant shapes goes into segments no longer than an image can be.
    left = most * torch.arange(1, -(-total // most) + 1, device=values.device)
    bounds = torch.cat([starts, (starts[-1] + left).clamp(max=total)])
    return Patches(values, rows, columns, Segments(bounds.int(), min(total, most), 0, False))


def _places(ordinals: Tensor, across: Tensor, merge: int) -> tuple[Tensor, Tensor]:
    """Row and column of each patch, whose `merge * merge` neighbours of a token come together.

    `ordinals` are int64 [P], from 0 in each image; `across`, [P] or [1], patches across the image.
    """
    block, inner = ordinals // merge**2, ordinals % merge**2
    blocks_across = across // merge
    row = block // blocks_across * merge + inner // merge
    column = block % blocks_across * merge + inner % merge
    return row, column


def own_share(
    inputs: Inputs, group: dist.ProcessGroup, *, image_id: int, merged: int, kernel: str | Table
) -> Inputs:
    """Return this rank's neighbouring tokens of a row, and the images that they show.

    That is context parallelism. The row is the same on every rank of the group; `merged` patches
    are a token of an image. Waits for the device, because the host must know the number of patches.
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
