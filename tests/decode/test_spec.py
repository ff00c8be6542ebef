"""What an ImageSpec takes, and what it refuses with value, cause and remedy."""

import dataclasses

import numpy as np
import pytest
import torch

from datapipe.decode.spec import ImageSpec
from datapipe.decode.transform import make_transform
from datapipe.errors import PlanError

GRIDS = ((336, 672), (672, 336))


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        # Values that are none.
        ({"size": 0}, "size 0: give a side"),
        ({"size": True}, "size True"),
        ({"size": 70_000}, "from 1 to 65,535"),
        ({"size": (336, 336, 3)}, r"size \(336, 336, 3\)"),
        ({"resize": "squash"}, "resize 'squash': give 'stretch', 'pad'"),
        ({"interpolation": "box"}, "'box': give 'bilinear', 'bicubic' or 'lanczos'"),
        ({"resize": "dynamic", "longest": 64, "min_pixels": 99}, "longest=64 and min_pixels=99"),
        ({"resize": "tiles", "longest": 64, "tiles": 4}, "longest=64 and tiles=4 are two rules"),
        ({"resize": "native", "longest": 64}, "only with resize='dynamic' and resize='tiles'"),
        ({"fill": (300, 0, 0), "resize": "pad"}, "fill"),
        ({"fill": (0.5, 0, 0), "resize": "pad"}, "of 0 to 255 each"),
        ({"normalize": "imagenett"}, "give one of 'imagenet', 'clip', 'siglip'"),
        ({"normalize": ((0, 0, 0), (1, 0, 1))}, "standard deviations above 0"),
        ({"normalize": ((124, 117, 104), (58, 57, 57))}, "divide those for 0 to 255"),
        ({"normalize": (0.5, 0.5)}, "three values each"),
        ({"dtype": torch.float16}, "torch.float16: give one of torch.uint8"),
        ({"patch": 0, "resize": "native"}, "patch 0: give an integer from 1"),
        ({"patch": 14.0, "resize": "native"}, r"patch 14\.0"),
        ({"merge": 0}, "merge 0"),
        ({"merge": True}, "merge True"),
        ({"temporal": None, "resize": "native"}, "temporal None: give an integer"),
        ({"tiles": 0, "resize": "tiles"}, "tiles 0"),
        ({"refuse_above": 0}, "refuse_above 0"),
        ({"refuse_above": 10**9}, "from 1 to 178,956,970"),
        ({"random_crop": (0.5, 0.1)}, r"random_crop \(0\.5, 0\.1\)"),
        ({"random_crop": 0.5}, "least, most"),
        ({"flip": 2}, "flip 2: give a probability"),
        ({"scaled_decode": 2}, "scaled_decode 2: give True or False"),
        ({"mrope": 1, "resize": "native"}, "mrope 1: give True or False"),
        # Values that contradict each other.
        ({"dtype": torch.uint8, "normalize": "clip"}, "do not fit into torch.uint8"),
        ({"resize": "crop", "crop_from": 200, "size": 224}, "crop_from=200 is less than the 224"),
        ({"resize": "crop", "crop_from": 256, "size": (100, 300)}, "100 x 300 pixels to be cut"),
        ({"resize": "native", "min_pixels": 10**6, "max_pixels": 10**5}, "above max_pixels"),
        ({"resize": "native", "min_pixels": 2 * 10**6}, "is above max_pixels=1,003,520"),
        ({"resize": "native", "max_pixels": 100, "min_pixels": 1}, "less than one token of 14"),
        ({"resize": "dynamic", "merge": 100}, "less than one token of 1400 x 1400"),
        ({"merge": 2}, "merge=2 has no effect without the side of the patches"),
        ({"size": 20, "patch": 14, "merge": 2}, "smaller than one token of 28 x 28"),
        ({"resize": "shortest", "size": (3, 4)}, "it is the shorter side's; give one number"),
        ({"resize": "tiles", "size": (3, 4)}, "a tile is square"),
        ({"resize": "tiles", "tiles": 6, "grids": GRIDS}, "two rules, InternVL's and LLaVA"),
        ({"resize": "tiles", "grids": GRIDS, "thumbnail": False}, "always take the tile"),
        ({"resize": "tiles", "grids": ((336, 500),)}, "does not consist of whole tiles of 336"),
        ({"resize": "tiles", "anyres_max": 9}, "no effect on tiles without grids"),
        ({"resize": "tiles", "pad_several": (0, 0, 0)}, "no effect on tiles without grids"),
        ({"resize": "tiles", "grids": GRIDS, "pad_several": (0, 0, 300)}, "green, blue"),
        ({"resize": "tiles", "grids": ()}, "give a tuple of"),
        ({"resize": "tiles", "grids": [[336, 672, 3]]}, "give a tuple of"),
        ({"resize": "tiles", "grids": GRIDS, "patch": 14, "merge": 2}, "merge no patches"),
        ({"resize": "tiles", "fill": (0, 0, 0)}, "nothing is padded; leave it out"),
        # Options of another way to resize.
        ({"resize": "native", "size": 336}, "bound the result by min_pixels and max_pixels"),
        ({"resize": "dynamic", "size": 336}, "size=336 has no effect with resize='dynamic'"),
        ({"max_pixels": 10**6}, "refused by refuse_above"),
        (
            {"min_pixels": 10**6, "resize": "tiles"},
            "only with resize='dynamic' and resize='native'",
        ),
        ({"fill": (0, 0, 0)}, "only with resize='pad'"),
        ({"crop_from": 400}, "only with resize='crop'"),
        ({"temporal": 2, "resize": "dynamic"}, "temporal=2 has no effect with resize='dynamic'"),
        ({"mrope": True}, "only with resize='native'; leave it out, and tokens have ordinary"),
        ({"tiles": 6}, "only with resize='tiles'; leave it out"),
        ({"anyres_max": 9}, "only with resize='tiles'"),
        ({"grids": GRIDS}, "only with resize='tiles'"),
        ({"thumbnail": False}, "only with resize='tiles'"),
        ({"flip": 0.5, "resize": "native"}, "flip=0.5 has no effect with resize='native'"),
        ({"random_crop": (0.1, 1.0), "resize": "pad"}, "only with resize='stretch'"),
    ],
)
def test_impossible_specs_are_refused_with_a_remedy(options, cause):
    with pytest.raises(PlanError, match=cause):
        ImageSpec(**options)


