"""The two files of work that goes on after a crash: a journal, and rejects beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from datapipe.index.files.sealed_json import seal


class JournalFiles:
    """A journal of sealed lines and a file of rejects, both open to append to.

    What is behind the sizes given was written after the last line of the journal that counts, and
    is cut off.

    Args:
        rejects, journal: their paths.
        rejects_size, journal_size: bytes of them that count.
        head: first line of a journal that is begun; None for one that goes on.

    Attributes:
        rejects: file of the rejects.

    Raises:
        OSError: they cannot be written; none is left open.
    """

    def __init__(
        self,
        rejects: Path,
        rejects_size: int,
        journal: Path,
        journal_size: int,
        head: Mapping[str, Any] | None,
    ) -> None:
        with ExitStack() as opened:
            self.rejects = opened.enter_context(rejects.open("ab"))
            self.rejects.truncate(rejects_size)
            self.rejects.seek(0, os.SEEK_END)  # truncating leaves the position where the end was
            self._journal = opened.enter_context(journal.open("ab"))
            self._journal.truncate(journal_size)
            if head is not None:
                self.note(head)
            self._opened = opened.pop_all()

    def sync_rejects(self) -> None:
        """Bring the rejects to the disk."""
        self.rejects.flush()
        os.fsync(self.rejects.fileno())

    def note(self, line: Mapping[str, Any]) -> None:
        """Append a line to the journal, and bring it to the disk."""
        self._journal.write(seal(line).encode() + b"\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())

    def close(self) -> None:
        """Close both files; what matters of them is on the disk already."""
        with suppress(OSError):
            self._opened.close()
