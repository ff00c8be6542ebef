"""Choice of the format of raw data: by name, or by what the data looks like.

Loose images may be beside files that another format reads: records, or tars. What is compared is
how many samples each reading would give. One that finds its images wins over those that find none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datapipe.errors import PackError
from datapipe.index.ignore import parse_ignore
from datapipe.pack.input.archives import refuse_archive
from datapipe.pack.input.raw_sample import ReadOptions, printable
from datapipe.pack.input.survey import Survey
from datapipe.pack.notes import Notes
from datapipe.pack.readers import RawReading, Reader, all_readers, list_formats
from datapipe.pack.recognition.counts import (
    Counts,
    LooseImages,
    are_unpacked,
    count,
    loose_images,
)
from datapipe.pack.recognition.textless import refuse_textless
from datapipe.pack.recognition.unrecognized import unrecognized
from datapipe.pack.records.fields.field_map import parse_map
from datapipe.pack.records.locate import join_hint, levels
from datapipe.pack.records.streams.containers import kind_of

# Shapes that nothing but their own writer makes, and that cost a pass to be looked at.
_PLAIN = frozenset({"coco", "img2dataset"})
_CONVERSATIONS = frozenset({"llava", "chat", "preference"})
_OPTIONS_OF_RECORDS = ("image_root", "image_column", "text_column", "include", "key_from", "map")
_FILES = 200_000
_QUICK = 20_000  # files
_SIDECARS = 3

# Pairs that no record names may be 5 % of what the records bring, as rejects may be by default.
_PAIRS = 20
# Images that no record names may be many, as those of a subset over all of COCO: 10 for one named
# image, 1,000 for ten, 100,000 for a hundred. One record over a thousand images is an accident.
_IMAGES = 10
# Images beside tars may be a hundredth of those in the tars: previews, figures.
_PREVIEWS = 100


def choose_reading(
    survey: Survey, name: str | None = None, options: ReadOptions | None = None
) -> RawReading:
    """Return the reading of the format called `name`, or of the one that recognises a survey.

    PackError if nothing is there, or no format or more than one fits.
    """
    raw, options = survey.raw, options or ReadOptions()
    readers = all_readers()
    if name is not None and name not in readers:
        raise PackError(f"format {name!r} is not known; the formats are\n{list_formats()}")
    if survey.is_file:
        refuse_archive(raw)
    elif survey.is_list:
        name = name or "webdataset"
        if name != "webdataset":
            raise PackError(
                f"{raw} is a list of tars, which --format {name} does not read; give one file or "
                "folder, or leave --format out"
            )
    elif not survey.is_folder and not raw.exists():
        raise PackError(f"{raw}: no such file or folder")
    if options.join is not None:
        name = name or "table"
    if name is None:
        return _recognised(survey, options, readers)
    if name != "table" and _maps_pictures(options):
        raise _no_columns(options, name)
    return RawReading(survey=survey, reader=readers[name], options=options)


def _maps_pictures(options: ReadOptions) -> bool:
    """Return whether `--map` names columns of images or videos, or says that there are none."""
    if options.map is None:
        return False
    fields = parse_map(options.map)
    return bool(fields.images or fields.videos or fields.imageless)


def _no_columns(options: ReadOptions, format: str) -> PackError:
    return PackError(
        f"--map {options.map!r}: `image=` and `video=` are for the columns of a table, and the "
        f"images of the format {format} are none; leave them out of --map"
    )


def _recognised(
    survey: Survey, options: ReadOptions, readers: dict[str, Reader[Any]]
) -> RawReading:
    asked = list(readers.values())
    if _maps_pictures(options):  # of a reader of files, the images are not fields of a record
        asked = [readers["table"]]
    elif options.map is not None:
        asked = [reader for reader in asked if "map" in reader.takes]
    readings = [
        # Of what a reader notes, only the notes of the one that is chosen count.
        RawReading(survey=survey, reader=reader, options=replace(options, notes=Notes()))
        for reader in asked
        if reader.recognises(survey, replace(options, notes=Notes()))
    ]
    # Loose images are meant only where nothing else is, see `_meant`.
    folder = next((reading for reading in readings if reading.reader.name == "folder"), None)
    others = [r for r in readings if r is not folder and not (folder and are_unpacked(r))]
    if others and (meant := _meant(others, folder)) is not folder:
        return meant
    if folder is None:
        if _maps_pictures(options):
            if readers["webdataset"].recognises(survey, replace(options, map=None)):
                raise _no_columns(options, "webdataset")
            tables = any(kind_of(Path(p)) not in ("", "json") for p in survey.top.paths())
            if survey.is_folder and not tables and loose_images(survey).pairs:
                raise _no_columns(options, "folder")
        raise unrecognized(survey, survey.walk(most=_QUICK), options)
    if options.map is None:
        samples, ignore = folder.inputs(Notes()), parse_ignore(options.ignore)
        refuse_textless(survey, survey.walk(most=_FILES), samples, ignore)
    return folder


def _meant(readings: Sequence[RawReading], folder: RawReading | None) -> RawReading:
    """Return the one meant of `readings` that fit, or `folder`, that of loose images.

    PackError if several could be meant; it lists them with counts.
    """
    first, survey = readings[0], readings[0].survey
    only = len(readings) == 1
    if only and (folder is None or first.reader.name in _PLAIN or _named_by_options(first, folder)):
        return first
    loose = loose_images(survey) if folder is not None else LooseImages()
    if folder is not None and folder.options.include is None and _are_sidecars(survey, loose):
        return folder
    counted = [(reading, count(reading, loose)) for reading in readings]
    found = [pair for pair in counted if pair[1].images]
    if len(found) == 1 and all(counts.missing for _, counts in counted if not counts.images):
        ((reading, counts),) = found
        if not loose.paths or _is_plain(reading, counts, loose):
            return reading
    if only:
        counts = counted[0][1]
        # A broken one says what is wrong.
        alone = not loose.paths or (counts.is_broken and not loose.pairs)
        if alone or _is_plain(first, counts, loose):
            return first
    elif not loose.pairs:
        if all(counts.is_broken for _, counts in counted):
            return first
        if (conversations := _conversations(counted, loose)) is not None:
            return conversations
    if folder is not None and loose.paths:
        counts = Counts(holds=loose.describe(), paths=_home(survey, loose))
        counted.append((folder, counts))
    raise PackError(_ambiguous(survey, counted))


def _are_sidecars(survey: Survey, loose: LooseImages) -> bool:
    """Return whether the nearest files of records have the names of images, one file an image."""
    files = next(filter(None, levels(survey, None, _QUICK)), [])
    if len(files) < _SIDECARS:
        return False
    stems = {os.path.basename(path).rpartition(".")[0] for path in loose.paths}
    return sum(path.stem in stems for path in files) * 2 > len(files)


def _named_by_options(reading: RawReading, folder: RawReading) -> bool:
    """Return whether an option was given that means something to a format and not to `folder`."""
    given = {name for name in _OPTIONS_OF_RECORDS if getattr(reading.options, name) is not None}
    return bool(given & (reading.reader.takes - (folder.reader.takes - {"include"})))


def _is_plain(reading: RawReading, counts: Counts, loose: LooseImages) -> bool:
    if reading.reader.name == "webdataset":
        return not loose.pairs and len(loose.paths) * _PREVIEWS <= counts.images
    if not counts.images:
        return False
    if counts.exact and loose.complete:
        pairs = sum(text for path, text in loose.paths.items() if path not in counts.named)
    else:
        pairs = max(loose.pairs - counts.images, 0)
    unnamed = len(loose.paths) - min(counts.images, len(loose.paths))
    return pairs * _PAIRS <= counts.images and unnamed <= _IMAGES * counts.images**2


def _conversations(
    counted: Sequence[tuple[RawReading, Counts]], loose: LooseImages
) -> RawReading | None:
    """Return the reading as conversations if a table beside them is about the same images.

    An example is `blip_laion_cc_sbu_558k.json` of LLaVA, and its `..._meta.json`.
    """
    tables = [counts for reading, counts in counted if reading.reader.name == "table"]
    others = [pair for pair in counted if pair[0].reader.name in _CONVERSATIONS]
    if len(tables) != 1 or len(others) != 1 or len(counted) != 2:
        return None
    (table,), ((reading, meant),) = tables, others
    if table.is_broken:  # the conversations are about all images that are here
        is_meant = _is_plain(reading, meant, loose)
    else:
        is_meant = 2 * len(meant.named & table.named) > len(table.named) > 0
    return reading if is_meant else None


def _home(survey: Survey, loose: LooseImages) -> tuple[str, ...]:
    """Return the folder below a path that holds all loose images, if it is not the path itself."""
    home = os.path.commonpath([os.path.dirname(path) for path in loose.paths])
    below = os.path.relpath(home, os.path.realpath(survey.raw))
    return () if below.startswith(os.curdir) else (printable(below),)  # links lead outside of it


def _ambiguous(survey: Survey, counted: Sequence[tuple[RawReading, Counts]]) -> str:
    raw = survey.raw
    width = max(len(reading.reader.name) for reading, _ in counted)
    lines = []
    for reading, counts in counted:
        line = f"  --format {reading.reader.name:<{width}}  {counts.holds}"
        if survey.is_folder and len(counts.paths) == 1:
            line += f" (or give {printable(str(raw / counts.paths[0]))})"
        lines.append(line)
    named = [raw / counts.paths[0] for _, counts in counted if len(counts.paths) == 1]
    tables = list(dict.fromkeys(filter(kind_of, named)))  # one may fit several formats
    hint = join_hint(*tables) if len(tables) == 2 else ""
    return (
        f"{printable(str(raw))} can be read in several ways, and each would leave something out:\n"
        + "\n".join(lines)
        + "\nadd the one that is meant to the command, such as "
        f"--format {counted[-1][0].reader.name}; or move what is not meant elsewhere{hint}"
    )
