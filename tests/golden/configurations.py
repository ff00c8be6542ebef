"""The golden configurations: what a loader is asked for, by name.

Options are those of `make_loader`, as plain dicts. `open_loader` alone hands them on: where options
are named or grouped anew, translate them there, and no digest changes.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

import datapipe
from datapipe import ImageSpec

from ..case_files import table
from ..loader.stated import with_specs
from .data import CONVERTED, TOKENIZER, Data, conversation_tokens

HERE = "here"
"""Stands for a folder of the run's own in `CacheSpec(plan=...)` and `CacheSpec(disk=...)`."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A configuration whose batches are known.

    Attributes:
        options: of `make_loader`; the image is uint8 of 16x16 pixels, the batch of 4, if not given.
        data: what is opened, an attribute of `Data`.
        world: ranks, all of which are read.
        stop: steps after which a run is stopped, to be continued from its state; see `goes_on`.
        goes_on: ranks that go on with it.
        same: other ways to the same batches.
        needs: a module without which the case is skipped.
    """

    options: dict[str, Any]
    data: str = "shards"
    world: int = 1
    stop: int | None = None
    goes_on: int = 1
    same: Sequence[str] = ()
    needs: str | None = None


def open_loader(
    data: Data, case: Case, folder: Path, *, num_workers: int, **ranks: int
) -> datapipe.Loader:
    """Make the loader of a configuration; `folder` is for what it writes."""
    given: dict[str, Any] = {"image": CONVERTED, "num_workers": num_workers}
    given |= {"rank": 0, "world_size": 1} | ranks
    if not case.options.keys() & {"batch_size", "pack", "max_tokens"}:
        given["batch_size"] = 4
    given |= case.options
    cache = given.get("cache")
    if cache is not None and cache.disk is not None and Path(cache.disk).name == HERE:
        given["cache"] = replace(cache, disk=folder / "cache")
    if cache is not None and cache.plan is not None:
        given["cache"] = replace(cache, plan=folder / "plan")
    return datapipe.make_loader(getattr(data, case.data), **given)


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


TRANSFORMS = {"recolour": recolour, "shifted": shifted}


def _specs(name: str) -> dict[str, Any]:
    """Entries of a file of this folder, with specs in place of their options."""
    found = table(f"golden/{name}")
    found.pop("shared", None)
    makers = {"image": _image, "text": conversation_tokens}
    return {key: with_specs(given, TRANSFORMS, **makers) for key, given in found.items()}


def _case(given: dict[str, Any]) -> Case:
    named = {field.name for field in fields(Case)} & given.keys()
    return Case(**{name: given.pop(name) for name in named}, options=given)


def _plan(line: str) -> list[Any]:
    words = shlex.split(line)
    chatml = ["--tokenizer", TOKENIZER, "--template", "chatml"]
    return [*chatml, *words[1:]] if words[0] == "CHATML" else words


CASES = {name: _case(given) for name, given in _specs("configurations").items()}
WAYS = _specs("ways")
PLANS = {name: _plan(line) for name, line in table("golden/plans").items()}


def another(case: Case, way: str) -> Case:
    """The case with what differs in another way to its batches."""
    options = case.options | WAYS[way]
    return replace(case, data=options.pop("data", case.data), options=options)
