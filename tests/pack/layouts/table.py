"""Form of a layout and of what is expected of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .raw import Raw

N = range(8)
"""Numbers of the samples of most layouts."""


class Has:
    """Text that has some words, in their order."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and bool(
            re.search(".*".join(map(re.escape, self.words)), other, re.DOTALL)
        )

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        return f"Has{self.words!r}"


Words = str | Has


@dataclass(frozen=True)
class Sample:
    """Sample as training should see it.

    Attributes:
        images: numbers of its images, in order.
        turns: (role, text). A text without `<image>` says nothing of the images' positions.
    """

    images: tuple[int, ...]
    turns: tuple[tuple[str, Words], ...]


def captioned(number: int | tuple[int, ...], text: Words) -> Sample:
    """Return the sample of an image and its caption, which is learnt."""
    return chat(number, "", text)


def chat(number: int | tuple[int, ...], *texts: Words, system: str = "") -> Sample:
    """Return the sample of a conversation: what the user and the assistant say by turns."""
    numbers = number if isinstance(number, tuple) else (number,)
    roles = ("user", "assistant") * (len(texts) // 2)
    turns = tuple(zip(roles, texts, strict=True))
    return Sample(numbers, ((("system", system),) if system else ()) + turns)


TEXTS = [captioned(n, f"text {n}") for n in N]
"""Samples of most layouts of captions."""

Said = str | tuple[str, int]
"""Pattern that a line of the report must match; with a number, a line that also has it."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Fate of a layout that is packed.

    Attributes:
        samples: all of them, in any order.
        rejects: number of rejects.
        says: of the notes, warnings or rejects.
    """

    samples: tuple[Sample, ...]
    rejects: int = 0
    says: tuple[Said, ...] = ()


@dataclass(frozen=True)
class Refused:
    """Fate of a layout that is refused, or whose inputs are all rejects, with these patterns."""

    says: tuple[str, ...]


def packed(*samples: Sample, rejects: int = 0, says: tuple[Said, ...] = ()) -> Packed:
    return Packed(samples=samples, rejects=rejects, says=says)


def refused(*says: str) -> Refused:
    return Refused(says)


Fate = Packed | Refused
Make = Callable[[Raw], Fate | tuple[Fate, ...]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One layout.

    Attributes:
        name: of the layout.
        make: function that writes it and returns its fate, or several fates, each as good.
        is_source: True if it is one of the real sources.
        options: of `pack_dataset`, if a user needs any. Without them the error, or a warning, says
            to give them.
    """

    name: str
    make: Make
    is_source: bool = False
    options: dict[str, Any] = field(default_factory=dict)


LAYOUTS: list[Layout] = []


def layout(name: str, is_source: bool = False, **options: Any) -> Callable[[Make], Make]:
    """Add a function to the layouts."""

    def add(make: Make) -> Make:
        LAYOUTS.append(Layout(name=name, make=make, is_source=is_source, options=options))
        return make

    return add


source = partial(layout, is_source=True)
"""Adds a function to the real sources."""
