"""Tables that are refused: columns that could be meant in several ways, with the remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from datapipe.declared import shorten
from datapipe.errors import PackError
from datapipe.index.media import medium_of
from datapipe.pack.records.images.fields import (
    ID_NAME,
    NOT_FETCHED,
    Columns,
    is_url,
    names_files,
    url_columns,
)
from datapipe.pack.records.images.templates import named_by
from datapipe.text.preference import ANSWERS
from datapipe.text.videos import frames_remedy

_LABEL = re.compile(r"(^|_)(labels?|class(es|_?name)?|category|species|breed)$", re.IGNORECASE)
_ID = re.compile(r"(^|_)(id|uid|hash|md5|sha256|key|split)$", re.IGNORECASE)
_NAMES_SHOWN = 40
_LONGEST_NAME = 8  # characters of a word in a script without blanks, such as a class


@dataclass(kw_only=True)
class TableColumns:
    """Columns of a table whose meaning is looked for."""

    raw: Path  # the table, for messages
    columns: Columns  # the first values by column
    images: Sequence[str] = ()  # sources of the images, as a map has them
    held: Collection[str] = ()  # columns that are read for images
    joined: bool = False  # whether it is one of `--join`

    @cached_property
    def names(self) -> dict[str, str]:
        """The other columns that have values, by their names in small letters."""
        return {n.lower(): n for n, v in self.columns.items() if v and n not in self.held}

    def named(self, *names: str) -> list[str]:
        """Return the columns of these names, which are in small letters."""
        return [self.names[name] for name in names if name in self.names]

    def refusal(self, fault: str) -> PackError:
        return PackError(f"{self.raw}: {fault} (all columns: {listed(self.columns)})")

    def map(self, *text: str) -> str:
        """Return a map of the images and of such a text."""
        return ",".join([*(f"image={name}" for name in self.images), *text])

    def ambiguous(self, what: str, found: Sequence[str], example: str) -> PackError:
        """Return the error for columns `found` that could all be `what`, such as "the text".

        `example` is the part of a map that takes the text.
        """
        alone = f", or take the images alone with --map '{self.map()}'" if self.images else ""
        if len(found) == 1:
            option = f"--text-column {shlex.quote(found[0])}"
            pair = "" if example.startswith("caption=") else f", or --map '{self.map(example)}'"
            return self.refusal(
                f"no known caption column; did you mean {found[0]!r}? Give {option}{pair}{alone}"
            )
        return self.refusal(
            f"{what} may be in any of the columns {listed(found)}; say what is what, such as --map "
            f"'{self.map(example)}', or name a caption with --text-column{alone}"
        )

    def refuse_preferences(self, question: str) -> None:
        """Refuse a table that says which of two answers is better.

        `question` is the part of a map that is asked; "" if the answers hold it.
        """
        if all(name in self.names for name in ANSWERS):
            chosen, rejected = (self.names[name] for name in ANSWERS)
            example = f"{question},assistant={chosen}" if question else f"messages={chosen}"
            both = "" if self.joined else "--format preference packs both answers, and "
            raise self.refusal(
                f"the columns {chosen!r} and {rejected!r} are a preference, which answer is "
                f"better; {both}to train on the better one alone give --map "
                f"'{self.map(example)}'"
            )

    def refuse_named_images(self, *, has_turns: bool) -> None:
        """Refuse a table of text whose images are named by address or id, or that names media."""
        raw, columns = self.raw, self.columns
        alone = "pack the text alone with --image-column ''"
        ids = [name for name, values in columns.items() if ID_NAME.search(name) and values]
        template = named_by(raw, {ids[0]: columns[ids[0]]} if ids else columns)
        if template and not ids:
            raise PackError(
                f"{raw}: no column holds paths of images, and images are here whose names hold the "
                f"ids of one; take them with --image-column {template!r}, or {alone}"
            )
        urls = [] if template else url_columns(columns)
        if urls:
            raise PackError(
                f"{raw}: the images seem to be URLs (column {', '.join(map(repr, urls))}), "
                f"{NOT_FETCHED}, or {alone}"
            )
        if ids:
            example = template or f"images/{{{ids[0]}}}.jpg"
            digits = "" if template else f" (with {{{ids[0]}:012d}} for numbers of 12 digits)"
            raise PackError(
                f"{raw}: the images are named by an id (column {', '.join(map(repr, ids))}) and by "
                f"no path; say where they are, such as --image-column {example!r}{digits}, or "
                f"{alone}"
            )
        texts = ((n, v) for n, values in columns.items() for v in values if isinstance(v, str))
        media = {name: medium_of(text) for name, text in texts}
        named = [name for name, medium in media.items() if medium in ("a video", "sound")]
        if named:
            raise PackError(
                f"{raw}: the column {named[0]!r} names videos or sound, and only text and images "
                f"are packed; {'to pack the text alone, remove it' if has_turns else alone}"
                f"{frames_remedy(media[named[0]])}"
            )


def listed(names: Iterable[str]) -> str:
    """Return names in quotes, with commas, as many as a person may read."""
    shown = [shorten(name) for name in names]
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    return ", ".join(shown[:_NAMES_SHOWN]) + more


def prose(columns: Columns) -> list[str]:
    """Return the columns of texts of several words, which may be meant to be learnt."""
    return [
        name
        for name, values in columns.items()
        if values and sum(map(_has_words, values)) * 2 > len(values) and not names_files(values)
    ]


def label_columns(columns: Columns) -> list[str]:
    """Return the columns of classes: those that are called so, else those of short texts."""
    called = [
        name
        for name, values in columns.items()
        if _LABEL.search(name) and values and all(isinstance(v, str | int) for v in values)
    ]
    short = [
        name
        for name, values in columns.items()
        if values
        and all(isinstance(v, str) and any(map(str.isalpha, v)) for v in values)
        and not (names_files(values) or any(map(is_url, values)) or _ID.search(name))
    ]
    return called or short


def longest(names: Sequence[str], columns: Columns) -> str:
    """Return the column whose texts are the longest."""
    return max(names, key=lambda name: sum(len(str(v)) for v in columns[name]) / len(columns[name]))


def _has_words(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value) and any(map(_has_words, value))
    if not isinstance(value, str) or is_url(value) or not any(map(str.isalpha, value)):
        return False
    # Chinese, Japanese and Thai part words by nothing.
    return len(value.split()) > 1 or (not value.isascii() and len(value) > _LONGEST_NAME)
