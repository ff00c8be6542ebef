"""Options of loaders that YAML states for tests: specs are written as their fields."""

from typing import Any

import numpy as np
import pytest

import datapipe
from datapipe import ImageSpec
from datapipe.decode.dali.graph import installed

from ..case_files import table

SPECS: dict[str, Any] = {
    "image": ImageSpec,
    "pack": datapipe.PackSpec,
    "batch_size": datapipe.BatchSpec,
    "run": datapipe.RunSpec,
    "device": datapipe.DeviceSpec,
    "cache": datapipe.CacheSpec,
    "workers": datapipe.WorkerSpec,
    "remote": datapipe.RemoteSpec,
    "decoder": datapipe.DaliOptions,
}


def darken(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """The transform that YAML names."""
    factor = generator.random()
    images = [(image * factor).astype(np.uint8) for image in sample["images"]]
    return sample | {"images": images}


def read(name: str) -> Any:
    """Return what `NAME.yaml` of this folder states."""
    return table(f"loader/{name}")


TRANSFORMS = {"darken": darken}


def with_specs(
    options: dict[str, Any], transforms: dict[str, Any] = TRANSFORMS, **makers: Any
) -> dict[str, Any]:
    """Return options with specs made of their fields; `makers` are those of other options."""
    made = SPECS | makers
    if "transform" in options:
        options = options | {"transform": transforms[options["transform"]]}
    return {
        name: made[name](**value) if name in made and isinstance(value, dict) else value
        for name, value in options.items()
    }


def tried(name: str, part: str) -> list[Any]:
    """Return the options that a part of `NAME.yaml` lists, as parameters.

    Campaigns alone try those that say `rare: true`.
    """
    found = []
    for fields in read(name)[part]:
        marks = [pytest.mark.campaign] * fields.pop("rare", False)
        if fields.get("decoder") == "dali":
            marks.append(pytest.mark.skipif(not installed(), reason="DALI is not installed"))
        found.append(pytest.param(with_specs(fields), marks=marks, id=str(fields)))
    return found


IMAGES = {name: ImageSpec(**fields) for name, fields in read("images").items()}
