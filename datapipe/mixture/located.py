"""Values with the location at which a user wrote them, for messages."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from datapipe.declared import check_value, shorten
from datapipe.errors import PlanError

DEEPEST = 50  # of nested mappings and lists, well within Python's recursion limit
_LONGEST_KEY = 60  # characters in messages


@dataclass(frozen=True)
class Located:
    """A value of a mapping or file.

    Attributes:
        value: a plain value, a dict of names to `Located`, a list of `Located`, or any object.
        place: begins messages: `mixture.yaml:12: ` or `mixture["chats"]["weight"]: `.
        name: begins messages that show the value: `mixture.yaml:12: weight` or
            `mixture["chats"]["weight"]`.
    """

    value: Any
    place: str
    name: str

    def refuse(self, message: str) -> NoReturn:
        """Raise a `PlanError` that begins with the location."""
        raise PlanError(self.place + message)

    def take(self, declared: Any) -> Any:
        """Return the value as an annotation declares it.

        Raises:
            PlanError: it is none.
        """
        return check_value(self.name, self.plain(), declared, PlanError)

    def plain(self) -> Any:
        """Return the value without locations."""
        if isinstance(self.value, dict):
            return {name: item.plain() for name, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def mapping(self, known: Collection[str], what: str) -> dict[str, Located]:
        """Return the entries of a mapping whose keys are all known.

        Args:
            known: keys that `what` takes.
            what: for messages, such as "a dataset".

        Raises:
            PlanError: it is no mapping, or a key is not known.
        """
        if not isinstance(self.value, dict):
            raise PlanError(
                f"{self.name} {shorten(self.plain())}: give a mapping with {', '.join(known)}"
            )
        for key, item in self.value.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f", do you mean {near[0]!r}?" if near else ""
                item.refuse(
                    f"{shorten(key)} is no option of {what}{hint}; it has {', '.join(known)}"
                )
        return self.value

    def items(self) -> Iterator[tuple[str | None, Located]]:
        """Yield the entries of a mapping or list with their keys; None in a list."""
        if isinstance(self.value, dict):
            yield from self.value.items()
        else:
            yield from ((None, item) for item in self.value)


def located(value: Any, place: str = "mixture", depth: int = 0) -> Located:
    """Return a Python value with the keys that lead to each of its parts.

    Raises:
        PlanError: a key is no string or path, or the value is nested too deeply.
    """
    if depth > DEEPEST:
        raise PlanError(f"{place}: more than {DEEPEST} levels; give fewer groups inside each other")
    made: Any = value
    if isinstance(value, Mapping):
        made = {}
        for key, item in value.items():
            text = os.fspath(key) if isinstance(key, str | os.PathLike) else key
            if not isinstance(text, str):
                raise PlanError(f"{place} {shorten(value)}: give a dict with names as keys")
            if text in made:
                raise PlanError(f"{place}: key {shorten(text)} is given twice; leave one out")
            shown = text if len(text) <= _LONGEST_KEY else text[:_LONGEST_KEY] + "..."
            made[text] = located(item, f'{place}["{shown}"]', depth + 1)
    elif isinstance(value, list | tuple):
        made = [located(item, f"{place}[{n}]", depth + 1) for n, item in enumerate(value)]
    return Located(made, f"{place}: ", place)
