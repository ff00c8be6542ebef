"""Files of work that is continued after a crash: a journal, and the rejects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from datapipe.index.files.crc32 import crc32
from datapipe.index.files.sealed_json import seal


class JournalFiles:
    """A journal of sealed lines and a file of rejects, both open to append to.

    What is behind the sizes given was written after the last line of the journal that counts, and
    is cut off. `head` is the first line of a new journal. The sizes and checksums of the rejects
    grow with them. OSError if a file cannot be written; none is left open then.
    """

    def __init__(
        self,
        rejects: Path,
        journal: Path,
        *,
        rejects_size: int,
        rejects_crc32: int,
        journal_size: int,
        head: Mapping[str, Any] | None,
    ) -> None:
        self.rejects_size, self.rejects_crc32 = rejects_size, rejects_crc32
        with ExitStack() as opened:
            self._rejects = opened.enter_context(rejects.open("ab"))
            self._rejects.truncate(rejects_size)
            self._journal = opened.enter_context(journal.open("ab"))
            self._journal.truncate(journal_size)
            if head is not None:
                self.note(head)
            self._opened = opened.pop_all()

    def reject(self, line: bytes) -> None:
        self._rejects.write(line)
        self.rejects_size += len(line)
        self.rejects_crc32 = crc32(line, self.rejects_crc32)

    def note(self, line: Mapping[str, Any]) -> None:
        """Append a line to the journal, and bring it to the disk, the rejects before it."""
        self.sync_rejects()
        self._journal.write(seal(line).encode() + b"\n")
        _sync(self._journal)

    def sync_rejects(self) -> None:
        _sync(self._rejects)

    def close(self) -> None:
        """Close both files; what matters of them is on the disk already."""
        with suppress(OSError):
            self._opened.close()


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
