"""Choice of the reader for raw data: by name, or by what the data looks like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from datapipe.errors import PackError
from datapipe.index.ignore import parse_ignore
from datapipe.index.tar.listing import names_shards
from datapipe.pack.input.archives import packed_images, refuse_archive
from datapipe.pack.input.raw_sample import ReadOptions
from datapipe.pack.input.survey import describe_files
from datapipe.pack.notes import Notes
from datapipe.pack.readers import Reader, all_readers
from datapipe.pack.readers.unrecognized import advice, refuse_textless
from datapipe.pack.recognition.other_stores import why_unread
from datapipe.pack.recognition.readings import weigh, without_unpacked
from datapipe.pack.records.fields.field_map import parse_map
from datapipe.pack.records.locate import listing_once

_FOLDERS = 20


def choose_reader(raw: Path, name: str | None = None, options: ReadOptions | None = None) -> Reader:
    """Return the reader called `name`, or the one that recognises `raw`.

    Raises:
        PackError: `raw` is not there, or no format or more than one fits.
    """
    options = options or ReadOptions()
    readers = all_readers()
    if name is not None and name not in readers:
        raise PackError(f"format {name!r} is not known; the formats are\n{_listed(readers)}")
    refuse_archive(raw)
    if names_shards(raw):
        name = name or "webdataset"
        if name != "webdataset":
            raise PackError(
                f"{raw} is a list of tars, which --format {name} does not read; give one file or "
                "folder, or leave --format out"
            )
    elif not raw.exists():
        raise PackError(f"{raw}: no such file or folder")
    if name is not None:
        if name != "table" and options.map is not None and parse_map(options.map).imageless:
            raise PackError(
                f"--map {options.map!r}: `image=` leaves out a table's images, and those of the "
                f"format {name} are no columns of one"
            )
        return readers[name]
    with listing_once():
        return _recognised(raw, options, readers)


def _recognised(raw: Path, options: ReadOptions, readers: dict[str, Reader]) -> Reader:
    """Return the reader that is plainly meant of those that recognise `raw`."""
    asked = list(readers.values())
    if options.map is not None:  # of a reader of files, the images are not fields of a record
        fields = parse_map(options.map)
        alone = "table" if fields.images or fields.imageless else ""
        asked = [r for r in asked if "map" in r.takes and alone in ("", r.name)]
    fitting = [reader for reader in asked if reader.recognises(raw, options)]
    folder = next((reader for reader in fitting if reader.fallback), None)
    chosen = [reader for reader in fitting if not reader.fallback]
    if folder is not None:
        chosen = without_unpacked(raw, chosen)
    if chosen and (meant := weigh(raw, options, chosen, folder)) is not folder:
        return meant
    if folder is None:
        packed = f"\n{said}" if (said := packed_images([raw])) else ""
        below = _below(raw, options, readers)
        if not (packed or below) and (cause := why_unread(raw)):
            raise PackError(cause)
        raise PackError(
            f"{raw}: no known format is recognised (found: {describe_files(raw)}); the formats "
            f"are\n{_listed(readers)}{advice(raw, options)}{packed}{below}"
        )
    if options.map is None:
        refuse_textless(
            raw,
            folder.read(raw, replace(options, notes=Notes())),
            parse_ignore(options.ignore),
        )
    return folder


def _listed(readers: dict[str, Reader]) -> str:
    return "\n".join(f"  --format {r.name:<12} {r.summary}" for r in readers.values())


def _below(raw: Path, options: ReadOptions, readers: dict[str, Reader]) -> str:
    """Return what folders just below look like, where something is recognised in them."""
    if not raw.is_dir():
        return ""
    said = ""
    for folder in sorted(path for path in raw.iterdir() if path.is_dir())[:_FOLDERS]:
        names = [name for name, reader in readers.items() if reader.recognises(folder, options)]
        if names:
            said += f"\n{folder} looks like {' or '.join(names)}: give that folder"
    return said
