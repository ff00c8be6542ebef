"""Parser of mixtures: one for dicts and files, with the location of what is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import NoneType
from typing import Any, get_args

from datapipe.declared import declared_types, shorten
from datapipe.errors import PlanError
from datapipe.index.where import parse_where
from datapipe.mixture.located import (
    DATASET_KEYS,
    GROUP_KEYS,
    MIXTURE_KEYS,
    LocatedValue,
    keys_of,
    located,
    read_file,
)
from datapipe.mixture.spec import (
    KEYS,
    Child,
    DatasetPath,
    Mixture,
    MixtureDataset,
    MixtureGroup,
    Weight,
    WeightChange,
    check_changed,
)
from datapipe.paths import expand_home
from datapipe.quantities import Amount
from datapipe.text.spec import TextSpec
from datapipe.text.templates import BUILT_IN, is_jinja

_VALIDATION_KEYS = tuple(key for key in MIXTURE_KEYS if key not in ("schedule", "validation"))
_CHANGE_KEYS = keys_of(WeightChange)
_FIELDS = {key: name for name, key in KEYS.items()}
_SPECS = ("text", "image")
_SUCH_AS = "such as `captions/: 0.7`"
_DTYPES = ("uint8", "float32", "bfloat16")


def parse_mapping(mixture: Any) -> Mixture:
    """Return the mixture of a dict; `PlanError` has the keys that lead to a wrong value."""
    if not isinstance(mixture, Mapping):
        raise PlanError(
            f"mixture {shorten(mixture)}: give a Mixture or a dict, such as "
            '{"captions/": 0.7, "chats/": 0.3}'
        )
    return _mixture(located(mixture), MIXTURE_KEYS, _Inherited())


def parse_file(path: str | os.PathLike[str]) -> Mixture:
    """Return the mixture of a YAML or JSON file; `PlanError` has the line of a wrong value."""
    name = os.fspath(path)
    return _mixture(read_file(name), MIXTURE_KEYS, _Inherited(os.path.dirname(name)))


def as_dict(spec: Any) -> dict[str, Any]:
    """Return the fields of a mixture, or of a part of one, that differ from their defaults.

    Datasets are a list, because their order matters and JSON may be written with sorted keys.
    """
    made = {}
    for item in fields(spec):
        value = getattr(spec, item.name)
        if item.compare and value != item.default and _fits_json(value):
            made[KEYS.get(item.name, item.name)] = _json_value(value)
    return made


def _fits_json(value: Any) -> bool:
    values = as_dict(value).values() if isinstance(value, TextSpec) else ()
    return all(isinstance(part, str | int | dict) for part in values)


def _json_value(value: Any) -> Any:
    if isinstance(value, Amount | os.PathLike):
        return str(value)
    if is_dataclass(value):
        return as_dict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_json_value(item) for item in value]
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return value


@dataclass(frozen=True)
class _Inherited:
    """Folder, text and image that a group or dataset has from those around it."""

    folder: str | None = None  # relative paths are relative to it, or stay if it is None
    # Fields of `text` and `image` that were given so far, at the innermost place of each.
    specs: Mapping[str, LocatedValue] = field(default_factory=dict)

    def within(self, entries: Mapping[str, LocatedValue]) -> _Inherited:
        """Add the `text` and `image` of a group or dataset, field by field."""
        specs = dict(self.specs)
        for name in _SPECS:
            if name in entries:
                before = specs[name].value if name in specs else {}
                merged = _spec_fields(name, before, entries[name])
                specs[name] = replace(entries[name], value=merged)
        return replace(self, specs=specs)

    def path(self, path: str) -> str:
        """Return a path as seen from the folder; URLs and absolute paths stay."""
        if "://" in path or "::" in path:
            return path
        path = expand_home(path)
        return os.path.join(self.folder, path) if self.folder else path

    def spec(self, name: str) -> Any:
        """Return the `TextSpec` or `ImageSpec` of a dataset; None if none was given."""
        at = self.specs.get(name)
        if at is None:
            return None
        values = {key: item.plain() for key, item in at.value.items()}
        if name == "text":
            if "tokenizer" not in values:
                at.refuse(
                    "text without a tokenizer; add tokenizer: tokenizer.json here, or to the text: "
                    "of the whole mixture"
                )
            for key in ("tokenizer", "template"):
                value = values.get(key)
                is_named = key == "template" and (value in BUILT_IN or is_jinja(value or ""))
                if isinstance(value, str) and value and not is_named:
                    values[key] = self.path(value)
        elif values.get("dtype") in _DTYPES:
            import torch

            values["dtype"] = getattr(torch, values["dtype"])
        kind = _spec_class(name)
        try:
            preset = values.pop("preset", None) if name == "image" else None
            return kind(**values) if preset is None else kind.preset(preset, **values)
        except PlanError as error:
            word = re.match(r"\w*", str(error))  # messages begin with the field
            place = at.value.get(word[0], at).place if word else at.place
            raise PlanError(f"{place}{error}") from None


def _spec_fields(
    name: str, before: dict[str, LocatedValue], at: LocatedValue
) -> dict[str, LocatedValue]:
    """Return the fields of a spec with those of an inner one; a preset or object replaces all."""
    kind = _spec_class(name)
    known = [item.name for item in fields(kind)]
    if isinstance(at.value, kind):
        return {key: replace(at, value=getattr(at.value, key)) for key in known}
    own = at.mapping(known if kind is TextSpec else ["preset", *known], name)
    return own if "preset" in own else {**before, **own}


def _spec_class(name: str) -> Any:
    if name == "text":
        return TextSpec
    from datapipe.decode.spec import ImageSpec  # imports torch

    return ImageSpec


def _mixture(root: LocatedValue, known: tuple[str, ...], inherited: _Inherited) -> Mixture:
    """Return a mixture or its validation, which may have the options `known`."""
    if not isinstance(root.value, dict):
        root.refuse(f"a mixture is a mapping; write datasets, {_SUCH_AS}")
    entries = {"datasets": root}  # the short form
    if "datasets" in root.value:
        entries = root.mapping(known, "a mixture")
    elif (key := next((key for key in root.value if key in MIXTURE_KEYS), None)) is not None:
        root.value[key].refuse(
            f"{key!r} is an option, but datasets: is missing; put the datasets under datasets:, or "
            f"write {key + '/'!r} if it is a folder"
        )
    inherited = inherited.within(entries)
    children = _children(entries["datasets"], inherited)
    options = _take(entries, Mixture)
    if "validation" in entries:
        options["validation"] = _mixture(entries["validation"], _VALIDATION_KEYS, inherited)
    made = Mixture(children=children, **options)
    if "schedule" in entries:
        made = replace(made, schedule=_schedule(entries["schedule"], made.has_weight))
    return made


def _children(at: LocatedValue, inherited: _Inherited) -> tuple[Child, ...]:
    if not isinstance(at.value, dict | list):
        at.refuse_value(f"give a mapping or list of datasets, {_SUCH_AS}")
    if not at.value:
        at.refuse(f"there is no dataset in it; give one, {_SUCH_AS}")
    if isinstance(at.value, list):
        return tuple(_child(None, item, inherited) for item in at.value)
    return tuple(_child(key, item, inherited) for key, item in at.value.items())


def _child(key: str | None, item: LocatedValue, inherited: _Inherited) -> Child:
    """Return a dataset or group of a mapping, or of a list, where it has no key."""
    entries = _entries(key, item)
    kind = MixtureGroup if "datasets" in entries else MixtureDataset
    if key is None:
        needed, what = ("name", "a group") if kind is MixtureGroup else ("path", "a dataset")
        if needed not in entries:
            item.refuse(f"{what} in a list has no {needed}; add {needed}:")
        key = str(entries[needed].take(DatasetPath))
    options = {"name": key.rstrip("/") or key, "place": item.place, **_take(entries, kind)}
    if "weight" not in options:
        options.setdefault("repeat", 1.0)
    inherited = inherited.within(entries)
    if kind is MixtureGroup:
        return MixtureGroup(children=_children(entries["datasets"], inherited), **options)
    if "where" in options:
        try:
            parse_where(options["where"])
        except PlanError as error:
            entries["where"].refuse(str(error))
    options["path"] = inherited.path(options.get("path", key))
    return MixtureDataset(**options, text=inherited.spec("text"), image=inherited.spec("image"))


def _entries(key: str | None, item: LocatedValue) -> dict[str, LocatedValue]:
    value = item.value
    if isinstance(value, dict):
        if "datasets" in value:
            return item.mapping(GROUP_KEYS, "a group")
        return item.mapping(DATASET_KEYS, "a dataset")
    if key is None:
        return {"path": item}
    if value is None:
        return {}
    return {"repeat" if isinstance(value, str) and value.strip().endswith("x") else "weight": item}


def _take(entries: Mapping[str, LocatedValue], kind: type) -> dict[str, Any]:
    """Return the plain values that were given, by the names of their fields."""
    given = {_FIELDS.get(key, key): item for key, item in entries.items() if key not in _SPECS}
    types = _value_types(kind)
    return {name: item.take(types[name]) for name, item in given.items() if name in types}


@cache
def _value_types(kind: type) -> dict[str, Any]:
    """Return the types of the fields that are plain values; None is not given, but left out."""
    types = {}
    for name, declared in declared_types(kind).items():
        if name not in ("children", "schedule", "validation", "place"):
            types[name] = get_args(declared)[0] if NoneType in get_args(declared) else declared
    return types


def _schedule(at: LocatedValue, has_weight: Mapping[str, bool]) -> tuple[WeightChange, ...]:
    if not isinstance(at.value, list) or not at.value:
        at.refuse_value(f"give a list of changes with {', '.join(_CHANGE_KEYS)}")
    changes: list[WeightChange] = []
    for number, item in enumerate(at.value):
        entries = item.mapping(_CHANGE_KEYS, "a change of a schedule")
        if number and "from" not in entries:
            item.refuse("only the first change may be without from:; add the amount it begins at")
        amounts = {key: entries[key] for key in entries if key != "weights"}
        options = {"start": 0, **_take(amounts, WeightChange)}
        weights = entries.get("weights")
        if weights is None or not isinstance(weights.value, dict) or not weights.value:
            (weights or item).refuse(
                "a change needs new weights; add weights: with names of datasets or groups"
            )
        taken: dict[str, float] = {}
        for key, weight in weights.value.items():
            name = key if key in has_weight else key.rstrip("/")
            check_changed(name, has_weight, weight.place)
            if name in taken:
                weight.refuse(f"{shorten(name)} is given twice; leave one out")
            taken[name] = weight.take(Weight)
        change = WeightChange(weights=taken, **options)
        before = changes[-1].start if changes else None
        if before and before.unit == change.start.unit and before.number >= change.start.number:
            entries["from"].refuse(
                f"{change.start} is not after {before} of the change before; give changes in the "
                "order of the run"
            )
        changes.append(change)
    return tuple(changes)
