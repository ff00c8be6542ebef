"""Decisions of a reader and files it left out, for the report at the end of a pack."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence

from datapipe.index.ignore import unmatched
from datapipe.index.tar.findings import MemberCounts
from datapipe.named_counts import NamedCounts

FOUND = "found_"
"""Prefix of the options in a manifest that were found and not given."""


class Notes:
    """Collector that a reader writes to while it reads.

    Its lines are printed at the end of a pack and stand in `PackReport`. What `find` was told
    stands in the manifest too; nothing else in it changes a byte of the output.

    Examples:
        >>> notes = Notes()
        >>> notes.decide("images start in ../images")
        >>> notes.leave_out("README.md", "no data")
        >>> notes.lines()
        ['images start in ../images', 'left out: 1 file, no data (README.md)']
    """

    def __init__(self) -> None:
        self._decisions: dict[str, None] = {}
        self._left_out = NamedCounts()
        self._passed_over = NamedCounts()
        self._counted = NamedCounts()
        self._named: set[str] = set()
        self._found: dict[str, dict[str, None]] = {}
        self.captions_unused = 0
        """Number of captions that no sample has, under `--captions first`."""
        self.members = MemberCounts()
        """Members that training does not see, and images in addition to the first."""
        self.captions_repeat_images = False
        """True if a sample has an image only for another of its captions."""
        self.used: set[str] = set()
        """Paths of files that are read beside those that samples name."""

    def begin_with(self, other: Notes) -> None:
        vars(self).update(copy.deepcopy(vars(other)))

    def find(self, name: str, value: str) -> None:
        """Note a value that no option gave, for the manifest; equal ones once."""
        self._found.setdefault(name, {})[value] = None

    @property
    def found(self) -> dict[str, str | list[str]]:
        """Options of the manifest: a value, or a list where several were found."""
        return {
            FOUND + name: next(iter(values)) if len(values) == 1 else sorted(values)
            for name, values in self._found.items()
        }

    def decide(self, text: str) -> None:
        """Note a choice that the user may want to know of; equal ones are kept once."""
        self._decisions[text] = None

    def count(self, name: str, what: str) -> None:
        """Count a file that was read, but perhaps not as the user means it; `what` is a plural."""
        self._counted.add(what, name)

    def leave_out(self, name: str, reason: str) -> None:
        """Count a file that no sample and no reject names; one that is named twice once."""
        if name not in self._named:
            self._named.add(name)
            self._left_out.add(reason, name)

    def pass_over(self, field: str, source: str, remedy: str = "") -> None:
        """Count a record with images that its sample lacks; `remedy` is a map that takes them."""
        quote = '"' if "'" in remedy else "'"
        taken = f" (--map {quote}{remedy}{quote} takes them too)" if remedy else ""
        self._passed_over.add(f"images in `{field}` are not trained on{taken}", source)

    def use(self, path: str | os.PathLike[str]) -> None:
        """Note that a file is read, so that it does not count as left over."""
        self.used.add(os.fspath(path))

    @property
    def left_out(self) -> int:
        return self._left_out.total()

    def unmatched(self, patterns: Sequence[str]) -> list[str]:
        """Return a line for each pattern of `--ignore` that named nothing."""
        return unmatched(patterns, self._left_out)

    def lines(self) -> list[str]:
        """Return the notes as lines of text, decisions first."""
        return [
            *self._decisions,
            *self.members.lines(),
            *self._passed_over.lines("{text}: {count} ({names})", "record"),
            *self._counted.lines("{count}: {text} ({names})", "file"),
            *self._left_out.lines("left out: {count}, {text} ({names})", "file"),
        ]
