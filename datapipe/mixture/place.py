"""Places of values in files and dicts, which begin messages about the values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from datapipe.declared import shorten
from datapipe.errors import PlanError

KEYS = {"children": "datasets", "start": "from"}
"""Names of fields in files and dicts, where they are not those of the classes."""
Keys = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Keys that lead to a value of a file or dict; empty for parts that are made by hand."""

    root: str = ""  # path of the file; "mixture" for a dict
    keys: Keys = ()
    lines: Mapping[Keys, int] | None = None  # line of each value of a file

    def at(self, *keys: str | int) -> Place:
        """Return the place of a value inside this one."""
        return Place(self.root, (*self.keys, *keys), self.lines)

    def __str__(self) -> str:
        """Beginning of messages: `mixture.yaml:12: `, `mixture["chats"]["weight"]: ` or nothing."""
        if self.lines is None:
            return self.root and f"{self.name}: "
        return f"{self.root}:{self.lines[self._written]}: "

    @property
    def name(self) -> str:
        """The same for messages that show the value: `mixture.yaml:12: weight`."""
        if self.lines is None:
            quoted = (f"[{key}]" if isinstance(key, int) else f'["{key:.60}"]' for key in self.keys)
            return self.root + "".join(quoted)
        parts = (f"[{key}]" if isinstance(key, int) else f" {key:.60}" for key in self.keys)
        words, first = [" mixture", *parts], len(self._written)
        while words[first].startswith("["):
            first -= 1
        return f"{self}{''.join(words[first:])[1:]}"

    @property
    def _written(self) -> Keys:
        """Keys of the innermost value that is in the file; of `a: 1`, its `weight` is not."""
        assert self.lines is not None
        keys = self.keys
        while keys not in self.lines:
            keys = keys[:-1]
        return keys

    def field(self, name: str) -> str:
        """Return the `name` of the place of a field; the name itself if made by hand."""
        return self.at(KEYS.get(name, name)).name if self.root else name

    def refuse(self, message: str) -> NoReturn:
        """Raise a `PlanError` that begins with the place."""
        raise PlanError(f"{self}{message}")

    def refuse_value(self, value: Any, remedy: str) -> NoReturn:
        """Raise a `PlanError` that shows the value."""
        raise PlanError(f"{self.name} {shorten(value)}: {remedy}")
