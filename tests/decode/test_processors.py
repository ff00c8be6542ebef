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

from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import make_transform

from ..campaigns import rare
from ..models.checkpoints import CASES
from .fitted import decoded, levels_apart, photo, place, size_of
from .fitted import rows_first as rows_first

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


def processor_of(source, **options):
    """The image processor of a checkpoint, with other options."""
    case = CASES[source]
    return case.images(**case.image_options | options)


LLAVA, QWEN = "llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2-VL-7B-Instruct"
LIMITS = {"max_pixels": 1_003_520}
SMALL = {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}
PRESETS = {
    "clip": (ImageSpec.preset("clip"), processor_of(LLAVA, **SMALL)),
    "siglip": (ImageSpec.preset("siglip"), processor_of("llava-hf/llava-interleave-qwen-0.5b-hf")),
    "shortest": (
        ImageSpec(size=224, resize="shortest", interpolation="bicubic", normalize="clip"),
        processor_of(LLAVA, **SMALL, do_center_crop=False),
    ),
    "qwen2-vl": (ImageSpec.preset("qwen2-vl"), processor_of(QWEN, **LIMITS)),
    "qwen2-vl, plain patches": (
        ImageSpec.preset("qwen2-vl", merge=1, temporal=1),
        processor_of(QWEN, **LIMITS, merge_size=1, temporal_patch_size=1),
    ),
    "internvl": (ImageSpec.preset("internvl"), processor_of("OpenGVLab/InternVL3-8B-hf")),
    "llava-next": (
        ImageSpec.preset("llava-next"),
        processor_of("llava-hf/llava-v1.6-vicuna-7b-hf"),
    ),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_does_what_its_processor_does(name, preset):
    (spec, processor), image = PRESETS[preset], PHOTOS[name]()
    theirs = processor(images=[image])
    pixels = np.asarray(theirs["pixel_values"])
    ours, _, facts = place(spec, decoded(image))
    pixels = pixels[0] if pixels.ndim == 5 else pixels
    off = levels_apart(ours, pixels, spec)
    assert off.max() < 2.01
    assert (off > 1.01).double().mean() <= (5e-5 if max(image.size) < 20 else 1e-5)
    assert off.mean() < 0.01
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
