"""Idefics 3 and SmolVLM: tiles of a scaled image, each with its row and column.

`Idefics3Processor` and `SmolVLMProcessor`, with their image processors. Before the tokens of a tile
stands `<row_1_col_2>`, before those of the whole image `<global-img>`.
"""

from __future__ import annotations

from datapipe.decode.spec import ImageSpec
from datapipe.models.files import ModelFiles, merge_of_tiles, pixel_options
from datapipe.text.markup import ImageMarkup
from datapipe.text.spec import TextSpec

_PATCHES = (14, 16)  # of the vision towers of these models, where only a processor is given
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


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
    patch, merge = merge_of_tiles(files, tile, _PATCHES if given is None else (given,), tokens)
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
