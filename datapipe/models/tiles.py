"""Models whose images are cut into tiles: InternVL 3 and Aya Vision, Idefics 3 and SmolVLM.

`InternVLProcessor` and `QianfanOCRProcessor` with `GotOcr2ImageProcessor`, in the form of
transformers. A tile has `image_seq_length` tokens, `<IMG_CONTEXT>` each; `<img>` and `</img>` stand
around all tiles of an image and its thumbnail. `AyaVisionProcessor` writes `TILE_1` before a tile
and `TILE_GLOBAL` before the thumbnail.

`Cohere2VisionProcessor` with its image processor (Command A Vision). The grid is chosen by another
rule, and `<|IMG_LINE_BREAK|>` stands behind each tile.

`Llama4Processor` with its image processor. The grid is chosen by that rule, and the image is fitted
into the corner of its tiles. Separators stand behind tiles and rows, and `<|image|>` before the
thumbnail.

`Idefics3Processor` and `SmolVLMProcessor`, with their image processors. Tiles are those of a scaled
image. Before the tokens of a tile stands `<row_1_col_2>`, before those of the whole image
`<global-img>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options, side_of
from datapipe.text.markup import ImageMarkup
from datapipe.text.spec import TextSpec

_PATCHES = (14, 16)  # of the vision towers of Idefics 3, where only a processor is given
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


def internvl(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of InternVL or Qianfan-OCR, or raise `PlanError`."""
    patch = files.vision.get("patch_size", 14)
    patch = patch[0] if isinstance(patch, list) else patch
    image = _tiled(files, patch, files.processor.get("image_seq_length", 256))
    _check_placeholder(files, "image_placeholder_token")
    return image, files.text(image_token="<IMG_CONTEXT>")


