"""A mixture as a tree of groups and datasets, and its checks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from datapipe.declared import AcceptedType, Refused, Say, Word, check_fields, check_value, shorten
from datapipe.errors import PlanError
from datapipe.index.where import parse_where
from datapipe.mixture.place import Place
from datapipe.quantities import Amount, take_amount, take_percent, take_times
from datapipe.text.spec import TextSpec

if TYPE_CHECKING:
    from datapipe.decode.spec import ImageSpec


def _weight(value: float | str) -> float:
    number = take_percent(value) if isinstance(value, str) else value
    return 0.0 if number == 0 else _repeat(float(number))


def _repeat(value: float | str) -> float:
    number = take_times(value) if isinstance(value, str) else value
    # Rates are quotients and products of these numbers, which must neither vanish nor overflow.
    if not 1e-9 <= number <= 1e9:
        raise Refused
    return float(number)


def _epoch(value: int | str | Amount) -> Amount | str:
    if value in ("longest", "shortest"):
        return str(value)
    amount = take_amount(value)
    if amount.unit == "steps" or amount.number < 1:
        raise Refused
    return amount


def _limit(value: int | str) -> int | str:
    if isinstance(value, str) and "%" in value:
        if not 0 < take_percent(value) <= 1:
            raise Refused
        return value.strip()
    amount = take_amount(value)
    if amount.unit != "samples" or amount.number < 1:
        raise Refused
    return amount.number


def _name(value: str) -> str:
    if not value.strip() or "\n" in value:
        raise Refused
    return value


def _name_or_none(value: str) -> str:
    return _name(value) if value else value


def _image(value: Any) -> ImageSpec:
    if value is None:  # before torch is imported
        raise Refused

    from datapipe.decode.spec import ImageSpec

    if not isinstance(value, ImageSpec):
        raise Refused
    return value


_AMOUNT = int | str | Amount
Weight = Annotated[
    float,
    AcceptedType(float | str),
    _weight,
    Say("a weight (0, or from 1e-9 to 1e9) such as 0.7, '5%' or '70%'"),
]
Repeat = Annotated[
    float,
    AcceptedType(float | str),
    _repeat,
    Say("a number of times from 1e-9 to 1e9, such as 2, '2x' or '0.5x'"),
]
Epoch = Annotated[
    Literal["longest", "shortest"] | Amount,
    AcceptedType(_AMOUNT),
    _epoch,
    Say("'longest', 'shortest', or an amount such as '2M samples' or '4B tokens'"),
]
RunAmount = Annotated[
    Amount,
    AcceptedType(_AMOUNT),
    take_amount,
    Say("an amount such as '100k steps', '2M samples' or '1.5B tokens', or a number of samples"),
]
Limit = Annotated[
    int | str, _limit, Say("a number of samples from 1, such as 5000, '5k samples' or '10%'")
]
Name = Annotated[Word, _name, Say("a name of one line")]
DatasetName = Annotated[Word, _name_or_none, Say("a name of one line")]
DatasetPath = Annotated[str | os.PathLike[str], os.fspath, Say("a folder, shards or a URL")]
WeightsBy = Literal["samples", "tokens"]
AnyImage = Annotated["ImageSpec", _image, Say("an ImageSpec")]


@dataclass(frozen=True, kw_only=True)
class MixtureDataset:
    """A dataset of a mixture. It has either a weight or a repeat."""

    # Unique in the mixture. It names the dataset's own order, so a dataset that is renamed is
    # shuffled in another way. Empty for one dataset that is given without a mixture.
    name: DatasetName
    path: DatasetPath  # a folder, a list of shards or a URL
    # Its share among the datasets beside it, which need not sum to 1. 0 is for a dataset that a
    # schedule lets in later.
    weight: Weight | None = None
    # Times that each of its samples is drawn, as compared to the datasets beside it
    repeat: Repeat | None = None
    # Samples that take part at most, after `where`; or a share of them, such as "10%"
    limit: Limit | None = None
    # An expression over the columns of the index; the samples for which it is true
    where: str | None = None
    text: TextSpec | None = None  # None takes the one that `make_loader` was given
    image: AnyImage | None = None  # None takes the one that `make_loader` was given
    place: Place = field(default=Place(), repr=False, compare=False)  # begins messages about it

    def __post_init__(self) -> None:
        _check_part(self)
        if self.where is not None:
            try:
                parse_where(self.where)
            except PlanError as error:
                self.place.at("where").refuse(str(error))

    @property
    def prefix(self) -> str:
        """Beginning of messages about the dataset; empty if it has no name."""
        return f"{self.place}dataset {shorten(self.name)} of the mixture: " if self.name else ""

    def limited(self, samples: int) -> int:
        """Return how many of `samples` take part, which is at least 1 of several."""
        if self.limit is None:
            return samples
        if isinstance(self.limit, int):
            return min(samples, self.limit)
        share: Fraction = take_percent(self.limit)
        return min(samples, max(1, int(share * samples)))


@dataclass(frozen=True, kw_only=True)
class MixtureGroup:
    """Datasets and groups that share a weight or a repeat."""

    name: Name  # unique in the mixture
    # Its share among those beside it. `children` divide it by their own weights.
    weight: Weight | None = None
    # Times that each sample of it is drawn, as compared to those beside it
    repeat: Repeat | None = None
    children: tuple[Child, ...]  # datasets and groups, which all have weights or all have repeats
    place: Place = field(default=Place(), repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_part(self)
        _check_children(self.children)


Child = MixtureDataset | MixtureGroup


@dataclass(frozen=True, kw_only=True)
class WeightChange:
    """An entry of a schedule: other weights from some point of the run on."""

    start: RunAmount  # the point of the run, as an amount from its beginning
    # New weights by name of a dataset or group. The others keep theirs.
    weights: Mapping[str, float]
    over: RunAmount | None = None  # the shares change linearly over this amount; None is at once
    place: Place = field(default=Place(), repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Datasets that are drawn from by weights: a tree of datasets and groups.

    `Mixture.of` makes one from a dict, `Mixture.load` from a YAML or JSON file.

    Attributes:
        children: datasets and groups, which all have weights or all have repeats.
        weights: "samples" or "tokens": a dataset's share of the samples, or of the tokens.
        epoch: "longest" ends when every dataset was drawn as often as it has samples, "shortest"
            before the first is drawn more often than that; or an amount of samples or tokens. A
            mixture of repeats alone ends, with "longest", after the sum of repeats times samples.
        schedule: changes of weights in the order of their starts.
        validation: datasets to validate on.

    Raises:
        PlanError: a value is not one of these, a name is given twice, weights and repeats are
            mixed, or the schedule names a dataset that has no weight.

    Examples:
        >>> mixture = datapipe.Mixture.of({"captions/": 0.7, "chats/": 0.3})
        >>> [(dataset.name, dataset.weight) for dataset in mixture.datasets]
        [('captions', 0.7), ('chats', 0.3)]
    """

    children: tuple[Child, ...]
    weights: WeightsBy = "samples"
    epoch: Epoch = "longest"
    schedule: tuple[WeightChange, ...] = ()
    validation: Mixture | None = None
    place: Place = field(default=Place(), repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_fields(self)
        _check_children(self.children)
        first: dict[str, str] = {}
        for node, _ in _walk_tree(self.children):
            if len(self.children) > 1 or node is not self.children[0]:  # one alone has no name
                check_value(node.place.field("name"), node.name, Name, PlanError)
            if node.name in first:
                before = first[node.name] and f", first in {first[node.name]}"
                node.place.refuse(
                    f"the name {shorten(node.name)} is given twice{before}; give one of them "
                    "another name"
                )
            first[node.name] = str(node.place).removesuffix(": ")
        has_weight = self.has_weight
        for change in self.schedule:
            for name in change.weights:
                check_changed(name, has_weight, change.place)
        for change, later in pairwise(self.schedule):
            if change.start.unit == later.start.unit and change.start.number >= later.start.number:
                later.place.at("from").refuse(
                    f"{later.start} is not after {change.start} of the change before; give changes "
                    "in the order of the run"
                )

    @staticmethod
    def of_dataset(path: str | os.PathLike[str]) -> Mixture:
        """Return the mixture of one dataset that is given without a mixture. It has no name."""
        return Mixture(children=(MixtureDataset(name="", path=path, repeat=1),))

    @property
    def is_alone(self) -> bool:
        """True for one dataset that was given without a mixture."""
        return not self.children[0].name

    @property
    def datasets(self) -> tuple[MixtureDataset, ...]:
        """All datasets of the tree, in the order in which they were given."""
        nodes = _walk_tree(self.children)
        return tuple(node for node, _ in nodes if isinstance(node, MixtureDataset))

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Names of all datasets, and of the groups that each is in, outermost first."""
        nodes = _walk_tree(self.children)
        return {node.name: inside for node, inside in nodes if isinstance(node, MixtureDataset)}

    @property
    def has_weight(self) -> dict[str, bool]:
        """Names of all datasets and groups; true for those with a weight, false with a repeat."""
        return {node.name: node.weight is not None for node, _ in _walk_tree(self.children)}

    @classmethod
    def of(cls, mixture: Mixture | Mapping[Any, Any]) -> Mixture:
        """Return the mixture that a dict describes. A mixture is returned as it is.

        Args:
            mixture: for each path a number (a weight), a string such as "2x" (a repeat) or "70%" (a
                weight), or a dict of options; or all options of a file, with `datasets`.

        Raises:
            PlanError: an option is wrong; the message names its keys, such as
                `mixture["chats"]["weight"]`.

        Examples:
            >>> mixture = datapipe.Mixture.of(
            ...     {"captions/": 0.7, "chats": {"weight": 0.3, "datasets": ["short/", "long/"]}}
            ... )
            >>> [dataset.path for dataset in mixture.datasets]
            ['captions/', 'short/', 'long/']
        """
        from datapipe.mixture.parse import parse_mapping

        return mixture if isinstance(mixture, Mixture) else parse_mapping(mixture)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Mixture:
        """Return the mixture that a YAML or JSON file describes.

        Relative paths in the file are relative to its folder. Only mappings, lists and plain values
        are read; tags, anchors and aliases are refused.

        Args:
            path: path of the file.

        Raises:
            PlanError: the file is wrong; the message names the line, such as `mixture.yaml:12: `.

        Examples:
            >>> written = Path("mixture.yaml").write_text("captions/: 2x")
            >>> datapipe.Mixture.load("mixture.yaml").datasets[0].repeat
            2.0
        """
        from datapipe.mixture.parse import parse_file

        return parse_file(check_value("path", path, os.PathLike[str] | str, PlanError))

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold and that `Mixture.of` reads back.

        A `TextSpec` with a tokenizer or function instead of names is left out, because JSON cannot
        hold it; its dataset then takes the one that `make_loader` was given.

        Examples:
            >>> mixture = datapipe.Mixture.of({"captions/": "2x"})
            >>> mixture.to_dict()["datasets"]
            [{'name': 'captions', 'path': 'captions/', 'repeat': 2.0}]
        """
        from datapipe.mixture.parse import as_dict

        return as_dict(self)


def _walk_tree(
    children: tuple[Child, ...], inside: tuple[str, ...] = ()
) -> Iterator[tuple[Child, tuple[str, ...]]]:
    """Yield all nodes and the groups that each is in, parents before their children."""
    for child in children:
        yield child, inside
        if isinstance(child, MixtureGroup):
            yield from _walk_tree(child.children, (*inside, child.name))


def _check_fields(part: Child | WeightChange | Mixture) -> None:
    check_value("place", part.place, Place, PlanError)
    check_fields(part, PlanError, part.place.field)


def _check_part(node: Child) -> None:
    _check_fields(node)
    if (node.weight is None) == (node.repeat is None):
        both = "a weight and a repeat" if node.weight is not None else "no weight and no repeat"
        node.place.refuse(f"{shorten(node.name)} has {both}; give one of them")


def _check_children(children: tuple[Child, ...]) -> None:
    if not children:
        raise PlanError("children (): give at least one dataset")
    weighted = next((child for child in children if child.weight is not None), None)
    repeated = next((child for child in children if child.repeat is not None), None)
    if weighted and repeated:
        later = max(weighted, repeated, key=children.index)
        later.place.refuse(
            f"{shorten(weighted.name)} has a weight and {shorten(repeated.name)} a "
            "repeat (1x where none is given); give all datasets of a group weights, or all "
            "repeats, or put those with repeats into a group with a weight"
        )


def check_changed(name: str, has_weight: Mapping[str, bool], place: Place) -> None:
    """Refuse a name in a schedule that is not that of a dataset or group with a weight."""
    if name not in has_weight:
        known = ", ".join(map(shorten, list(has_weight)[:8]))
        near = get_close_matches(name, has_weight, 1)
        hint = f", do you mean {near[0]!r}?" if near else ""
        more = "..." if len(has_weight) > 8 else ""
        place.refuse(f"the mixture has no {shorten(name)}{hint}; it has {known}{more}")
    if not has_weight[name]:
        place.refuse(
            f"{shorten(name)} has a repeat, and only weights can change; give weights to "
            "it and the datasets of its group, 0 to one that enters later"
        )
