"""`TextSpec` and `ImageSpec` of a dataset, from fields with defaults of groups and the mixture."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from datapipe.errors import PlanError
from datapipe.mixture.located import Located
from datapipe.paths import expand_home
from datapipe.text.spec import TextSpec
from datapipe.text.templates import BUILT_IN

DTYPES = ("uint8", "float32", "bfloat16")
PRESET = "preset"
TEXT_FIELDS = tuple(f.name for f in fields(TextSpec))


@dataclass(frozen=True)
class SpecFields:
    """Fields of a spec as they were given so far, outermost first.

    Attributes:
        spec: the spec that was given as an object, or None.
        given: fields that were given by name.
        at: location of the innermost spec, for messages.
    """

    spec: Any = None
    given: Mapping[str, Located] = field(default_factory=dict)
    at: Located | None = None

    def text(self, at: Located | None) -> SpecFields:
        """Return the fields with those of `text:` added."""
        if at is None:
            return self
        if isinstance(at.value, TextSpec):
            return SpecFields(at.value, {}, at)
        return SpecFields(self.spec, {**self.given, **at.mapping(TEXT_FIELDS, "text")}, at)

    def image(self, at: Located | None) -> SpecFields:
        """Return the fields with those of `image:` added; a preset begins anew."""
        if at is None:
            return self
        from datapipe.decode.spec import ImageSpec  # imports torch

        if isinstance(at.value, ImageSpec):
            return SpecFields(at.value, {}, at)
        known = (PRESET, *(f.name for f in fields(ImageSpec)))
        own = at.mapping(known, "image")
        if PRESET in own:
            return SpecFields(None, own, at)
        return SpecFields(self.spec, {**self.given, **own}, at)


def make_text(made: SpecFields, folder: str | None) -> TextSpec | None:
    """Return the `TextSpec` of a dataset; None if none was given.

    Args:
        made: its fields.
        folder: relative paths of a tokenizer or template are relative to it; None leaves them.

    Raises:
        PlanError: a value is wrong, with its location; or there is no tokenizer.
    """
    if made.at is None:
        return None
    values = {name: item.plain() for name, item in made.given.items()}
    if made.spec is None and "tokenizer" not in values:
        made.at.refuse(
            "text without a tokenizer; add tokenizer: tokenizer.json here, or to the text: of the "
            "whole mixture"
        )
    for name in ("tokenizer", "template"):
        value = values.get(name)
        if isinstance(value, str) and value and _names_file(name, value):
            values[name] = from_folder(value, folder)
    try:
        return replace(made.spec, **values) if made.spec else TextSpec(**values)
    except PlanError as error:
        raise _located(error, made) from None


def make_image(made: SpecFields) -> Any:
    """Return the `ImageSpec` of a dataset; None if none was given.

    Raises:
        PlanError: a value is wrong, with its location.
    """
    if made.at is None:
        return None
    import torch

    from datapipe.decode.spec import ImageSpec

    values = {name: item.plain() for name, item in made.given.items()}
    if values.get("dtype") in DTYPES:
        values["dtype"] = getattr(torch, values["dtype"])
    try:
        if made.spec is not None:
            return replace(made.spec, **values)
        if PRESET in values:
            return ImageSpec.preset(values.pop(PRESET), **values)
        return ImageSpec(**values)
    except PlanError as error:
        raise _located(error, made) from None


def from_folder(path: str, folder: str | None) -> str:
    """Return a path as seen from a file in `folder`; URLs and absolute paths stay."""
    if "://" in path or "::" in path:
        return path
    path = expand_home(path)
    return os.path.join(folder, path) if folder else path


def _names_file(name: str, value: str) -> bool:
    """Return True if a tokenizer or template is given by its path."""
    return name == "tokenizer" or (
        value not in BUILT_IN and "{{" not in value and "{%" not in value
    )


def _located(error: PlanError, made: SpecFields) -> PlanError:
    """Return the error with the location of the field that its message begins with."""
    assert made.at is not None
    word = re.match(r"\w*", str(error))
    at = made.given.get(word[0], made.at) if word else made.at
    return PlanError(f"{at.place}{error}")
