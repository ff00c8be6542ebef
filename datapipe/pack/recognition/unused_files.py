"""Files of a folder that the chosen reader does not read: counted, and named at the end.

The reader of loose images rejects by name what it does not pack. Readers of records and of tars
look at their own files alone, so the other files of the folder are compared with what samples name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from datapipe.index.images.header import is_image_extension
from datapipe.pack.input.archives import is_archive
from datapipe.pack.input.file_kinds import is_paper, kind_of_name, medium_of
from datapipe.pack.input.raw_sample import Blob, Input, RawSample, printable
from datapipe.pack.input.real_paths import real_paths
from datapipe.pack.input.survey import Survey
from datapipe.pack.notes import Notes
from datapipe.pack.records.locate import join_hint
from datapipe.text.sample_text import TEXT_EXTENSIONS

MOST_FILES = 100_000
_RECORDS = "files of records that were not taken"
_ENDINGS = (".index.parquet", "_stats.json", ".idx")  # of files that tell of a tar


def with_leftovers(
    survey: Survey, format: str, inputs: Iterator[Input], notes: Notes
) -> Iterator[Input]:
    """Yield the inputs, and note at their end which files of a folder none of them named.

    Memory and time are bounded: of larger folders the first `MOST_FILES` files are compared.
    """
    spell = real_paths()
    files: dict[str, str] = {}  # paths below the folder
    back: list[str] = []
    paths = (path for listing in survey.walk(back) for path in listing.paths())
    for path in islice(paths, MOST_FILES):
        files[spell(path)] = survey.below(path)
    complete = next(paths, None) is None
    for path in sorted(back if complete else (), key=os.fsencode):
        notes.leave_out(printable(survey.below(path)), "links to a folder above them, not followed")
    if not files:
        yield from inputs
        return
    left = set(files)
    by_name: dict[str, list[str]] = {}
    for path in files:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    last = ""
    for sample in inputs:
        if isinstance(sample, RawSample):
            for part in (*sample.pictures, *sample.parts):
                if isinstance(part, Blob):
                    left.discard(spell(part.path))
        home = sample.source.rpartition("#")[0] or sample.source.rpartition(":")[0]
        if home != last:
            last = home
            for path in by_name.get(home.rpartition("/")[2], ()):
                if printable(f"/{files[path]}").endswith(f"/{home}"):
                    left.discard(path)
        yield sample
    left.difference_update(map(spell, notes.used))
    table = next((path for path in files if path not in left and kind_of_name(path)), "")
    images = 0
    for below in sorted((files[path] for path in left), key=os.fsencode):
        name = below.rpartition("/")[2]
        images += is_image_extension(name)
        reason = _reason(name, format)
        if reason == _RECORDS and format == "table" and table:
            reason += join_hint(Path(table), survey.raw / below)
        if reason:
            notes.leave_out(printable(below), reason)
    if not complete:
        notes.decide(
            f"only the first {MOST_FILES:,} files of {printable(str(survey.raw))} were compared "
            f"with what is packed; {images:,} of them are images that are not"
        )


def _reason(name: str, format: str) -> str:
    """Return why a file was left out; "" if it is not to be named."""
    stem, _, ext = name.lower().rpartition(".")
    if is_paper(name) or name.lower() in ("thumbs.db", "desktop.ini"):
        return "no data"
    if format == "img2dataset" and (stem.removesuffix("_stats").isdecimal() and ext != "npy"):
        return ""  # its reader tells of them one by one
    if name.endswith(_ENDINGS):
        return "no data"
    if is_image_extension(ext):
        return "images that no record names" if format != "webdataset" else "images outside of tars"
    if ext in TEXT_EXTENSIONS:
        return f"texts that the format {format} does not read"
    if kind_of_name(name):
        return _RECORDS
    if is_archive(name):
        return "archives, which were not looked into"
    if medium := medium_of(name):
        return f"{medium.removeprefix('an ').removeprefix('a ')}, which is not packed"
    return "of no known kind"
