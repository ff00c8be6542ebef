"""Mixtures written down for JSON, as `Mixture.of` reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from datapipe.mixture.spec import ALIASES
from datapipe.quantities import Amount
from datapipe.text.spec import TextSpec


def as_dict(spec: Any) -> dict[str, Any]:
    """Return the fields of a mixture, or of a part of one, that differ from their defaults.

    Datasets are a list, because their order matters and JSON may be written with sorted keys.
    """
    made = {}
    for item in fields(spec):
        value = getattr(spec, item.name)
        if item.compare and value != item.default and _fits_json(value):
            made[ALIASES.get(item.name, item.name)] = _plain(value)
    return made


def _fits_json(value: Any) -> bool:
    plain = as_dict(value).values() if isinstance(value, TextSpec) else ()
    return all(isinstance(part, str | int | dict) for part in plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Amount | os.PathLike):
        return str(value)
    if is_dataclass(value):
        return as_dict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return value
