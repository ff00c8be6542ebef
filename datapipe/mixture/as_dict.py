"""Mixtures written down for JSON, as `Mixture.of` reads them."""

from __future__ import annotations

import os
from dataclasses import MISSING, fields
from typing import Any

from datapipe.mixture.spec import Child, Mixture, MixtureGroup
from datapipe.text.spec import TextSpec


def mixture_dict(mixture: Mixture) -> dict[str, Any]:
    """Return a dict of what differs from the defaults.

    Datasets are a list, because their order matters and JSON may be written with sorted keys.
    """
    made: dict[str, Any] = {"datasets": [_child(child) for child in mixture.children]}
    if mixture.weights != "samples":
        made["weights"] = mixture.weights
    if mixture.epoch != "longest":
        made["epoch"] = str(mixture.epoch)
    if mixture.schedule:
        made["schedule"] = [
            {"from": str(change.start), "weights": dict(change.weights)}
            | ({"over": str(change.over)} if change.over else {})
            for change in mixture.schedule
        ]
    if mixture.validation:
        made["validation"] = mixture_dict(mixture.validation)
    return made


def _child(child: Child) -> dict[str, Any]:
    made: dict[str, Any] = {"name": child.name}
    if isinstance(child, MixtureGroup):
        made |= {"weight": child.weight, "repeat": child.repeat}
        made["datasets"] = [_child(inner) for inner in child.children]
    else:
        made |= {name: getattr(child, name) for name in ("path", "weight", "repeat")}
        made |= {"limit": child.limit, "where": child.where, "text": _text(child.text)}
        if child.image is not None:
            made["image"] = _plain_fields(child.image)
    return {name: value for name, value in made.items() if value is not None}


def _text(text: TextSpec | None) -> dict[str, Any] | None:
    """Return the fields of a `TextSpec`; None if JSON cannot hold them."""
    if text is None:
        return None
    made = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in _plain_fields(text).items()
    }
    return made if all(isinstance(value, str | int) for value in made.values()) else None


def _plain_fields(spec: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults; tuples as lists, dtypes by name."""
    made = {}
    for item in fields(spec):
        value = getattr(spec, item.name)
        if item.default is MISSING or value != item.default:
            made[item.name] = _plain(value)
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return value
