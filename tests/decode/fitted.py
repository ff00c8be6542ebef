"""Images through transforms, and the fitted image put together again from rows."""

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from datapipe.decode.image import Decoded
from datapipe.decode.normalize import array_of
from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import Draw, ImageTransform, Placement, make_transform


@pytest.fixture
def rows_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Pillow resize rows first, then columns, as torch and every Pillow before 13 do.

    Pillow 13 begins with the columns where the height shrinks much more than the width, which moves
    some pixels by up to 32 levels (`tools/pillow_order.py`).
    """
    resize = Image.Image.resize

    def resized(image: Image.Image, size: Any, resample: Any = None, **_: Any) -> Any:
        return resize(resize(image, (size[0], image.height), resample), size, resample)

    monkeypatch.setattr(Image.Image, "resize", resized)


@cache
def photo(name: str) -> Image.Image:
    """A photograph of scikit-image."""
    with (files("skimage") / "data" / name).open("rb") as file:
        return Image.open(file).convert("RGB")


def decoded(image: Image.Image) -> Decoded:
    """An image as if it came out of a file."""
    return Decoded(np.array(image), image.width, image.height)


def size_of(image: Decoded) -> tuple[np.ndarray, np.ndarray]:
    """Widths and heights of an image."""
    return np.array([image.width], np.int64), np.array([image.height], np.int64)


def rows_for(transform: ImageTransform, image: Decoded) -> Tensor:
    """Memory for one image that holds what must not be left there."""
    widths, heights = size_of(image)
    shape = (int(transform.rows(widths, heights)[0]), *transform.row_shape(widths, heights))
    return torch.full(shape, torch.nan if transform.dtype.is_floating_point else 77).to(
        transform.dtype
    )


def place(
    spec: ImageSpec, image: Decoded, draw: Draw | None = None
) -> tuple[Tensor, Placement, dict[str, Tensor]]:
    """Rows of one image, where it is, and its facts."""
    transform = make_transform(spec)
    out = rows_for(transform, image)
    placement = transform.place(image, array_of(out), draw)
    return out, placement, transform.facts(*size_of(image))


def by_kernels(data: bytes, spec: ImageSpec, draw: Draw | None = None) -> Tensor:
    """The first row of an encoded image."""
    return place(spec, make_transform(spec).decode(data), draw)[0][0]


def levels_apart(ours: Tensor, theirs: Any, spec: ImageSpec) -> Tensor:
    """Distances in grey levels of normalised values whose rows begin with the three channels."""
    theirs = torch.as_tensor(np.asarray(theirs, np.float32))
    assert ours.shape == theirs.shape
    std = torch.tensor(spec.mean_std[1] if spec.mean_std else (1.0, 1.0, 1.0)).view(3, 1)
    return (ours - theirs).reshape(-1, 3, ours[0].numel() // 3).abs() * std * 255


def put_together(spec: ImageSpec, out: Tensor, facts: dict[str, Tensor], grid: Any) -> Tensor:
    """The fitted image [3, h, w] of rows; `grid` is (down, across) of tiles."""
    if spec.resize == "native":
        _, down, across = facts["image_grid_thw"][0].tolist()
        patch, merge, frames = spec.patch_side, spec.merge, spec.temporal
        patches = out.view(
            *(down // merge, across // merge, merge, merge, 3, frames, patch, patch)
        )[:, :, :, :, :, 0]
        return patches.permute(4, 0, 2, 5, 1, 3, 6).reshape(3, down * patch, across * patch)
    if spec.resize == "tiles":
        down, across = grid
        tiles = out[1:] if spec.grids else out[: down * across]
        assert len(tiles) == down * across
        rows = [torch.cat(list(tiles[r * across : (r + 1) * across]), 2) for r in range(down)]
        return torch.cat(rows, 1)
    return out[0]