def test_a_preset_can_be_changed():
    spec = ImageSpec.preset("clip", size=336, dtype=torch.bfloat16)
    assert (spec.height, spec.width, spec.out_dtype) == (336, 336, torch.bfloat16)
    assert spec.mean_std == ImageSpec.preset("clip").mean_std
    assert ImageSpec.preset("internvl", tiles=6).most_tiles == 6
    assert ImageSpec.preset("qwen2-vl").mrope
    assert not ImageSpec.preset("qwen2-vl", mrope=False).mrope


def test_a_preset_that_there_is_none_of_is_refused():
    with pytest.raises(PlanError, match="preset 'clipp' is not one of 'imagenet', 'clip'"):
        ImageSpec.preset("clipp")
    with pytest.raises(PlanError, match="crop_from=256 is less than the 384"):
        ImageSpec.preset("imagenet", size=384)


def test_sizes_that_are_not_given_are_those_of_the_mode():
    assert ImageSpec().height == 336
    assert ImageSpec(resize="tiles").height == 448
    assert ImageSpec(resize="tiles", grids=GRIDS).height == 336
    assert ImageSpec(size=(3, 4)).width == 4
    # A mode can be changed without naming what belonged to the other.
    assert dataclasses.replace(ImageSpec(), resize="native").pixel_limits == (3136, 1_003_520)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (ImageSpec(size=336, patch=14), [576, 576]),
        (ImageSpec(size=(28, 70), patch=14), [10, 10]),
        (ImageSpec(size=384, patch=14), [729, 729]),  # a convolution leaves the rest out
        (ImageSpec(size=28, resize="shortest", patch=14), [4 * 2, 6 * 2]),
        (ImageSpec(resize="dynamic", patch=14, merge=2), [18 * 9, 11 * 4]),
        (ImageSpec(resize="native", patch=14), [36 * 18, 21 * 7]),
        (ImageSpec(size=28, resize="tiles", patch=14, merge=2, thumbnail=False), [4 * 2, 6 * 2]),
    ],
)
def test_tokens_follow_from_the_side_of_a_patch(spec, expected):
    tokens = make_transform(spec).tokens(np.array([500, 300]), np.array([250, 100]))
    assert tokens.dtype == np.int64
    assert tokens.tolist() == expected


@pytest.mark.parametrize(
    "spec", [ImageSpec(), ImageSpec(resize="tiles"), ImageSpec(resize="tiles", grids=GRIDS)]
)
def test_tokens_of_an_unknown_patch_are_asked_for(spec):
    with pytest.raises(PlanError, match="image_tokens, or the side of a patch"):
        make_transform(spec).tokens(np.array([5]), np.array([5]))
