"""Parser of mixtures: one for dicts and files, with the place of what is wrong."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

from datapipe.declared import check_field, check_value, shorten
from datapipe.errors import PlanError
from datapipe.mixture.file import read_file
from datapipe.mixture.place import KEYS, Place
from datapipe.mixture.spec import (
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

_SPECS = ("text", "image")
_DEEPEST = 50  # of mappings and lists, well within Python's recursion limit
_SUCH_AS = "such as `captions/: 0.7`"


def keys_of(kind: Any) -> tuple[str, ...]:
    """Return the fields of a part of a mixture as files and dicts name them."""
    return tuple(KEYS.get(item.name, item.name) for item in fields(kind) if item.compare)


DATASET_KEYS = keys_of(MixtureDataset)
GROUP_KEYS = (*keys_of(MixtureGroup), *_SPECS)
MIXTURE_KEYS = (*keys_of(Mixture), *_SPECS)
_VALIDATION_KEYS = tuple(key for key in MIXTURE_KEYS if key not in ("schedule", "validation"))
_CHANGE_KEYS = keys_of(WeightChange)


def parse_mapping(mixture: Any) -> Mixture:
    """Return the mixture of a dict; `PlanError` has the keys that lead to a wrong value."""
    if not isinstance(mixture, Mapping):
        raise PlanError(
            f"mixture {shorten(mixture)}: give a Mixture or a dict, such as "
            '{"captions/": 0.7, "chats/": 0.3}'
        )
    return _mixture(mixture, Place("mixture"), _Inherited(), MIXTURE_KEYS)


def parse_file(path: str | os.PathLike[str]) -> Mixture:
    """Return the mixture of a YAML or JSON file; `PlanError` has the line of a wrong value."""
    name = os.fspath(path)
    value, place = read_file(name)
    return _mixture(value, place, _Inherited(os.path.dirname(name)), MIXTURE_KEYS)


def as_dict(spec: Any) -> dict[str, Any]:
    """Return the fields of a mixture, or of a part of one, that differ from their defaults.

    Datasets are a list, because their order matters and JSON may be written with sorted keys.
    """
    given = ((item, getattr(spec, item.name)) for item in fields(spec) if item.compare)
    return {
        KEYS.get(item.name, item.name): _json_value(value)
        for item, value in given
        if value != item.default and _fits_json(value)
    }


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

    folder: str = ""  # relative paths are relative to it
    # Fields of `text` and `image` that were given so far, with the innermost place of each spec
    specs: Mapping[str, tuple[Place, dict[str, Any]]] = field(default_factory=dict)

    def within(self, options: dict[str, Any], place: Place) -> _Inherited:
        """Move the `text` and `image` of a group or dataset from its options, field by field."""
        specs = dict(self.specs)
        for name in _SPECS:
            if name in options:
                given = self._fields(name, options.pop(name), place.at(name))
                before = {} if "preset" in given or name not in specs else specs[name][1]
                specs[name] = (place.at(name), {**before, **given})
        return replace(self, specs=specs)

    def _fields(self, name: str, value: Any, place: Place) -> dict[str, Any]:
        kind = _spec_class(name)
        known = [item.name for item in fields(kind)]
        if isinstance(value, kind):
            return {key: getattr(value, key) for key in known}
        given = _mapping(value, place, known if name == "text" else ["preset", *known], name)
        for key, item in given.items():
            if key in ("tokenizer", "template") and isinstance(item, str) and item:
                is_file = key == "tokenizer" or not (item in BUILT_IN or is_jinja(item))
                given[key] = self.path(item) if is_file else item
            check_field(kind, key, given[key], PlanError, place.field)
        return given

    def path(self, path: str) -> str:
        """Return a path as seen from the folder; URLs and absolute paths stay."""
        return (
            path if "://" in path or "::" in path else os.path.join(self.folder, expand_home(path))
        )

    def spec(self, name: str) -> Any:
        """Return the `TextSpec` or `ImageSpec` of a dataset; None if none was given."""
        if name not in self.specs:
            return None
        place, given = self.specs[name]
        if name == "text" and "tokenizer" not in given:
            place.refuse(
                "text without a tokenizer; add tokenizer: tokenizer.json here, or to the text: of "
                "the whole mixture"
            )
        make = _spec_class(name)
        if "preset" in given:
            make, place = make.preset, place.at("preset")
            given = {"name": given["preset"], **given}
            del given["preset"]
        try:
            return make(**given)
        except PlanError as error:
            place.refuse(str(error))


def _spec_class(name: str) -> Any:
    if name == "text":
        return TextSpec
    from datapipe.decode.spec import ImageSpec  # imports torch

    return ImageSpec


def _mapping(value: Any, place: Place, known: Collection[str], what: str) -> dict[str, Any]:
    """Return a copy of a mapping; raise a `PlanError` if one of its keys is not known."""
    if not isinstance(value, Mapping):
        place.refuse_value(value, f"give a mapping with {', '.join(known)}")
    for key in value:
        if key not in known:
            near = get_close_matches(str(key), known, 1, 0.7)
            hint = f", do you mean {near[0]!r}?" if near else ""
            place.at(str(key)).refuse(
                f"{shorten(key)} is not an option of {what}{hint}; it has {', '.join(known)}"
            )
    return dict(value)


def _mixture(value: Any, place: Place, inherited: _Inherited, known: Collection[str]) -> Mixture:
    """Return a mixture or its validation, which may have the options `known`."""
    if not isinstance(value, Mapping):
        place.refuse(f"a mixture is a mapping; write datasets, {_SUCH_AS}")
    options: dict[str, Any] = {"datasets": value}  # the short form
    inside = place
    if "datasets" in value:
        options, inside = _mapping(value, place, known, "a mixture"), place.at("datasets")
    elif (key := next((key for key in value if key in MIXTURE_KEYS), None)) is not None:
        place.at(key).refuse(
            f"{key!r} is an option, but datasets: is missing; put the datasets under datasets:, or "
            f"write {key + '/'!r} if it is a folder"
        )
    inherited = inherited.within(options, place)
    children = _children(options.pop("datasets"), inside, inherited)
    schedule = options.pop("schedule", None)
    if "validation" in options:
        validation = options["validation"], place.at("validation")
        options["validation"] = _mixture(*validation, inherited, _VALIDATION_KEYS)
    made = Mixture(children=children, place=place, **options)
    if schedule is None:
        return made
    return replace(made, schedule=_schedule(schedule, place.at("schedule"), made.has_weight))


def _children(value: Any, place: Place, inherited: _Inherited) -> tuple[Child, ...]:
    if not isinstance(value, Mapping | list | tuple) or not value:
        place.refuse_value(value, f"give a mapping or list of datasets, {_SUCH_AS}")
    if len(place.keys) > _DEEPEST:
        place.refuse(f"more than {_DEEPEST} levels; nest fewer groups")
    if not isinstance(value, Mapping):
        return tuple(_child(n, item, place.at(n), inherited) for n, item in enumerate(value))
    made = []
    for key, item in value.items():
        name = os.fspath(key) if isinstance(key, os.PathLike) else key
        if not isinstance(name, str):
            place.refuse_value(value, "give a dict with names as keys")
        made.append(_child(name, item, place.at(name), inherited))
    return tuple(made)


def _child(key: str | int, value: Any, place: Place, inherited: _Inherited) -> Child:
    """Return a dataset or group at a key of a mapping or an index of a list."""
    options: dict[str, Any]
    if isinstance(value, Mapping) and "datasets" in value:
        options = _mapping(value, place, GROUP_KEYS, "a group")
    elif isinstance(value, Mapping):
        options = _mapping(value, place, DATASET_KEYS, "a dataset")
    elif isinstance(key, int):
        options = {"path": value}
    elif value is None:
        options = {}
    else:
        is_repeat = isinstance(value, str) and value.strip().endswith("x")
        options = {"repeat" if is_repeat else "weight": value}
    if options.get("weight") is None and options.get("repeat") is None:
        options["repeat"] = 1.0
    inherited = inherited.within(options, place)
    default = None if isinstance(key, int) else key
    if "datasets" in options:
        options.setdefault("name", default and _name(default))
        children = _children(options.pop("datasets"), place.at("datasets"), inherited)
        return MixtureGroup(children=children, place=place, **options)
    path = options.pop("path", default)
    path = check_value(place.at("path").name, path, DatasetPath, PlanError)
    options.setdefault("name", _name(default or path))
    return MixtureDataset(
        path=inherited.path(path),
        place=place,
        text=inherited.spec("text"),
        image=inherited.spec("image"),
        **options,
    )


def _name(path: str) -> str:
    return path.rstrip("/") or path


def _schedule(value: Any, place: Place, has_weight: Mapping[str, bool]) -> tuple[WeightChange, ...]:
    if not isinstance(value, list | tuple) or not value:
        place.refuse_value(value, f"give a list of changes with {', '.join(_CHANGE_KEYS)}")
    for number, item in enumerate(value[1:], 1):
        if isinstance(item, Mapping) and item.get("from") is None:
            place.at(number).refuse(
                "only the first change may be without from:; add the amount it begins at"
            )
    return tuple(_change(item, place.at(n), has_weight) for n, item in enumerate(value))


def _change(value: Any, place: Place, has_weight: Mapping[str, bool]) -> WeightChange:
    options = _mapping(value, place, _CHANGE_KEYS, "a change of a schedule")
    given, inside = options.pop("weights", None), place.at("weights")
    if not isinstance(given, Mapping) or not given:
        inside.refuse_value(given, "give new weights with names of datasets or groups")
    weights: dict[str, float] = {}
    for key, weight in given.items():
        name, at = key if key in has_weight else _name(str(key)), inside.at(str(key))
        check_changed(name, has_weight, at)
        if name in weights:
            at.refuse(f"{shorten(name)} is given twice; leave one out")
        weights[name] = check_value(at.name, weight, Weight, PlanError)
    return WeightChange(
        start=options.pop("from", 0), weights=weights, over=options.pop("over", None), place=place
    )
