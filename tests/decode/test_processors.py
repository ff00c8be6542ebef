"""Presets against the image processors of transformers, on the same photographs.

Their Pillow forms are taken, configured as the checkpoints are. Pixels are compared in grey levels,
before normalisation.

torch's kernel weighs pixels with 16 bits, Pillow's with 22: of two thousand pixels one is rounded
the other way. A cubic filter overshoots, so where both sides grow, the second pass can make two
levels of the one that the first pass was off: five values of a million at most, and up to forty
where an image of a few pixels is blown up.
"""

import numpy as np
import pytest
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import make_transform

from ..campaigns import rare
from .fitted import decoded, levels_apart, photo, place, size_of

PHOTOS = {
    "chelsea 451x300": lambda: photo("chelsea.png"),
    "rocket 640x427": lambda: photo("rocket.jpg"),
    "coffee 600x400": lambda: photo("coffee.png"),
    "astronaut 512x512": lambda: photo("astronaut.png"),
    "tiny 7x5": lambda: photo("chelsea.png").crop((150, 100, 157, 105)),
    "pixel": lambda: photo("chelsea.png").crop((150, 100, 151, 101)),
    "wide 600x60": lambda: photo("rocket.jpg").crop((0, 150, 600, 210)),
    "tall 30x380": lambda: photo("coffee.png").crop((300, 0, 330, 380)),
    "nearly square 225x224": lambda: photo("chelsea.png").crop((60, 20, 285, 244)),
    "large 1500x1400": lambda: photo("astronaut.png").resize((1500, 1400)),
}
ORDINARY = ("rocket 640x427", "coffee 600x400", "astronaut 512x512")
NAMES = [rare(name) if name in ORDINARY else name for name in PHOTOS]


pytestmark = pytest.mark.usefixtures("rows_first")


def assert_same_pixels(ours, theirs, spec, *, blown_up=False):
    off = levels_apart(ours, theirs, spec)
    assert off.max() < 2.01
    assert (off > 1.01).double().mean() <= (5e-5 if blown_up else 1e-5)
    assert off.mean() < 0.01


def clip(size, **options):
    crop = {"crop_size": {"height": size, "width": size}} | options
    return CLIPImageProcessorPil(size={"shortest_edge": size}, **crop)


def qwen2_vl(changes, **options):
    return ImageSpec.preset("qwen2-vl", **changes), Qwen2VLImageProcessorPil(**options)


def internvl(most):
    spec = ImageSpec.preset("internvl", tiles=most)
    mean, std = spec.mean_std
    tiles = {"size": {"height": 448, "width": 448}, "crop_to_patches": True, "max_patches": most}
    return spec, GotOcr2ImageProcessorPil(**tiles, image_mean=mean, image_std=std)


def llava_next(size):
    sides = {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}
    grids = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    processor = LlavaNextImageProcessorPil(**sides, image_grid_pinpoints=grids)
    return ImageSpec.preset("llava-next", size=size), processor


PRESETS = {
    "clip 224": (ImageSpec.preset("clip"), clip(224)),
    "clip 336": (ImageSpec.preset("clip", size=336), clip(336)),
    "siglip": (
        ImageSpec.preset("siglip"),
        SiglipImageProcessorPil(size={"height": 384, "width": 384}),
    ),
    "shortest": (
        ImageSpec(size=224, resize="shortest", interpolation="bicubic", normalize="clip"),
        clip(224, do_center_crop=False),
    ),
    "qwen2-vl": qwen2_vl({}),
    "qwen2-vl, patches of 16": qwen2_vl(
        {"patch": 16, "min_pixels": 65536, "max_pixels": 200_000},
        patch_size=16,
        size={"shortest_edge": 65536, "longest_edge": 200_000},
    ),
    "qwen2-vl, plain patches": qwen2_vl(
        {"merge": 1, "temporal": 1}, merge_size=1, temporal_patch_size=1
    ),
    "internvl, 2 tiles": internvl(2),
    "internvl": internvl(12),
    "llava-next": llava_next(336),
    "llava-next, small tiles": llava_next(168),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_does_what_its_processor_does(name, preset):
    (spec, processor), image = PRESETS[preset], PHOTOS[name]()
    theirs = processor(images=[image])
    pixels = np.asarray(theirs["pixel_values"])
    ours, _, facts = place(spec, decoded(image))
    pixels = pixels[0] if pixels.ndim == 5 else pixels
    assert_same_pixels(ours, pixels, spec, blown_up=max(image.size) < 20)
    tokens = make_transform(spec).tokens(*size_of(decoded(image))) if spec.patch else None
    if preset == "shortest":
        assert facts["image_sizes"].tolist() == [list(ours.shape[2:])]
    elif spec.grids is not None:
        assert facts["image_sizes"].tolist() == np.asarray(theirs["image_sizes"]).tolist()
    elif spec.resize == "native":
        grids = np.asarray(theirs["image_grid_thw"])
        assert facts["image_grid_thw"].tolist() == grids.tolist()
        assert tokens.tolist() == [np.prod(grids) // spec.merge**2]
    elif spec.resize == "tiles":
        assert tokens.tolist() == [256 * count for count in theirs["num_patches"]]


@pytest.mark.parametrize("name", NAMES)
def test_imagenet_is_resizing_to_256_and_cutting_out_the_centre(name):
    spec, image = ImageSpec.preset("imagenet", normalize=None), PHOTOS[name]()
    width, height = (256 * side // min(image.size) for side in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    expected = np.array(resized.crop((left, top, left + 224, top + 224)), np.int32)
    ours, _, _ = place(spec, decoded(image))
    assert np.abs(ours[0].permute(1, 2, 0).numpy() - expected).max() <= 1
