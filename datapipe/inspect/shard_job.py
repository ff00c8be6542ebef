"""Job that checks one shard, which several threads do together if it is large."""

from __future__ import annotations

import itertools
import threading

import numpy as np

from datapipe.array_types import Bools
from datapipe.errors import StoreError
from datapipe.inspect.findings import FileFindings, Finding
from datapipe.inspect.located import UNKNOWN, DatasetFiles
from datapipe.inspect.member_table import MemberTable, read_members
from datapipe.inspect.shard_check import MemberCheck, Tell, check_tar, check_unindexed
from datapipe.inspect.sources import OpenFile, read_failure
from datapipe.report.table import counted

PART_BYTES = 128 << 20  # bytes of a shard that one thread takes; larger ones leave threads idle


class ShardJob:
    """Check of one shard in `parts`, whose findings do not depend on their number."""

    def __init__(self, *, located: DatasetFiles, number: int, deep: bool, tell: Tell) -> None:
        self._located, self._number = located, number
        self._deep, self._tell = deep, tell
        self._entry = located.entries[number]
        self.parts = max(1, -(-self._entry.bytes // PART_BYTES))
        self._found = FileFindings(file=self._entry.name)
        self._of_parts = [FileFindings(file=self._entry.name) for _ in range(self.parts)]
        self._members: MemberTable | None = None  # None if nothing says which bytes it should hold
        self._flags: tuple[Bools, Bools] | None = None  # of the members; each part sets its own
        self._lock = threading.Lock()
        self._ended = itertools.count(1)  # its `next` cannot be interrupted by another thread

    def run(self, part: int) -> FileFindings:
        """Compare a part of the members; the last part to end checks all else.

        Returns the findings of the shard, which are complete when all parts have returned.
        """
        self._read_index()
        found = self._of_parts[part]
        try:
            with self._located.shards.open(self._entry.name) as file:
                if file is not None and self._members is not None:
                    self._check(file, self._members, found).run(part, self.parts)
        except (OSError, StoreError) as error:
            found.add(read_failure(error))
        if next(self._ended) == self.parts:
            self._end()
        return self._found

    def _read_index(self) -> None:
        with self._lock:  # others wait for it
            if self._flags is None:
                self._members, self._found.findings = read_members(self._located, self._number)
                members = 0
                if self._members is not None:
                    members = len(self._members.sample)
                    self._found.samples = len(self._members.table)
                self._flags = np.ones(members, np.bool_), np.zeros(members, np.bool_)

    def _check(self, file: OpenFile, members: MemberTable, found: FileFindings) -> MemberCheck:
        check = MemberCheck(file, self._located, members, found, self._deep, self._tell)
        assert self._flags is not None
        check.is_right, check.is_plain = self._flags
        return check

    def _end(self) -> None:
        """Merge what the parts found, and check what is not about single members."""
        found, entry = self._found, self._entry
        of_index = len(found.findings)
        for part in self._of_parts:
            found.findings += part.findings
            found.damaged |= part.damaged
            found.members += part.members
            found.bytes += part.bytes
        try:
            with self._located.shards.open(entry.name) as file:
                if file is not None and entry.bytes not in (UNKNOWN, file.size):
                    problem = f"has {file.size:,} bytes, the manifest says {entry.bytes:,}"
                    found.findings.insert(of_index, Finding(file=entry.name, problem=problem))
                if file is None:
                    samples = found.samples or max(entry.samples, 0)
                    found.add(f"is missing, with {counted(samples, 'sample')}")
                    found.damaged.update(range(samples))
                elif self._members is None:
                    check_unindexed(file, found, deep=self._deep, tell=self._tell)
                else:
                    check_tar(self._check(file, self._members, found))
        except (OSError, StoreError) as error:
            if all(finding.problem != read_failure(error) for finding in found.findings):
                found.add(read_failure(error))
