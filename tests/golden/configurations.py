"""The golden configurations: what a loader is asked for, by name."""

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from datapipe import BatchSpec, CacheSpec, DeviceSpec, ImageSpec, PackSpec, RemoteSpec, RunSpec

from .cases import Case, Way
from .data import TOKENIZER, conversation_tokens


def recolour(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A user's transform: turns, inverts by chance, says what it saw."""
    images = [np.ascontiguousarray(image[::-1]) for image in sample["images"]]
    if generator.integers(2):
        images = [255 - image for image in images]
    record = sample["record"] or {}
    return sample | {"images": images, "text": f"{sample['key']} {record.get('id')}"}


def shifted(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A user's transform that leaves the text as it is."""
    by = int(generator.integers(1, 9))
    return sample | {"images": [image[:, by:] for image in sample["images"]]}


def _image(preset: str | None = None, **options: Any) -> ImageSpec:
    return ImageSpec(**options) if preset is None else ImageSpec.preset(preset, **options)


MAKERS: dict[str, Any] = {
    "image": _image,
    "text": conversation_tokens,
    "pack": PackSpec,
    "batch_size": BatchSpec,
    "run": RunSpec,
    "device": DeviceSpec,
    "cache": CacheSpec,
    "remote": RemoteSpec,
}
TRANSFORMS = {"recolour": recolour, "shifted": shifted}


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name(f"{name}.yaml").read_text("utf-8")
    )
    found.pop("shared", None)
    return found


def _specs(name: str) -> dict[str, Any]:
    """Entries of a file of this folder, with specs in place of their options."""
    found = _read(name)
    for given in found.values():
        for option, value in given.items():
            if isinstance(value, dict):
                given[option] = MAKERS[option](**value)
            elif option == "transform":
                given[option] = TRANSFORMS[value]
    return found


def _case(given: dict[str, Any]) -> Case:
    named = {f.name for f in fields(Case)} & given.keys() - {"same"}
    own = {name: given.pop(name) for name in named}
    same = tuple(WAYS[way] for way in given.pop("same", ()))
    return Case(options=given, same=same, **own)


def _plan(line: str) -> list[Any]:
    words = shlex.split(line)
    chatml = ["--tokenizer", TOKENIZER, "--template", "chatml"]
    return [*chatml, *words[1:]] if words[0] == "CHATML" else words


WAYS = {
    name: Way(name=name, data=given.pop("data", None), options=given)
    for name, given in _specs("ways").items()
}
CASES = {name: _case(given) for name, given in _specs("configurations").items()}
PLANS = {name: _plan(line) for name, line in _read("plans").items()}
