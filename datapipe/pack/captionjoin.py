"""Captions by image id, on disk, so that millions of them need little memory."""

from __future__ import annotations

import itertools
import json
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.pack.raw import Reject, printable

_BATCH = 1000
_CACHE_KIB = 64 * 1024

# `number` is the place in the array. An annotation that is rejected has a reason and no image;
# the `body` of others is [caption, other fields] as JSON, which can spell any text.
_TABLES = (
    "CREATE TABLE annotation "
    "(number INTEGER PRIMARY KEY, image TEXT, body TEXT, reason TEXT, error TEXT)",
    "CREATE INDEX of_image ON annotation (image)",
    "CREATE TABLE image (id TEXT PRIMARY KEY) WITHOUT ROWID",
)
_BROKEN, _MISSING = "DecodeError", "MissingMember"
_Row = tuple[int, str | None, str, str, str]


def identity(value: Any) -> str | None:
    """What ids have in common that are the same: 7, 7.0 (as pandas writes it) and "7" are.

    None for what is no id.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return printable(str(value)) or None


class CaptionJoin:
    """Annotations `{image_id, caption, ...}` by image, and the ids of images that were seen."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self._base = base

    def load(self, entries: Iterable[tuple[int, Any]]) -> bool:
        """Keep annotations, given with their places; whether one of them has a caption."""
        rows = (_row(number, entry) for number, entry in entries)
        found = False
        while batch := list(itertools.islice(rows, _BATCH)):
            self._base.executemany("INSERT INTO annotation VALUES (?, ?, ?, ?, ?)", batch)
            found = found or any(image is not None for _, image, *_ in batch)
        return found

    def add_image(self, image: str) -> bool:
        """Note an image's identity; whether it is new."""
        added = self._base.execute("INSERT OR IGNORE INTO image VALUES (?)", (image,))
        return added.rowcount > 0

    def captions(self, image: str) -> list[tuple[str, dict[str, Any]]]:
        """Captions of an image, each with its annotation's other fields, in order."""
        found = self._base.execute(
            "SELECT body FROM annotation WHERE image = ? ORDER BY number", (image,)
        )
        return [(caption, rest) for caption, rest in (json.loads(body) for (body,) in found)]

    def left_over(self, name: str) -> Iterator[Reject]:
        """Annotations that are broken or whose image was not seen; `name` is the array's."""
        rows = self._base.execute(
            "SELECT number, image, reason, error FROM annotation WHERE image IS NULL "
            "OR NOT EXISTS (SELECT 1 FROM image WHERE id = annotation.image) ORDER BY number"
        )
        for number, image, reason, error in rows:
            if image is not None:
                reason, error = f"none of the images has the id {image}", "MissingMember"
            yield Reject(f"{name}[{number}]", reason, error)


@contextmanager
def caption_join(scratch: Path | None) -> Iterator[CaptionJoin]:
    """An empty join in a temporary folder of its own, which is removed at the end.

    Args:
        scratch: where to make the folder; the system's place for temporary files where None.

    Raises:
        PackError: it cannot be written.
    """
    place = scratch or Path(tempfile.gettempdir())
    try:
        temporary = tempfile.TemporaryDirectory(prefix="datapipe-", dir=place)
    except OSError as error:
        raise PackError(f"{place}: no temporary folder can be made: {error.strerror}") from error
    with temporary as folder:
        try:
            # A generator that holds it may be resumed, or dropped, by another thread.
            base = sqlite3.connect(f"{folder}/join.sqlite", check_same_thread=False)
            with closing(base):
                base.isolation_level = None
                base.execute("PRAGMA journal_mode = OFF")
                base.execute("PRAGMA synchronous = OFF")
                base.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                for statement in _TABLES:
                    base.execute(statement)
                base.execute("BEGIN")  # never committed: nobody else reads it
                yield CaptionJoin(base)
        except sqlite3.Error as error:
            raise PackError(
                f"{place}: the temporary database that joins captions and images failed: {error}; "
                "make room there"
            ) from error


def _row(number: int, entry: Any) -> _Row:
    if not isinstance(entry, dict):
        return (number, None, "", f"entry is a {type(entry).__name__}, not an object", _BROKEN)
    caption = entry.get("caption")
    if caption is None:
        return (number, None, "", "annotation has no `caption`", _MISSING)
    if not isinstance(caption, str):
        return (number, None, "", f"`caption` is a {type(caption).__name__}, not text", _BROKEN)
    image = identity(entry.get("image_id"))
    if image is None:
        return (number, None, "", "`image_id` is missing, or is neither integer nor text", _MISSING)
    rest = {name: entry[name] for name in entry if name not in ("caption", "image_id")}
    return (number, image, json.dumps([caption, rest]), "", "")
