"""Files of a folder that the chosen reader does not read: counted, and named at the end.

The reader of loose images rejects by name what it does not pack. Readers of records and of tars
look at their own files alone, so the other files of the folder are compared with what samples name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from datapipe.index.images.header import is_image_extension
from datapipe.pack.input.archives import is_archive
from datapipe.pack.input.file_kinds import is_paper, kind_of_name, medium_of
from datapipe.pack.input.raw_sample import printable
from datapipe.pack.input.real_paths import real_paths
from datapipe.pack.input.survey import Survey
from datapipe.pack.notes import Notes
from datapipe.pack.records.locate import join_hint
from datapipe.text.sample_text import TEXT_EXTENSIONS

MOST_FILES = 100_000
_RECORDS = "files of records that were not taken"
_ENDINGS = (".index.parquet", "_stats.json", ".idx")  # of files that tell of a tar


class Leftovers:
    """Files of a folder that no input has named so far.

    Memory and time are bounded: of larger folders the first `MOST_FILES` files are compared.
    """

    def __init__(self, survey: Survey, format: str, notes: Notes) -> None:
        self._survey, self._format, self._notes = survey, format, notes
        self._spell = real_paths()
        self._files: dict[str, str] = {}  # paths below the folder
        back: list[str] = []
        paths = (path for listing in survey.walk(back) for path in listing.paths())
        for path in islice(paths, MOST_FILES):
            self._files[self._spell(path)] = survey.below(path)
        self._complete = next(paths, None) is None
        for path in sorted(back if self._complete else (), key=os.fsencode):
            reason = "links to a folder above them, not followed"
            notes.leave_out(printable(survey.below(path)), reason)
        self._left = set(self._files)
        self._by_name: dict[str, list[str]] = {}
        for path in self._files:
            self._by_name.setdefault(path.rpartition("/")[2], []).append(path)
        self._last = ""

    def take(self, source: str, paths: Iterable[str]) -> None:
        """Take away the file that an input comes from, and the files that it names."""
        for path in paths:
            self._left.discard(self._spell(path))
        home = source.rpartition("#")[0] or source.rpartition(":")[0]
        if home != self._last:
            self._last = home
            for path in self._by_name.get(home.rpartition("/")[2], ()):
                if printable(f"/{self._files[path]}").endswith(f"/{home}"):
                    self._left.discard(path)

    def note(self) -> None:
        """Note the files that are left, once all inputs were taken."""
        files, left, notes = self._files, self._left, self._notes
        left.difference_update(map(self._spell, notes.used))
        table = next((path for path in files if path not in left and kind_of_name(path)), "")
        images = 0
        for below in sorted((files[path] for path in left), key=os.fsencode):
            name = below.rpartition("/")[2]
            images += is_image_extension(name)
            reason = _reason(name, self._format)
            if reason == _RECORDS and self._format == "table" and table:
                reason += join_hint(Path(table), self._survey.raw / below)
            if reason:
                notes.leave_out(printable(below), reason)
        if not self._complete:
            notes.decide(
                f"only the first {MOST_FILES:,} files of {printable(str(self._survey.raw))} were "
                f"compared with what is packed; {images:,} of them are images that are not"
            )


def _reason(name: str, format: str) -> str:
    """Return why a file was left out; "" if it is not to be named."""
    stem, _, ext = name.lower().rpartition(".")
    if is_paper(name):
        return "no data"
    if format == "img2dataset" and (stem.removesuffix("_stats").isdecimal() and ext != "npy"):
        return ""  # its reader tells of them one by one
    if name.endswith(_ENDINGS):
        return "no data"
    if is_image_extension(ext):
        return "images that no sample has" if format != "webdataset" else "images outside of tars"
    if ext in TEXT_EXTENSIONS:
        return f"texts that the format {format} does not read"
    if kind_of_name(name):
        return _RECORDS
    if is_archive(name):
        return "archives, which were not looked into"
    if medium := medium_of(name):
        return f"{medium.removeprefix('an ').removeprefix('a ')}, which is not packed"
    return "of no known kind"
