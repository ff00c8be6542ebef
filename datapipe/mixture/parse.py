"""Parser of mixtures: one for dicts and files, with the location of what is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from datapipe.declared import check_value, shorten
from datapipe.errors import PlanError
from datapipe.index.where import parse_where
from datapipe.mixture.located import Located, located
from datapipe.mixture.raw_records import refuse_json, refuse_records
from datapipe.mixture.spec import (
    Child,
    DatasetPath,
    Limit,
    Mixture,
    MixtureDataset,
    MixtureGroup,
    Name,
    WeightChange,
    WeightsBy,
    check_changed,
    mixed_message,
)
from datapipe.mixture.spec_fields import SpecFields, from_folder, make_image, make_text
from datapipe.mixture.written import (
    ShortForm,
    WrittenAmount,
    WrittenEpoch,
    WrittenRepeat,
    WrittenWeight,
)
from datapipe.mixture.yaml_file import read_file
from datapipe.quantities import Amount

T = TypeVar("T")
Entry = tuple[str, Located, dict[str, Located]]
"""A dataset or group before its checks: its key or path, the whole of it, and its options."""

VALIDATION_KEYS = ("datasets", "weights", "epoch", "text", "image")
MIXTURE_KEYS = (*VALIDATION_KEYS, "schedule", "validation")
GROUP_KEYS = ("name", "weight", "repeat", "datasets", "text", "image")
DATASET_KEYS = ("name", "path", "weight", "repeat", "limit", "where", "text", "image")
CHANGE_KEYS = ("from", "weights", "over")


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
    return _Parser(None).mixture(located(mixture), MIXTURE_KEYS)


def parse_file(path: str | os.PathLike[str]) -> Mixture:
    """Return the mixture of a YAML or JSON file.

    Raises:
        PlanError: the file cannot be read, holds raw data, or a value is wrong, with its line.
    """
    name = os.fspath(path)
    if name.endswith(".json"):  # raw records of a gigabyte would take YAML minutes
        refuse_json(name)
    root = read_file(name)
    refuse_records(name, root.plain())
    return _Parser(os.path.dirname(name)).mixture(root, MIXTURE_KEYS)


@dataclass
class _Parser:
    """State of parsing: the file's folder, and the names so far with their locations.

    Attributes:
        folder: relative paths are relative to it; None leaves them as they are.
        names: place of each name of the mixture or its validation.
    """

    folder: str | None
    names: dict[str, str] = field(default_factory=dict)

    def mixture(
        self,
        root: Located,
        known: tuple[str, ...],
        text: SpecFields | None = None,
        image: SpecFields | None = None,
    ) -> Mixture:
        """Return a mixture or its validation; `known` are the options that it may have."""
        if not isinstance(root.value, dict):
            root.refuse("a mixture is a mapping; write datasets, such as `captions/: 0.7`")
        entries = _full_form(root, known)
        text = (text or SpecFields()).text(entries.get("text"))
        image = (image or SpecFields()).image(entries.get("image"))
        children = self.children(entries["datasets"], text, image)
        options: dict[str, Any] = {}
        if "weights" in entries:
            options["weights"] = entries["weights"].take(WeightsBy)
        if "epoch" in entries:
            options["epoch"] = entries["epoch"].take(WrittenEpoch)
        if "validation" in entries:
            parser = _Parser(self.folder)
            validation = parser.mixture(entries["validation"], VALIDATION_KEYS, text, image)
            options["validation"] = validation
        made = Mixture(children=children, **options)
        if "schedule" in entries:
            made = replace(made, schedule=_schedule(entries["schedule"], made.has_weight))
        return made

    def children(self, at: Located, text: SpecFields, image: SpecFields) -> tuple[Child, ...]:
        """Return the datasets and groups of `datasets`; `text` and `image` are their defaults."""
        if not isinstance(at.value, dict | list):
            raise PlanError(
                f"{at.name} {shorten(at.plain())}: give a mapping or list of datasets, such as "
                "`captions/: 0.7`"
            )
        read = [_entry(key, item) for key, item in at.items()]
        if not read:
            at.refuse("there is no dataset in it; give one, such as `captions/: 0.7`")
        _check_shares(read)
        weighted = "weight" in read[0][2]
        return tuple(
            self.child(key, item, entries, weighted, text, image) for key, item, entries in read
        )

    def child(
        self,
        key: str,
        item: Located,
        entries: dict[str, Located],
        weighted: bool,
        text: SpecFields,
        image: SpecFields,
    ) -> Child:
        """Return a dataset or group with a weight, or with a repeat."""
        name = self.name(key, item, entries)
        share: dict[str, Any] = {} if weighted else {"repeat": 1.0}
        if weighted:
            at = entries["weight"]
            share["weight"] = at.take(ShortForm if at is item else WrittenWeight)
        elif "repeat" in entries:
            share["repeat"] = entries["repeat"].take(WrittenRepeat)
        text = text.text(entries.get("text"))
        image = image.image(entries.get("image"))
        if "datasets" in entries:
            children = self.children(entries["datasets"], text, image)
            return _at(item, lambda: MixtureGroup(name=name, children=children, **share))
        path = entries["path"].take(DatasetPath) if "path" in entries else key
        if "limit" in entries:
            share["limit"] = entries["limit"].take(Limit)
        if "where" in entries:
            where = share["where"] = entries["where"].take(str)
            _at(entries["where"], lambda: parse_where(where))
        share |= {"text": make_text(text, self.folder), "image": make_image(image)}
        path = from_folder(path, self.folder)
        if self.folder is not None:
            share["place"] = item.place  # keys of a dict lead to the name, which errors have
        return _at(item, lambda: MixtureDataset(name=name, path=path, **share))

    def name(self, key: str, item: Located, entries: dict[str, Located]) -> str:
        """Return the name of a dataset or group, which is new."""
        at = entries.get("name", item)
        name = _name_of(key, entries)
        if "name" in entries:
            name = at.take(Name)
        else:
            _at(at, lambda: check_value("name", name, Name, PlanError))
        if name in self.names:
            first = self.names[name].removesuffix(": ")
            at.refuse(
                f"the name {shorten(name)} is given twice, first in {first}; give one of them a "
                "name of its own with name:"
            )
        self.names[name] = at.place
        return name


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


def _entry(key: str | None, item: Located) -> Entry:
    """Return a dataset or group of a mapping or list: its key or path, and its options."""
    value = item.value
    if isinstance(value, dict):
        group = "datasets" in value
        what, needed = ("a group", "name") if group else ("a dataset", "path")
        entries = item.mapping(GROUP_KEYS if group else DATASET_KEYS, what)
        if key is None and needed not in entries:
            item.refuse(f"{what} in a list has no {needed}; add {needed}:")
        return key if key is not None else entries[needed].take(DatasetPath), item, entries
    if key is None:
        return item.take(DatasetPath), item, {}
    if value is None:
        return key, item, {}
    if isinstance(value, str) and value.strip().endswith("x"):
        return key, item, {"repeat": item}
    return key, item, {"weight": item}


def _check_shares(read: list[Entry]) -> None:
    """Refuse a weight beside a repeat."""
    for key, item, entries in read:
        if "weight" in entries and "repeat" in entries:
            item.refuse(f"{shorten(key)} has a weight and a repeat; give one of them")
    weighted = next((one for one in read if "weight" in one[2]), None)
    repeated = next((one for one in read if "weight" not in one[2]), None)
    if weighted and repeated:
        names = (_name_of(key, entries) for key, _, entries in (weighted, repeated))
        later = max(weighted, repeated, key=read.index)
        later[1].refuse(mixed_message(*names))


def _name_of(key: str, entries: dict[str, Located]) -> str:
    """Return the name that a dataset or group was given, or its key or path without a slash."""
    given = entries["name"].value if "name" in entries else None
    return given if isinstance(given, str) else key.rstrip("/") or key


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
        start = entries["from"].take(WrittenAmount) if "from" in entries else Amount(0, "samples")
        over = entries["over"].take(WrittenAmount) if "over" in entries else None
        weights = entries.get("weights")
        if weights is None or not isinstance(weights.value, dict) or not weights.value:
            (weights or item).refuse(
                "a change needs new weights; add weights: with names of datasets or groups"
            )
        taken: dict[str, float] = {}
        for key, weight in weights.value.items():
            name = key if key in has_weight else key.rstrip("/")
            _at(weight, partial(check_changed, name, has_weight))
            if name in taken:
                weight.refuse(f"{shorten(name)} is given twice; leave one out")
            taken[name] = weight.take(WrittenWeight)
        change = WeightChange(start=start, weights=taken, over=over)
        before = changes[-1].start if changes else None
        if before and before.unit == change.start.unit and before.number >= change.start.number:
            entries["from"].refuse(
                f"{change.start} is not after {before} of the change before; give changes in the "
                "order of the run"
            )
        changes.append(change)
    return tuple(changes)


def _at(at: Located, make: Callable[[], T]) -> T:
    """Return what `make` returns; its errors begin with the location."""
    try:
        return make()
    except PlanError as error:
        raise PlanError(f"{at.place}{error}") from None
