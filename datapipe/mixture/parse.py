"""Parser of mixtures: one for dicts and files, with the location of what is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import reduce
from operator import or_
from typing import Any, get_args

from datapipe.declared import declared_types, shorten
from datapipe.errors import PlanError
from datapipe.index.where import parse_where
from datapipe.mixture.located import Located, located
from datapipe.mixture.spec import (
    ALIASES,
    Child,
    DatasetPath,
    Mixture,
    MixtureDataset,
    MixtureGroup,
    Weight,
    WeightChange,
    check_changed,
)
from datapipe.mixture.spec_fields import SpecFields, from_folder
from datapipe.mixture.yaml_file import read_file

_SPECS = (SpecFields("text"), SpecFields("image"))


def _keys(kind: type[Any]) -> tuple[str, ...]:
    """Return the options that a part of a mixture may have, in files and dicts."""
    names = [ALIASES.get(item.name, item.name) for item in fields(kind) if item.compare]
    return tuple(dict.fromkeys([*names, "text", "image"]))


DATASET_KEYS, GROUP_KEYS, MIXTURE_KEYS = map(_keys, (MixtureDataset, MixtureGroup, Mixture))
VALIDATION_KEYS = tuple(key for key in MIXTURE_KEYS if key not in ("schedule", "validation"))
CHANGE_KEYS = ("from", "weights", "over")

Specs = tuple[SpecFields, ...]
"""Fields of `TextSpec` and `ImageSpec`."""


def parse_mapping(mixture: Any) -> Mixture:
    """Return the mixture of a dict.

    Raises:
        PlanError: a value is wrong, with the keys that lead to it.
    """
    if not isinstance(mixture, Mapping):
        raise PlanError(
            f"mixture {shorten(mixture)}: give a Mixture or a dict, such as "
            '{"captions/": 0.7, "chats/": 0.3}'
        )
    return _Parser(folder=None).mixture(located(mixture), MIXTURE_KEYS, _SPECS)


def parse_file(path: str | os.PathLike[str]) -> Mixture:
    """Return the mixture of a YAML or JSON file.

    Raises:
        PlanError: the file cannot be read, holds raw data, or a value is wrong, with its line.
    """
    name = os.fspath(path)
    return _Parser(os.path.dirname(name)).mixture(read_file(name), MIXTURE_KEYS, _SPECS)


class _Parser:
    """Parser of one mixture; relative paths are relative to `folder`, or stay if it is None."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def mixture(self, root: Located, known: tuple[str, ...], specs: Specs) -> Mixture:
        """Return a mixture or its validation.

        Args:
            root: all of it.
            known: options that it may have.
            specs: text and image of its datasets, unless they give their own.
        """
        if not isinstance(root.value, dict):
            root.refuse("a mixture is a mapping; write datasets, such as `captions/: 0.7`")
        entries = _full_form(root, known)
        specs = _within(specs, entries)
        children = self._children(entries["datasets"], specs)
        options = _take(Mixture, entries, "weights", "epoch")
        if "validation" in entries:
            options["validation"] = self.mixture(entries["validation"], VALIDATION_KEYS, specs)
        made = Mixture(children=children, **options)
        if "schedule" in entries:
            made = replace(made, schedule=_schedule(entries["schedule"], made.has_weight))
        return made

    def _children(self, at: Located, specs: Specs) -> tuple[Child, ...]:
        """Return the datasets and groups of `datasets`."""
        if not isinstance(at.value, dict | list):
            raise PlanError(
                f"{at.name} {shorten(at.plain())}: give a mapping or list of datasets, such as "
                "`captions/: 0.7`"
            )
        if not at.value:
            at.refuse("there is no dataset in it; give one, such as `captions/: 0.7`")
        return tuple(self._child(key, item, specs) for key, item in at.items())

    def _child(self, key: str | None, item: Located, specs: Specs) -> Child:
        """Return a dataset or group of a mapping, or of a list, where it has no key."""
        entries = _entries(key, item)
        kind = MixtureGroup if "datasets" in entries else MixtureDataset
        if key is None:
            needed, what = ("name", "a group") if kind is MixtureGroup else ("path", "a dataset")
            if needed not in entries:
                item.refuse(f"{what} in a list has no {needed}; add {needed}:")
            key = entries[needed].take(DatasetPath)
        options = _take(kind, entries, "name", "path", "weight", "repeat", "limit", "where")
        options = {"name": key.rstrip("/") or key, "place": item.place} | options
        if "weight" not in options:
            options.setdefault("repeat", 1.0)
        specs = _within(specs, entries)
        if kind is MixtureGroup:
            return MixtureGroup(children=self._children(entries["datasets"], specs), **options)
        if "where" in options:
            try:
                parse_where(options["where"])
            except PlanError as error:
                entries["where"].refuse(str(error))
        options["path"] = from_folder(options.get("path", key), self._folder)
        options |= {spec.name: spec.make(self._folder) for spec in specs}
        return MixtureDataset(**options)


def _within(specs: Specs, entries: Mapping[str, Located]) -> Specs:
    """Return the text and image of a group or dataset."""
    return tuple(spec.extended(entries.get(spec.name)) for spec in specs)


def _take(kind: type[Any], entries: Mapping[str, Located], *names: str) -> dict[str, Any]:
    """Return the values of some fields of a class, of those that were given."""
    taken = {}
    for name, hint in declared_types(kind).items():
        at = entries.get(ALIASES.get(name, name))
        if name in names and at is not None:
            given = [each for each in get_args(hint) if each is not type(None)]
            taken[name] = at.take(reduce(or_, given) if type(None) in get_args(hint) else hint)
    return taken


def _full_form(root: Located, known: tuple[str, ...]) -> dict[str, Located]:
    """Return the entries of a mixture. One without `datasets` is a mapping of datasets."""
    if "datasets" in root.value:
        return root.mapping(known, "a mixture")
    for key, item in root.value.items():
        if key in MIXTURE_KEYS:
            item.refuse(
                f"{key!r} is an option, and there is no datasets: beside it; put the datasets "
                f"under datasets:, or write {key + '/'!r} if it is a folder"
            )
    return {"datasets": root}


def _entries(key: str | None, item: Located) -> dict[str, Located]:
    """Return the options of a dataset or group, in full or in short form."""
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


def _schedule(at: Located, has_weight: Mapping[str, bool]) -> tuple[WeightChange, ...]:
    if not isinstance(at.value, list) or not at.value:
        raise PlanError(
            f"{at.name} {shorten(at.plain())}: give a list of changes with {', '.join(CHANGE_KEYS)}"
        )
    changes: list[WeightChange] = []
    for number, item in enumerate(at.value):
        entries = item.mapping(CHANGE_KEYS, "a change of a schedule")
        if number and "from" not in entries:
            item.refuse("only the first change may be without from:; add the amount it begins at")
        amounts = {"start": 0} | _take(WeightChange, entries, "start", "over")
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
        change = WeightChange(weights=taken, **amounts)
        before = changes[-1].start if changes else None
        if before and before.unit == change.start.unit and before.number >= change.start.number:
            entries["from"].refuse(
                f"{change.start} is not after {before} of the change before; give changes in the "
                "order of the run"
            )
        changes.append(change)
    return tuple(changes)
