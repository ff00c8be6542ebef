"""Context of the images of all batches, and their random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from datapipe.array_types import Int64
from datapipe.decode.transform import Draw, ImageTransform
from datapipe.index.columns import Columns
from datapipe.loader.batch.buffer_pool import BufferPool
from datapipe.plan.rng import derive

if TYPE_CHECKING:
    from datapipe.decode.dali.decoder import DaliDecoder

_CROPS = 4  # purpose of derived keys


@dataclass(frozen=True, kw_only=True)
class ImageContext:
    """Context that the images of all batches share."""

    transforms: tuple[ImageTransform, ...]  # of each kind of images; `check_together` has passed
    kinds: Callable[[Int64], Int64] | None = None  # of n samples, int64 [n] to int64 [n]
    columns: Columns  # of the dataset, with the size of every image
    pool: BufferPool
    seed: int
    rows: int | None = None  # number to which `pixel_values` is filled up
    geometry: bool = False  # batches have the placement of each image
    decoder: DaliDecoder | None = None  # of all images together; None decodes them one by one
    kept: ImageTransform | None = None  # of all images in a cache: uint8, nothing random

    def __post_init__(self) -> None:
        assert self.kinds is not None or not self.several
        # Datasets with images of their own are refused beside DALI.
        assert self.decoder is None or not self.several

    @property
    def several(self) -> bool:
        """True if there are images of several kinds."""
        return len(self.transforms) > 1

    def kinds_of(self, samples: Int64) -> Int64 | None:
        """Return the kind of each of n samples, int64 [n]; None if all are of the first one."""
        return None if self.kinds is None or not self.several else self.kinds(samples)


def image_draw(seed: int, epoch: int, sample: int, number: int) -> Draw:
    """Return the random numbers of an image, the `number`-th of its sample, in an epoch."""
    return Draw(derive(seed, epoch, _CROPS, sample, number))
