"""`TextSpec` and `ImageSpec` of a dataset, from fields with defaults of groups and the mixture."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from datapipe.errors import PlanError
from datapipe.mixture.located import Located
from datapipe.paths import expand_home
from datapipe.text.spec import TextSpec
from datapipe.text.templates import BUILT_IN, is_jinja

_DTYPES = ("uint8", "float32", "bfloat16")
_PRESET = "preset"


@dataclass(frozen=True)
class SpecFields:
    """Fields of a spec as they were given so far, outermost first.

    Attributes:
        name: the option that gives them.
        spec: the spec that was given as an object, or None.
        given: fields that were given by name.
        at: location of the innermost spec, for messages; None if none was given.
    """

    name: Literal["text", "image"]
    spec: Any = None
    given: Mapping[str, Located] = field(default_factory=dict)
    at: Located | None = None

    def extended(self, at: Located | None) -> SpecFields:
        """Return the fields with those of an inner group or dataset; a preset begins anew."""
        if at is None:
            return self
        kind = self._kind()
        if isinstance(at.value, kind):
            return SpecFields(self.name, at.value, {}, at)
        known = [item.name for item in fields(kind)]
        own = at.mapping(known if self.name == "text" else [_PRESET, *known], self.name)
        if _PRESET in own:
            return SpecFields(self.name, None, own, at)
        return replace(self, given={**self.given, **own}, at=at)

    def make(self, folder: str | None) -> Any:
        """Return the spec of a dataset; None if none was given.

        Args:
            folder: relative paths of a tokenizer or template are relative to it; None leaves them.

        Raises:
            PlanError: a value is wrong, with its location; or a text has no tokenizer.
        """
        if self.at is None:
            return None
        values = {name: item.plain() for name, item in self.given.items()}
        if self.name == "text":
            if self.spec is None and "tokenizer" not in values:
                self.at.refuse(
                    "text without a tokenizer; add tokenizer: tokenizer.json here, or to the text: "
                    "of the whole mixture"
                )
            for name in ("tokenizer", "template"):
                value = values.get(name)
                if isinstance(value, str) and value and _names_file(name, value):
                    values[name] = from_folder(value, folder)
        elif values.get("dtype") in _DTYPES:
            import torch

            values["dtype"] = getattr(torch, values["dtype"])
        kind = self._kind()
        try:
            if self.spec is not None:
                return replace(self.spec, **values)
            return (
                kind.preset(values.pop(_PRESET), **values) if _PRESET in values else kind(**values)
            )
        except PlanError as error:
            word = re.match(r"\w*", str(error))  # messages begin with the field
            at = self.given.get(word[0], self.at) if word else self.at
            raise PlanError(f"{at.place}{error}") from None

    def _kind(self) -> Any:
        if self.name == "text":
            return TextSpec
        from datapipe.decode.spec import ImageSpec  # imports torch

        return ImageSpec


def from_folder(path: str, folder: str | None) -> str:
    """Return a path as seen from a file in `folder`; URLs and absolute paths stay."""
    if "://" in path or "::" in path:
        return path
    path = expand_home(path)
    return os.path.join(folder, path) if folder else path


def _names_file(name: str, value: str) -> bool:
    """Return True if a tokenizer or template is given by its path."""
    return name == "tokenizer" or not (value in BUILT_IN or is_jinja(value))
