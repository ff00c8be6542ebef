"""What an ImageSpec takes, and what it refuses with value, cause and remedy."""

import dataclasses
import re

import numpy as np
import pytest
import torch
import yaml

from datapipe.decode.shrink import ShrinkOptions
from datapipe.decode.spec import ImageSpec, VideoSpec
from datapipe.decode.transform import make_transform
from datapipe.errors import PackError, PlanError
from tests.case_files import cases

GRIDS = ((336, 672), (672, 336))


def as_tuples(value):
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


@pytest.mark.parametrize(("options", "cause"), cases("decode/refused_specs"))
def test_impossible_specs_are_refused_with_a_remedy(options, cause):
    name, fields = re.fullmatch(r"(?:(\w+)\()?(.*?)\)?", options).groups()
    given = {name: as_tuples(value) for name, value in yaml.safe_load(f"{{{fields}}}").items()}
    if "dtype" in given:
        given["dtype"] = getattr(torch, given["dtype"].removeprefix("torch."))
    with pytest.raises(PackError if name == "ShrinkOptions" else PlanError, match=cause):
        {None: ImageSpec, "VideoSpec": VideoSpec, "ShrinkOptions": ShrinkOptions}[name](**given)


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
    "spec", [ImageSpec(), ImageSpec(resize="tiles"), ImageSpec(resize="tiles", grids=GRIDS)]
)
def test_tokens_of_an_unknown_patch_are_asked_for(spec):
    with pytest.raises(PlanError, match="image_tokens, or the side of a patch"):
        make_transform(spec).tokens(np.array([5]), np.array([5]))
