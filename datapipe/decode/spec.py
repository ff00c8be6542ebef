"""Options of images and of the frames of videos in a batch, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from datapipe.declared import (
    AcceptedType,
    Positive,
    Say,
    Share,
    Within,
    Word,
    check_fields,
    checked,
    take_if,
    take_options,
)
from datapipe.decode.image import MAX_PIXELS
from datapipe.decode.normalize import STORED, Triple
from datapipe.decode.presets import NORMALIZATIONS, PRESETS
from datapipe.decode.resize import Filter
from datapipe.decode.spec_checks import ONE_SIZE, check_together
from datapipe.errors import PlanError
from datapipe.geometry.sizes import NATIVE_MAX_PIXELS, NATIVE_MIN_PIXELS
from datapipe.short_repr import short_repr

Resize = Literal[
    "stretch", "pad", "crop", "shortest", "dynamic", "native", "naflex", "budget", "tiles"
]

_DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in STORED}
_MAX_SIDE = 65_535
_SIDE, _TILE, _TILES, _PATCH = 336, 448, 12, 14
_USUAL_PATCHES = (14, 16, 32)


Side = Annotated[int, Within(1, _MAX_SIDE)]
Small = Annotated[int, Within(1, 1024)]
Area = Annotated[int, Within(1, MAX_PIXELS)]
Level = Annotated[int, Within(0, 255)]
Size = Annotated[
    Side | tuple[Side, Side],
    Say(f"a side or (height, width), each a number of pixels from 1 to {_MAX_SIDE:,}"),
]
Normalize = Annotated[
    Annotated[str, take_if(NORMALIZATIONS.__contains__)]
    | tuple[tuple[Share, Share, Share], tuple[Positive, Positive, Positive]],
    Say(
        f"one of {', '.join(map(repr, NORMALIZATIONS))}, or (mean, std) of three values each, for "
        "pixel values from 0 to 1: means from 0 to 1, standard deviations above 0; divide those "
        "for 0 to 255 by 255"
    ),
]
Dtype = Annotated[
    torch.dtype,
    AcceptedType(torch.dtype | str),
    lambda value: _DTYPE_NAMES.get(value, value),
    take_if(STORED.__contains__),
    Say(f"one of {', '.join(map(str, STORED))}"),
]
Color = Annotated[tuple[Level, Level, Level], Say("(red, green, blue) of 0 to 255 each")]
Grids = Annotated[
    tuple[tuple[Side, Side], ...], take_if(bool), Say("a tuple of (height, width) in pixels")
]
Shares = Annotated[
    tuple[Share, Share],
    take_if(lambda areas: 0 < areas[0] <= areas[1]),
    Say(
        "(least, most) share of an image's area, above 0 and at most 1; (0.08, 1.0) is usual for "
        "ImageNet, (0.9, 1.0) for CLIP"
    ),
]
Chance = Annotated[Share, Say("a probability, a number from 0 to 1")]
Volume = Annotated[int, Within(1, 2**40)]  # pixels of all frames of a video


@dataclass(frozen=True, kw_only=True, repr=False)
class VideoSpec:
    """Size of the frames of videos, for models that take `ImageSpec.temporal` of them as one patch.

    Batches then have `pixel_values_videos` and `video_grid_thw`, int64 [videos, 3]: patches along
    time, down and across. An odd number of frames repeats the last one. Without a `VideoSpec` each
    frame is an image of its own.

    Attributes:
        min_pixels, max_pixels: least and most pixels after resizing, of what `limits` says. The
            defaults are those of Qwen2-VL.
        limits: of each "frame" alone, as for Qwen2-VL, or of all frames of a "video" together, as
            for Qwen3-VL: the more frames, the smaller each.
        tokens_per_second: positions of tokens along time advance by so many a second, as for
            Qwen2.5-VL, and batches have `second_per_grid_ts`, the seconds of a patch. None counts
            the patches.

    Raises:
        PlanError: a value is impossible.

    Examples:
        >>> video = datapipe.VideoSpec(min_pixels=4096, max_pixels=2**20, limits="video")
        >>> datapipe.ImageSpec(resize="native", temporal=2, video=video).video.max_pixels
        1048576
    """

    min_pixels: Volume = 128 * 28 * 28
    max_pixels: Volume = 768 * 28 * 28
    limits: Literal["frame", "video"] = "frame"
    tokens_per_second: Positive | None = None

    def __post_init__(self) -> None:
        check_fields(self, PlanError, "video {}".format)
        if self.min_pixels > self.max_pixels:
            raise PlanError(
                f"video min_pixels={self.min_pixels:,} is above max_pixels={self.max_pixels:,}; "
                "give a range, both ends of it"
            )

    __repr__ = short_repr


@dataclass(frozen=True, kw_only=True, repr=False)
class ImageSpec:
    """Size, fit and number format of images in a batch.

    `resize` says what `pixel_values` look like:

    - "stretch", "pad", "crop": `[images, 3, height, width]`. The aspect ratio is ignored; or the
      image is fitted inside and the rest filled; or it covers the whole and its centre is kept.
    - "shortest", "dynamic": `[images, 3, H, W]` of the largest in the batch, zeros to the right and
      below, with `image_sizes`. The shorter side becomes `size` (the longer one at most 32 times
      that); or both sides become multiples of `patch * merge` near the image's own.
    - "native": `[patches, 3 * temporal * patch**2]`, with `image_grid_thw`: as "dynamic", cut into
      patches in the order in which Qwen2-VL takes them.
    - "naflex": `[rows, patches, 3 * patch**2]` with `pixel_attention_mask` and `spatial_shapes`: as
      "native", but a row is an image, padded with zeros. One of over twice `max_pixels` is cut into
      2 to `tiles` tiles, a row each, and a thumbnail, as LFM2-VL takes it.
    - "budget": `[images, patches, 3 * patch**2]` with `image_position_ids`: the largest size of at
      most `tokens` tokens, cut into patches, zeros after the last.
    - "tiles": `[tiles, 3, size, size]`: by the rules of InternVL or Command A Vision (`tiles`), of
      LLaVA-NeXT (`grids`), then with `image_sizes`, or of Idefics 3 (`longest`).

    Attributes:
        size: side of a square in pixels, or (height, width); for "tiles" and "naflex", the side of
            a tile; for "shortest", the shorter side. None is 336, and 448 for the tiles of
            InternVL. Dynamic and native sizes take none.
        resize: see above.
        interpolation: "bilinear", "bicubic" or "lanczos", antialiased.
        normalize: None, "imagenet", "clip", "siglip", or (mean, std) per channel for values of
            0 to 1.
        dtype: torch.uint8 (0 to 255, without normalisation), torch.float32 or torch.bfloat16 (0 to
            1 before normalisation), or a name such as "uint8". None is uint8 without normalisation
            and float32 with it.
        fill: RGB of the padding of "pad", `grids` and `tiles_by="scale"`, 0 to 255; None is the
            mean that is subtracted, or black; for the last, images are stretched then.
        crop_from: for "crop", the shorter side before the centre is cut out, in pixels. None is the
            smallest that covers the result.
        patch: side of a patch in pixels; None is 14 for dynamic and native sizes. Given for the
            others, it says how many tokens an image has: `(height // patch) * (width // patch)`
            for a fixed size. Without it, only images of 336 x 336 pixels have a known number, 576.
        merge: patches along each side that become one token.
        temporal: for "native", the frames of a patch, each with the same image.
        patch_order: for "native", the patches of a token together ("blocks"), or row by row in
            `pixel_values` of `[patches, 3, patch, patch]`, as for PaddleOCR-VL ("rows").
        merge_sizes: for "native", batches have `image_merge_sizes`, int64 [images], which is
            `merge`, as for VideoLLaMA 3.
        mrope: for "native" with tokens, give `position_ids` an axis each for frames, rows and
            columns, as models of the Qwen2-VL family expect; pixels do not depend on it.
        video: for "native", a `VideoSpec` for models that take the frames of a video together.
            Without it, or for a text without `TextSpec(video_markup=...)`, each frame is an image.
        min_pixels, max_pixels: limits of a resized image for "dynamic", "native" and "naflex"; None
            is 3,136 and 1,003,520, as for Qwen2-VL.
        least_side: for "native", the least side in pixels: smaller images count as enlarged to it
            first, as for GLM-4V and PaddleOCR-VL.
        longest: longer side in pixels. For "dynamic" it replaces the limits: larger images are
            scaled to it, and sides are rounded up to multiples, as for Pixtral. For "tiles", all
            images are scaled to it, then stretched to whole tiles.
        tokens: for "budget", the most tokens of an image.
        tiles: for "tiles" and "naflex", the most tiles of an image, without the thumbnail. None is
            12.
        tiles_by: for "tiles", what chooses the grid of an image: the nearest "aspect" ratio, as for
            InternVL; or the least "scale" that does not shrink it, as for Command A Vision, or with
            `fill` as for Llama 4, where the image is fitted into the corner of its tiles.
        grids: for "tiles", canvases (height, width) to choose from, multiples of `size`.
        anyres_max: for `grids`, the tiles to whose features a model scales those of larger canvases
            down, as LLaVA-OneVision with "anyres_max_9" does; None scales none. Pixels do not
            depend on it.
        pad_several: for `grids`, RGB of 0 to 255: an image is cut into tiles only if it is alone in
            its sample. Of several, each is padded with this colour to a square and is one tile, as
            for LLaVA-OneVision. None cuts all images into tiles.
        thumbnail: for `tiles` and `longest`, add a tile that shows the whole image if there are
            several; for "naflex", a row.
        scaled_decode: JPEGs may be decoded at 1/2, 1/4 or 1/8 where that is large enough: faster,
            a few grey levels off.
        random_crop: for "stretch" and "crop", the share of the area, (least, most), of a random
            part of the image that is used in place of the whole. Its aspect ratio is 3/4 to 4/3.
        flip: for "stretch" and "crop", the probability that an image is mirrored left to right.
        max_frames: the most frames of each video: evenly spaced, the first and the last among them.
            Others are neither read nor counted. None is all that were packed.
        refuse_above: an image with more pixels is refused as a `DecodeError`.

    Raises:
        PlanError: a value is not one of these, or they contradict each other.

    Examples:
        >>> spec = datapipe.ImageSpec(size=384, resize="pad", normalize="siglip")
        >>> loader = datapipe.make_loader("shards/", batch_size=2, image=spec)
        >>> next(iter(loader))["pixel_values"].shape
        torch.Size([2, 3, 384, 384])
    """

    size: Size | None = None
    resize: Resize = "stretch"
    interpolation: Filter = "bilinear"
    normalize: Normalize | None = None
    dtype: Dtype | None = None
    fill: Color | None = None
    crop_from: Side | None = None
    patch: Side | None = None
    merge: Small = 1
    temporal: Small = 1
    patch_order: Literal["blocks", "rows"] = "blocks"
    merge_sizes: bool = False
    mrope: bool = False
    video: Annotated[Any, take_options(VideoSpec)] | None = None
    min_pixels: Area | None = None
    max_pixels: Area | None = None
    least_side: Side = 1
    longest: Side | None = None
    tokens: Side | None = None
    tiles: Small | None = None
    tiles_by: Literal["aspect", "scale"] = "aspect"
    grids: Grids | None = None
    anyres_max: Small | None = None
    pad_several: Color | None = None
    thumbnail: bool = True
    scaled_decode: bool = False
    random_crop: Shares | None = None
    flip: Chance = 0.0
    max_frames: Small | None = None
    refuse_above: Area = MAX_PIXELS

    def __post_init__(self) -> None:
        check_fields(self, PlanError)
        check_together(self)

    __repr__ = short_repr

    @classmethod
    @checked(PlanError)
    def preset(cls, name: Word, **changes: Any) -> ImageSpec:
        """Return the spec that does what the image processor of a family of models does.

        The patch of "clip" and "siglip" is that of the preset's checkpoint, and left open if `size`
        is changed: the families have checkpoints with other patches at other sizes.

        Args:
            name: "imagenet", "clip", "siglip", "qwen2-vl", "internvl" or "llava-next".
            changes: options that differ from it.

        Raises:
            PlanError: there is no such preset, or the options contradict each other.
        """
        if name not in PRESETS:
            raise PlanError(
                f"preset {name!r} is not one of {', '.join(map(repr, PRESETS))}; give the options "
                "of ImageSpec one by one"
            )
        options = dict(PRESETS[name])
        size = options.get("size")
        if options["resize"] in ONE_SIZE and changes.get("size", size) not in (size, (size, size)):
            options.pop("patch", None)
        return cls(**options | changes)

    @property
    def height(self) -> int:
        """Height of a fixed size or a tile, in pixels."""
        return self.size[0] if isinstance(self.size, tuple) else self._side

    @property
    def width(self) -> int:
        """Width of a fixed size or a tile, in pixels."""
        return self.size[1] if isinstance(self.size, tuple) else self._side

    @property
    def _side(self) -> int:
        if isinstance(self.size, int):
            return self.size
        return _TILE if self.resize == "tiles" and self.grids is None else _SIDE

    @property
    def patch_side(self) -> int:
        """Side of a patch, in pixels."""
        return _PATCH if self.patch is None else self.patch

    @property
    def one_size(self) -> bool:
        """True if all images have `height` and `width`."""
        return self.resize in ONE_SIZE

    @property
    def fills_borders(self) -> bool:
        """True if results may have borders of the colour `fill`."""
        return self.resize == "pad" or self.grids is not None or self.fill is not None

    @property
    def image_tokens(self) -> int | Literal["per-tile", "native"]:
        """Tokens of an image in a model, where `TextSpec(image_tokens=...)` is not given.

        `PlanError` if images have a fixed size, and the side of a patch is not known.
        """
        if not self.one_size:
            return "per-tile" if self.resize == "tiles" else "native"
        patch = self.patch
        if patch is None and self.height == self.width == _SIDE:
            patch = _PATCH
        if patch is None:
            counts = ((side, self._count_patches(side)) for side in _USUAL_PATCHES)
            examples = ", ".join(f"patch={side} makes {count}" for side, count in counts if count)
            raise PlanError(
                f"how many tokens an image of {self.height} x {self.width} pixels has depends on "
                "the model; give the side of its patches as ImageSpec(patch=...)"
                f"{f' ({examples})' if examples else ''}, or the number as "
                "TextSpec(image_tokens=...)"
            )
        return self._count_patches(patch)

    def _count_patches(self, patch: int) -> int:
        return (self.height // patch // self.merge) * (self.width // patch // self.merge)

    @property
    def most_tiles(self) -> int:
        """Tiles of an image by InternVL's rule, the thumbnail not counted."""
        return _TILES if self.tiles is None else self.tiles

    @property
    def pixel_limits(self) -> tuple[int, int]:
        """Least and most pixels of a size near the image's own."""
        least = NATIVE_MIN_PIXELS if self.min_pixels is None else self.min_pixels
        return least, NATIVE_MAX_PIXELS if self.max_pixels is None else self.max_pixels

    @property
    def random(self) -> bool:
        """True if images look different from epoch to epoch."""
        return self.random_crop is not None or self.flip > 0

    @property
    def out_dtype(self) -> torch.dtype:
        """Dtype of `pixel_values`."""
        if self.dtype is not None:
            return self.dtype
        return torch.uint8 if self.normalize is None else torch.float32

    @property
    def mean_std(self) -> tuple[Triple, Triple] | None:
        """(mean, std) per channel, None without normalisation."""
        if isinstance(self.normalize, str):
            return NORMALIZATIONS[self.normalize]
        if self.normalize is None:
            return None
        (r, g, b), (sr, sg, sb) = (tuple(map(float, three)) for three in self.normalize)
        return (r, g, b), (sr, sg, sb)

    @property
    def fill_color(self) -> tuple[int, int, int]:
        """RGB of the padding, 0 to 255."""
        if self.fill is not None:
            return self.fill
        mean = self.mean_std[0] if self.mean_std else (0.0, 0.0, 0.0)
        return round(mean[0] * 255), round(mean[1] * 255), round(mean[2] * 255)