def aya_vision(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of Aya Vision, or raise `PlanError`."""
    named = files.processor
    side = named.get("patch_size", 28) * named.get("downsample_factor", 1)
    image = _tiled(files, side, (named.get("img_size", 364) // side) ** 2)
    _check_placeholder(files, "image_token")
    whole = named.get("tile_global_token", "TILE_GLOBAL")
    markup = ImageMarkup(
        start=named.get("start_of_img_token", "<|START_OF_IMG|>"),
        cell=named.get("tile_token", "TILE") + "_{number}",
        whole=whole,
        alone=whole,
        end=named.get("end_of_img_token", "<|END_OF_IMG|>"),
    )
    repeated = named.get("img_patch_token", "<|IMG_PATCH|>")
    return image, files.text(image_token=repeated, image_markup=markup)


def cohere2_vision(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of Command A Vision, or raise `PlanError`."""
    if files.images.get("crop_to_patches") is False:
        raise files.refuse("its images are not cut into tiles (crop_to_patches=false)")
    tokens = files.images.get("patch_size", 16) ** 2  # the side of a tile in tokens
    image = _tiled(files, files.vision.get("patch_size", 16), tokens, side=512)
    after = files.processor.get("img_line_break_token", "<|IMG_LINE_BREAK|>")
    markup = ImageMarkup(
        start=files.processor.get("boi_token", "<|START_OF_IMG|>"),
        between_cells=after,
        between_rows=after,
        whole=after,
        end=after + files.processor.get("eoi_token", "<|END_OF_IMG|>"),
    )
    text = files.text(image_token=files.image_token or "<|IMG_PATCH|>", image_markup=markup)
    return replace(image, tiles_by="scale"), text


def llama4(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of Llama 4, or raise `PlanError`."""
    if files.images.get("resize_to_max_canvas"):
        raise files.refuse("its images are enlarged to whole tiles (resize_to_max_canvas=true)")
    named = files.processor
    # A processor has the ratio of patches to tokens instead.
    merged = named.get("downsample_ratio") or round(named.get("pixel_shuffle_ratio", 0.5) ** -2)
    side, patch = side_of(files, "size", 336)[0], named.get("patch_size", 14)
    tokens = (side // patch) ** 2 // merged
    image = _tiled(files, patch, tokens, side=336, most=16, normalize="siglip", resample=2)
    _check_placeholder(files, "image_token", "<|image|>")
    # What its processor writes, whatever tokens it is given.
    markup = ImageMarkup(
        start="<|image_start|>",
        between_cells="<|tile_x_separator|>",
        between_rows="<|tile_y_separator|>",
        whole="<|tile_y_separator|><|image|>",
        alone="<|image|>",
        end="<|image_end|>",
    )
    chunk = (files.config.get("text_config") or {}).get("attention_chunk_size", 8192)
    text = files.text(image_token="<|patch|>", image_markup=markup, attention_chunk=chunk)
    return replace(image, tiles_by="scale", fill=(0, 0, 0)), text


def _check_placeholder(files: ModelFiles, option: str, known: str = "<image>") -> None:
    """Raise `PlanError` if the processor replaces another token of a template than this."""
    if (token := files.processor.get(option, known)) != known:
        raise files.refuse(f"{option} is {token!r}, not {known!r}")


def _tiled(
    files: ModelFiles,
    patch: int,
    tokens: int,
    *,
    side: int = 384,
    most: int = 12,
    normalize: str = "clip",
    resample: int = 3,
) -> ImageSpec:
    """Return the options of tiles of so many `tokens`; the others are the processor's defaults."""
    images = files.images
    # The processor cuts images into tiles, whatever its image processor's own default is.
    if images.get("crop_to_patches", True) is False and files.processor_class is None:
        raise files.refuse("its images are not cut into tiles")
    if (least := images.get("min_patches", 1)) != 1:
        raise files.refuse(f"its images have at least {least} tiles")
    height, width = side_of(files, "size", side)
    if height != width:
        raise files.refuse(f"its tiles have {height} x {width} pixels, which is not a square")
    patch, merge = _merge(files, height, (patch,), tokens)
    return ImageSpec(
        resize="tiles",
        size=height,
        tiles=images.get("max_patches", most),
        patch=patch,
        merge=merge,
        **pixel_options(files, normalize, resample=resample),
    )


def idefics3(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    if files.images.get("do_image_splitting", True) is False:
        raise files.refuse("its images are not split into tiles (do_image_splitting=false)")
    tile, longest = (
        (files.images.get(name) or {"longest_edge": default}).get("longest_edge")
        for name, default in (("max_image_size", 364), ("size", 4 * 364))
    )
    if not isinstance(tile, int) or not isinstance(longest, int):
        raise files.refuse("size or max_image_size of its image processor has no longest_edge")
    tokens = files.processor.get("image_seq_len", 169)
    given = files.vision.get("patch_size")
    patch, merge = _merge(files, tile, _PATCHES if given is None else (given,), tokens)
    image = ImageSpec(
        resize="tiles",
        size=tile,
        longest=longest,
        patch=patch,
        merge=merge,
        **pixel_options(files, "siglip", resample=1),
    )
    markup = ImageMarkup(
        cell=_AROUND + "<row_{row}_col_{column}>",
        between_rows="\n",
        whole=f"\n\n{_AROUND}{_WHOLE}",
        alone=_AROUND + _WHOLE,
        end=_AROUND,
    )
    return image, files.text(image_token="<image>", image_markup=markup)


def _merge(
    checkpoint: ModelFiles, tile: int, patches: Sequence[int], tokens: int
) -> tuple[int, int]:
    """Return patch and merge with which a square tile has so many tokens; PlanError if none do."""
    for patch in patches:
        merge = max(1, tile // patch // max(isqrt(tokens), 1))
        if (tile // patch // merge) ** 2 == tokens:
            return patch, merge
    told = " or ".join(map(str, patches))
    raise checkpoint.refuse(
        f"a tile of {tile} x {tile} pixels in patches of {told} does not have {tokens} tokens"
    )
