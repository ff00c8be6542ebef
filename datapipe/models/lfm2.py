"""LFM2-VL and LFM2.5-VL: images near their own size, and large ones in tiles with a thumbnail.

`Lfm2VlProcessor` with `Lfm2VlImageProcessor`. Tiles and images are rows of patches, of which each
square of `downsample_factor` becomes an `<image>`. Before the tokens of a tile stands
`<|img_row_1_col_2|>`, before those of the thumbnail `<|img_thumbnail|>`.
"""

from __future__ import annotations

from dataclasses import replace

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, pixel_options
from datapipe.text.markup import ImageMarkup
from datapipe.text.spec import TextSpec

_FIXED = {"min_tiles": 2, "max_pixels_tolerance": 2.0, "do_pad": True}


def lfm2_vl(files: ModelFiles) -> tuple[ImageSpec, TextSpec]:
    """Return the options of a model of this family, or raise `PlanError`."""
    # Published files have do_resize=false, and the processor resizes all the same.
    images = {name: value for name, value in files.images.items() if value is not None}
    files = replace(files, images=images | {"do_resize": True})
    splits = images.get("do_image_splitting", True)
    for name, value in _FIXED.items():
        if (found := images.get(name, value)) != value and (splits or name == "do_pad"):
            raise files.refuse(f"{name} of its image processor is {found}, not {value}")
    if not files.processor.get("use_image_special_tokens", True):
        raise files.refuse("no tokens stand around its images (use_image_special_tokens=false)")
    patch, merge = images.get("encoder_patch_size", 16), images.get("downsample_factor", 2)
    image = ImageSpec(
        resize="naflex",
        size=images.get("tile_size", 512),
        tiles=images.get("max_tiles", 10) if splits else 1,
        thumbnail=images.get("use_thumbnail", True),
        patch=patch,
        merge=merge,
        min_pixels=images.get("min_image_tokens", 64) * (patch * merge) ** 2,
        max_pixels=images.get("max_image_tokens", 256) * (patch * merge) ** 2,
        **pixel_options(files, "siglip", resample=2),
    )
    markup = ImageMarkup(
        start="<|image_start|>",
        cell="<|img_row_{row}_col_{column}|>",
        whole="<|img_thumbnail|>",
        alone="",
        end="<|image_end|>",
    )
    return image, files.text(image_token="<image>", image_markup=markup, seq_idx=True)
