"""Entries by an id, on disk, so that millions of them are joined in little memory."""

from __future__ import annotations

import itertools
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from datapipe.errors import MissingMember, PackError
from datapipe.pack.input.raw_sample import Reject, printable

_BATCH = 1000
_CACHE_KIB = 64 * 1024


class Entry(NamedTuple):
    """An entry of an array, or what is wrong with it."""

    number: int  # index in its array, or line in its file
    id: str | None  # what it is joined by; None for an entry that is rejected
    body: Any = None  # what `Entries.of` gives back, as JSON can spell it
    # `reason`, `error`: of an entry that is rejected; see `Reject`
    reason: str = ""
    error: str = ""


def identity(value: Any) -> str | None:
    """Return what equal ids have in common: 7, 7.0 (of pandas) and "7" are equal; None if no id."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return printable(str(value)) or None


def id_in(record: Mapping[str, Any], field: str) -> str:
    """Return the id that a field of a record holds, as `identity` does; MissingMember without."""
    if (id := identity(record.get(field))) is None:
        raise MissingMember(f"`{field}` is missing, or is neither integer nor text")
    return id


class Entries:
    """Entries of one array by id, in the array's order, and the ids that were claimed.

    Other arrays may share the database `base`; `name` is a plain word, of none of them.
    """

    def __init__(self, base: sqlite3.Connection, name: str) -> None:
        self._base = base
        self._entry, self._claim, self._first = f"{name}_entry", f"{name}_claim", f"{name}_first"
        self._no_claim = f"NOT EXISTS (SELECT 1 FROM {self._claim} AS c WHERE c.id = e.id)"
        for statement in (
            f"CREATE TABLE {self._entry} "
            "(number INTEGER PRIMARY KEY, id TEXT, body TEXT, reason TEXT, error TEXT)",
            f"CREATE INDEX {name}_of_id ON {self._entry} (id)",
            f"CREATE TABLE {self._claim} (id TEXT PRIMARY KEY) WITHOUT ROWID",
            f"CREATE TABLE {self._first} (number INTEGER PRIMARY KEY, id TEXT)",
        ):
            base.execute(statement)

    def load(self, entries: Iterable[Entry]) -> bool:
        """Keep entries; return whether one of them has an id."""
        rows = ((e.number, e.id, json.dumps(e.body), e.reason, e.error) for e in entries)
        found = False
        while batch := list(itertools.islice(rows, _BATCH)):
            self._base.executemany(f"INSERT INTO {self._entry} VALUES (?, ?, ?, ?, ?)", batch)
            found = found or any(id is not None for _, id, *_ in batch)
        return found

    def claim(self, id: str) -> bool:
        """Note that something has this id; return whether it is the first that has it."""
        added = self._base.execute(f"INSERT OR IGNORE INTO {self._claim} VALUES (?)", (id,))
        return added.rowcount > 0

    def of(self, id: str) -> list[tuple[int, Any]]:
        """Return the numbers and bodies of the entries with this id, in order."""
        found = self._base.execute(
            f"SELECT number, body FROM {self._entry} WHERE id = ? ORDER BY number", (id,)
        )
        return [(number, json.loads(body)) for number, body in found]

    def ids(self) -> Iterator[str]:
        """Yield every id once, in the order of its first entry; call it once."""
        # A table and not a sort, which would spill to a folder that the user did not choose.
        self._base.execute(
            f"INSERT INTO {self._first} SELECT min(number), id FROM {self._entry} "
            "WHERE id IS NOT NULL GROUP BY id"
        )
        for (id,) in self._base.execute(f"SELECT id FROM {self._first} ORDER BY number"):
            yield id

    def unclaimed(self) -> Iterator[str]:
        """Yield every id that entries have and nothing claimed, by the order of the entries."""
        rows = self._base.execute(
            f"SELECT id FROM {self._entry} AS e WHERE id IS NOT NULL AND {self._no_claim} "
            f"ORDER BY number"
        )
        for (id,) in rows:
            yield id

    def rejects(self, source: Callable[[int], str], owners: str = "") -> Iterator[Reject]:
        """Yield rejects of the entries that are broken, in order.

        `source` gives the source of an entry by its number. With `owners`, which claim ids, entries
        whose id was not claimed are rejected too.
        """
        rows = self._base.execute(
            f"SELECT number, id, reason, error FROM {self._entry} AS e "
            f"WHERE id IS NULL{f' OR {self._no_claim}' if owners else ''} ORDER BY number"
        )
        for number, id, reason, error in rows:
            if id is not None:
                reason, error = f"none of the {owners} has the id {id}", "MissingMember"
            yield Reject(source(number), reason, error)


@contextmanager
def disk_join(scratch: Path | None, *names: str) -> Iterator[tuple[Entries, ...]]:
    """Yield empty `Entries` of these names, plain words, in a temporary folder that is removed.

    PackError if the folder cannot be written.
    """
    parent = scratch or Path(tempfile.gettempdir())
    try:
        temporary = tempfile.TemporaryDirectory(prefix="datapipe-", dir=parent)
    except OSError as error:
        raise PackError(f"{parent}: no temporary folder can be made: {error.strerror}") from error
    with temporary as folder:
        try:
            # A generator that holds it may be resumed, or dropped, by another thread.
            base = sqlite3.connect(f"{folder}/join.sqlite", check_same_thread=False)
            with closing(base):
                base.isolation_level = None
                base.execute("PRAGMA journal_mode = OFF")
                base.execute("PRAGMA synchronous = OFF")
                base.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                tables = tuple(Entries(base, name) for name in names)
                base.execute("BEGIN")  # never committed: nothing else reads it
                yield tables
        except sqlite3.Error as error:
            raise PackError(
                f"{parent}: the temporary database that joins annotations and images failed: "
                f"{error}; make room there"
            ) from error
