"""Base of the forms: what they share, and what the loader may ask of each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import Tensor

from datapipe.array_types import Int64, UInt8
from datapipe.decode.image import Decoded, Encoded, decode_for
from datapipe.decode.normalize import ImageMoves, Normalizer, Values
from datapipe.decode.resize import resize
from datapipe.decode.spec import ImageSpec
from datapipe.errors import DecodeError, PlanError, TransformError
from datapipe.geometry.crop import Box, Draw, Placement
from datapipe.geometry.sizes import native_size, one

_Side = TypeVar("_Side", int, Int64)


class ImageTransform(ABC):
    """Transform of encoded images to rows of `pixel_values`. Thread-safe.

    Widths and heights are those of the index: of upright images, in pixels, before anything is done
    to them. Rows, tokens and shapes follow from them alone, so that they can be planned.
    """

    padded: ClassVar[bool] = False  # rows have padding, of zeros after normalisation
    facts_of_rows: ClassVar[bool] = False  # `facts` describe rows instead of images
    nested: ClassVar[bool] = False  # an axis of length 1 is in front; rows of zeros are padding

    def __init__(self, spec: ImageSpec) -> None:
        self.spec = spec
        self.dtype = spec.out_dtype
        self._row: tuple[int, ...] = ()  # shape of a row, where sizes do not matter
        self._normalizer = Normalizer(spec.mean_std, self.dtype)

    def without_videos(self) -> ImageTransform:
        """Return the transform for which each frame of a video is an image."""
        return self if self.spec.video is None else type(self)(replace(self.spec, video=None))

    @property
    def of_several(self) -> ImageTransform | None:
        """Transform of images of samples that have several; None if this one makes them too."""
        return None

    def rows(self, widths: Int64, heights: Int64) -> Int64:
        """Return the rows of `pixel_values` of each of n images: int64 [n]."""
        return np.ones(len(widths), np.int64)

    @abstractmethod
    def tokens(self, widths: Int64, heights: Int64) -> Int64:
        """Return the tokens of n images, int64 [n]; raise `PlanError` if the spec does not say."""

    @property
    def takes_token_number(self) -> bool:
        """True if models may make one number of tokens of every image; they see padding too."""
        return self.spec.one_size or self.spec.resize == "shortest"

    def cells(self, widths: Int64, heights: Int64) -> Int64:
        """Return rows and columns of tiles or tokens, int64 [n, 2]; `PlanError` without any."""
        raise PlanError(
            f"image_markup= goes with images in tiles or of their own size, and resize="
            f"{self.spec.resize!r} makes neither; leave it out"
        )

    @property
    def cell_tokens(self) -> int:
        """Tokens of one of these cells."""
        return 1

    @property
    def adds_whole(self) -> bool:
        """True if an image of several cells has another one that shows the whole."""
        return False

    @abstractmethod
    def sufficient_side(self, aspect: float) -> float:
        """Return the longer side in pixels from which on images of this aspect are not enlarged."""

    def row_shape(self, widths: Int64, heights: Int64) -> tuple[int, ...]:
        """Return the shape of a row of `pixel_values`, in a batch of images of these sizes."""
        return self._row

    def values(self, widths: Int64, heights: Int64) -> Int64:
        """Return the number of values of each of n images, without padding: int64 [n]."""
        return self.rows(widths, heights) * math.prod(self.row_shape(widths, heights))

    def own_shape(self, width: int, height: int) -> tuple[int, ...]:
        """Return the shape of these values: [rows, *row_shape] of the image alone."""
        sizes = one(width, height)
        return int(self.rows(*sizes)[0]), *self.row_shape(*sizes)

    def facts(self, widths: Int64, heights: Int64) -> dict[str, Tensor]:
        """Return what a model takes beside `pixel_values`, for n images."""
        return {}

    def pictures(self, values: Tensor, width: int, height: int) -> Tensor:
        """Return the rows of one image as pictures to look at: [n, 3, h, w], as normalised.

        Several are tiles, row by row; one that shows the whole image is the last.
        """
        return values

    def columns(self, width: int, height: int) -> int:
        """Return how many of them are beside each other."""
        return 1

    def common(self) -> dict[str, object]:
        """Return what all images of a batch must have in common, by its name in messages."""
        nothing = np.zeros(0, np.int64)
        return {
            "rows of pixel_values": list(self.row_shape(nothing, nothing)),
            "dtype": self.dtype,
            "axis in front": self.nested,
            "other keys of the batch": sorted(self.facts(nothing, nothing)),
            "pad_several": self.spec.pad_several is not None,  # models take `batch_num_images`
        }

    def decode(self, data: Encoded) -> Decoded:
        """Decode one image to upright RGB, or raise `DecodeError` as `decode_for` does."""
        target = self._target if self.spec.scaled_decode else None
        return decode_for(data, target, max_pixels=self.spec.refuse_above)

    def check_changed(self, image: Decoded, width: int, height: int) -> None:
        """Raise `TransformError` if a user's transform made an image of a size that does not fit.

        `width` and `height` are those of the index, from which everything beside the pixels
        follows: rows may be as many for an image on its side, but its patches are others.
        """
        if self.spec.one_size or (image.width, image.height) == (width, height):
            return
        alike = self._target(image.height, image.width) == self._target(height, width)
        # `image_sizes` of grids are the originals', and thumbnails have shapes of their own.
        if not alike or self.spec.grids is not None or self.facts_of_rows:
            raise TransformError(
                f"transform made an image of {image.width}x{image.height} pixels of one of "
                f"{width}x{height}, on which the plan counts with resize={self.spec.resize!r}; "
                "return it in the size that it had, or give resize='stretch', 'pad' or 'crop'"
            )

    @abstractmethod
    def place(self, image: Decoded, out: Values, draw: Draw | None = None) -> Placement:
        """Fill the rows of one image, `out` [rows, *row_shape] by `array_of`, all of them.

        Without `draw`, nothing is cropped at random or mirrored. Return the placement of points of
        the original in the fitted image: before it was cut into patches or tiles, with the padding
        beside it. Raises `DecodeError` if `out` was made for an image of another size.
        """

    def finish(self, values: UInt8, out: Values) -> None:
        """Fill `out` from what a transform of uint8 made: both of `own_shape`, contiguous."""
        # A patch holds all its red values first, then the green ones, then the blue ones.
        shape = (len(values), 3, values[:1].size // 3)
        assert out.flags.c_contiguous
        self._normalizer.write_planes(values.reshape(shape), out.reshape(shape))

    def finish_many(self, moves: Sequence[ImageMoves], out: Values, *, interleaved: bool) -> bool:
        """Do `finish` for many images of one size at once, see `Normalizer.gather`."""
        return self._normalizer.gather(moves, out, interleaved=interleaved)

    @abstractmethod
    def _target(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) that a whole image of this size is resized to, or more."""

    def _fit(self, image: Decoded, height: int, width: int) -> tuple[UInt8, Placement]:
        """Resize the whole image to uint8 [height, width, 3]."""
        fitted = resize(_plain(image.pixels), height, width, self.spec.interpolation)
        return fitted, Placement(width / image.width, height / image.height)

    def _fit_part(
        self, image: Decoded, box: Box, height: int, width: int
    ) -> tuple[UInt8, Placement]:
        """Resize a part of the image, likewise; `box` is in pixels of the original.

        An image that was decoded at a part of its size is cut at its own nearest pixels.
        """
        pixels = _plain(image.pixels)
        left, right, across = _ends(box.left, box.width, image.width, pixels.shape[1])
        top, bottom, down = _ends(box.top, box.height, image.height, pixels.shape[0])
        part = pixels[top:bottom, left:right]
        scale_x, scale_y = across * width / (right - left), down * height / (bottom - top)
        placement = Placement(scale_x, scale_y, -left / across * scale_x, -top / down * scale_y)
        return resize(part, height, width, self.spec.interpolation), placement

    def _patch_tokens(self, width: _Side, height: _Side) -> _Side:
        """Return the tokens of images of these sizes after fitting; `PlanError` without `patch`."""
        patch, merge = self.spec.patch, self.spec.merge
        if patch is None:
            raise PlanError(
                f"how many tokens an image has depends on the model, and ImageSpec(resize="
                f"{self.spec.resize!r}) does not say; give the number as image_tokens, or the side "
                "of a patch as ImageSpec(patch=...)"
            )
        return (width // patch // merge) * (height // patch // merge)


class SizedTransform(ImageTransform):
    """Form whose images are resized whole, to sizes of their own in cells of `_unit` pixels."""

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__(spec)
        self._unit = spec.patch_side * spec.merge

    def tokens(self, widths: Int64, heights: Int64) -> Int64:
        counts: Int64 = self.cells(widths, heights).prod(axis=1)
        return counts

    def cells(self, widths: Int64, heights: Int64) -> Int64:
        across, down = self._sizes(widths, heights)
        return np.stack([down, across], axis=1) // self._unit

    def sufficient_side(self, aspect: float) -> float:
        return float((self.spec.pixel_limits[1] * aspect) ** 0.5)

    def _sizes(self, widths: Int64, heights: Int64) -> tuple[Int64, Int64]:
        """Return widths and heights after resizing, by default near the own: int64 [n] each."""
        return self._near(widths, heights, least_side=self.spec.least_side)

    def _near(self, widths: Int64, heights: Int64, **options: Any) -> tuple[Int64, Int64]:
        least, most = self.spec.pixel_limits
        options |= {"multiple_of": self._unit, "min_pixels": least, "max_pixels": most}
        return native_size(widths, heights, **options)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        across, down = self._sizes(*one(width, height))
        return int(down[0]), int(across[0])


def check_rows(image: Decoded, out: Values, shape: tuple[int, ...]) -> None:
    """Raise `DecodeError` if rows were made for an image of another size."""
    if out.shape != shape:
        raise DecodeError(
            f"it has {image.width}x{image.height} pixels, which take {list(shape)} of "
            f"pixel_values, and {list(out.shape)} were reserved: the index has a different size; "
            "index the dataset again"
        )


def _plain(pixels: UInt8) -> UInt8:
    if min(pixels.strides) < 0 or not pixels.flags.writeable:
        return pixels.copy()  # torch takes neither, and users' transforms make both
    return pixels


def _ends(start: int, length: int, whole: int, pixels: int) -> tuple[int, int, float]:
    """Return first and last pixel (exclusive) of a part, and pixels per original pixel."""
    scale = pixels / whole
    first = min(round(start * scale), pixels - 1)
    return first, max(first + 1, round((start + length) * scale)), scale
