"""The ways in which a folder could be read, and which of them is plainly meant.

Loose images may be beside files that another reader takes: records, or tars. What is weighed is
how many samples each reading would give, by a bounded look.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

from datapipe.errors import DatapipeError, PackError, SampleError
from datapipe.index.images.header import is_image_extension
from datapipe.index.tar.grouping import group_members
from datapipe.index.tar.headers import TarScanner
from datapipe.pack.input.archives import lies_beside
from datapipe.pack.input.raw_sample import (
    Blob,
    Input,
    ReadOptions,
    Reject,
    inline_bytes,
    printable,
)
from datapipe.pack.input.real_paths import RealPaths
from datapipe.pack.input.survey import Survey, survey
from datapipe.pack.notes import Notes
from datapipe.pack.records.locate import levels
from datapipe.pack.teaching import show

if TYPE_CHECKING:
    from datapipe.pack.readers import Reader

# Shapes that nothing but their own writer makes, and that cost a pass to be looked at.
_PLAIN = frozenset({"coco", "img2dataset"})
_CONVERSATIONS = frozenset({"llava", "chat"})
_RECORDS = 2000
_BYTES = 64 << 20
_STATS = 200
_TARS = 4
_MEMBERS = 20_000
_SIDECARS = 3
_OPTIONS_OF_RECORDS = ("image_root", "image_column", "text_column", "include", "key_from", "map")

# Pairs that no record names may be 5 % of what the records bring, as rejects may be by default.
_PAIRS = 20
# Images that no record names may be many, as those of a subset over all of COCO: 10 for one named
# image, 1,000 for ten, 100,000 for a hundred. One record over a thousand images is an accident.
_IMAGES = 10
# Images beside tars may be a hundredth of those in the tars: previews, figures.
_PREVIEWS = 100


@dataclass(frozen=True, kw_only=True)
class FolderReading:
    """One way to read a folder.

    Attributes:
        reader: name of the format.
        holds: what it would take, with counts.
        images: how many images that are here it would pack, as far as can be told; 0 if none.
        paths: files that it takes, where they are few; relative to the folder.
        named: images that the records looked at name and that are here, as `RealPaths` spells them.
        missing: number of images that these records name and that are not here.
        exact: whether all records were looked at.
        is_broken: whether it cannot be read as it stands.
    """

    reader: str
    holds: str
    images: int = 0
    paths: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    exact: bool = False
    is_broken: bool = False
    missing: int = 0


def weigh(
    raw: Path, options: ReadOptions, readers: Sequence[Reader], folder: Reader | None
) -> Reader:
    """Return the reader that is plainly meant of those that recognise a folder.

    Args:
        raw: a folder, or a file that several readers take.
        options: those given say which reader is meant, too.
        readers: that recognise it, without `folder`.
        folder: the reader of loose images, if there are any.

    Raises:
        PackError: several could be meant; it lists them with counts.
    """
    only = readers[0] if len(readers) == 1 else None
    if only and (folder is None or only.name in _PLAIN or _named_by_options(options, only, folder)):
        return only
    loose = survey(raw) if folder is not None else Survey()
    if folder is not None and options.include is None and _are_sidecars(raw, loose):
        return folder
    readings = [_reading(reader, raw, options, loose) for reader in readers]
    found = _with_images(readings)
    if found is not None and (not loose.images or _is_plain(readings[found], loose)):
        return readers[found]
    if only:
        # A broken one says what is wrong.
        alone = not loose.images or (readings[0].is_broken and not loose.pairs)
        if alone or _is_plain(readings[0], loose):
            return only
    elif not loose.pairs:
        if all(reading.is_broken for reading in readings):
            return readers[0]
        if (meant := _conversations(readers, readings, loose)) is not None:
            return meant
    if folder is not None and loose.images:
        readings.append(
            FolderReading(reader=folder.name, holds=loose.describe(), paths=_home(raw, loose))
        )
    raise PackError(_ambiguous(raw, readings))


def without_unpacked(raw: Path, readers: Sequence[Reader]) -> list[Reader]:
    """Leave out the reader of tars if all tars of a folder are unpacked beside themselves."""
    tars = [*raw.glob("*.tar"), *raw.glob("*.tar.*")] if raw.is_dir() else []
    if tars and len(tars) <= _TARS * 5 and all(map(lies_beside, tars)):
        return [reader for reader in readers if reader.name != "webdataset"]
    return list(readers)


def _are_sidecars(raw: Path, loose: Survey) -> bool:
    """Return whether the nearest files of records have the names of images, one file an image."""
    files = next(filter(None, levels(raw, None, _MEMBERS)), [])
    if len(files) < _SIDECARS:
        return False
    stems = {os.path.basename(path).rpartition(".")[0] for path in loose.images}
    return sum(path.stem in stems for path in files) * 2 > len(files)


def _named_by_options(options: ReadOptions, reader: Reader, folder: Reader) -> bool:
    """Return whether an option was given that means something to a reader and not to `folder`.

    A pattern that takes files of records names these.
    """
    names = {name for name in _OPTIONS_OF_RECORDS if getattr(options, name) is not None}
    return bool(names & (reader.takes - (folder.takes - {"include"})))


def _is_plain(reading: FolderReading, loose: Survey) -> bool:
    if reading.reader == "webdataset":
        return not loose.pairs and len(loose.images) * _PREVIEWS <= reading.images
    if not reading.images:
        return False
    if reading.exact and loose.complete:
        pairs = sum(text for path, text in loose.images.items() if path not in reading.named)
    else:
        pairs = max(loose.pairs - reading.images, 0)
    unnamed = len(loose.images) - min(reading.images, len(loose.images))
    return pairs * _PAIRS <= reading.images and unnamed <= _IMAGES * reading.images**2


def _with_images(readings: Sequence[FolderReading]) -> int | None:
    """Return the index of the only reading that finds its images, if all others miss theirs."""
    found = [index for index, reading in enumerate(readings) if reading.images]
    others = [reading for reading in readings if not reading.images]
    return found[0] if len(found) == 1 and all(reading.missing for reading in others) else None


def _conversations(
    readers: Sequence[Reader], readings: Sequence[FolderReading], loose: Survey
) -> Reader | None:
    """Return the reader of conversations if a table beside them is about the same images.

    Examples are LLaVA's datasets: `chat.json` and `metadata.json`, whose texts are captions, or
    `blip_laion_cc_sbu_558k.json` and `..._meta.json`, whose texts have no known name.
    """
    tables = [reading for reading in readings if reading.reader == "table"]
    others = [i for i, reading in enumerate(readings) if reading.reader in _CONVERSATIONS]
    if len(tables) != 1 or len(others) != 1 or len(readings) != 2:
        return None
    meant, table = readings[others[0]], tables[0]
    if table.is_broken:  # the conversations are about all images that are here
        is_meant = _is_plain(meant, loose)
    else:
        is_meant = 2 * len(meant.named & table.named) > len(table.named) > 0
    return readers[others[0]] if is_meant else None


def _reading(reader: Reader, raw: Path, options: ReadOptions, loose: Survey) -> FolderReading:
    """Count what a reader would take, as far as a bounded look tells."""
    try:
        if reader.name == "webdataset":
            return _of_tars(raw)
        return _of_records(reader, raw, options, loose)
    except DatapipeError as error:
        holds = f"cannot be read as it stands: {str(error).splitlines()[0]}"
        return FolderReading(reader=reader.name, holds=holds, is_broken=True)


def _of_tars(raw: Path) -> FolderReading:
    tars = sorted(raw.glob("*.tar")) if raw.is_dir() else [raw]
    samples = images = size = 0
    for path in tars[:_TARS]:
        with TarScanner(path) as tar:
            members = list(islice(iter(tar), _MEMBERS))
            groups = group_members(members).samples
            samples += len(groups)
            names = (member.name for group in groups for member in group.members)
            images += sum(is_image_extension(name.rpartition(".")[2]) for name in names)
            size += members[-1].offset if len(members) == _MEMBERS else tar.bytes
    total = sum(path.stat().st_size for path in tars)
    scale = total / size if size else 1
    about = "" if size == total else "about "
    samples, images = round(samples * scale), round(images * scale)
    return FolderReading(
        reader="webdataset",
        holds=f"{_count(len(tars), 'tar')} with {about}{_count(samples, 'sample')}, "
        f"{_count(images, 'image')}",
        images=images,
        paths=tuple(printable(path.name) for path in tars),
    )


def _of_records(reader: Reader, raw: Path, options: ReadOptions, loose: Survey) -> FolderReading:
    options = replace(options, notes=Notes())
    total = reader.estimate(raw, options) or 0
    seen = held = missing = size = stats = 0
    named: set[str] = set()
    spell = RealPaths()
    faults: Counter[str] = Counter()
    sources: dict[str, None] = {}
    with closing(cast(Generator[Input], reader.read(raw, options))) as samples:
        for sample in islice(samples, _RECORDS):
            seen += 1
            sources[sample.source.rpartition("#")[0]] = None
            fault = _fault(sample)
            if fault or isinstance(sample, Reject):
                faults[fault] += 1
                continue
            for image in sample.images:
                if not isinstance(image.blob, Blob):
                    held += 1
                    continue
                path = spell(image.blob.path)
                is_here = path in loose.images or path in named
                if not is_here and stats < _STATS:
                    stats += 1
                    is_here = os.path.isfile(path)
                if is_here:
                    named.add(path)
                else:
                    missing += 1
            size += inline_bytes(sample)
            if size > _BYTES:
                break
    exact = seen < _RECORDS and size <= _BYTES
    total = seen if exact else max(total, seen)
    scale = total / seen if seen else 0
    words = [_count(total, "record")]
    if held:
        words.append(f"{_count(round(held * scale), 'image')} inside")
    for paths, where in ((len(named), "here"), (missing, "missing")):
        if paths:
            number = round(paths * scale)
            words.append(
                f"{_count(number, 'named image')} {'is' if number == 1 else 'are'} {where}"
            )
    if faults.total() < seen and not (held or named or missing):
        words.append("no images")
    if faults:
        words.append(_rejects(faults, seen, scale))
    files = tuple(source for source in sources if source)
    label = f"{files[0]}: " if len(files) == 1 else ""
    return FolderReading(
        reader=reader.name,
        holds=label + ("" if exact else "about ") + ", ".join(words),
        images=round((len(named) + held) * scale),
        paths=files,
        named=frozenset(named),
        missing=missing,
        exact=exact,
    )


def _fault(sample: Input) -> str:
    """Return why an input is rejected, or why packing would; "" if it would not.

    Packing looks at the texts of samples with images too, which are counted by their images here.
    """
    if isinstance(sample, Reject):
        return sample.reason
    if sample.images:
        return ""
    try:
        show(sample)
    except SampleError as error:
        return error.reason
    return ""


def _rejects(faults: Counter[str], seen: int, scale: float) -> str:
    """Return how many records would be rejected, and why."""
    count = faults.total()
    ((reason, most),) = faults.most_common(1)
    said = f"{round(count * scale):,} of them rejected"
    if count == seen:
        said = "all rejected" if count > 1 else "rejected"
    return f"{said}{'' if most == count else ', for example'}: {printable(reason)}"


def _home(raw: Path, loose: Survey) -> tuple[str, ...]:
    """Return the folder below `raw` that holds all loose images, if it is not `raw` itself."""
    home = os.path.commonpath([os.path.dirname(p) for p in loose.images])
    below = os.path.relpath(home, os.path.realpath(raw))
    return () if below.startswith(os.curdir) else (printable(below),)  # links lead outside of it


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _ambiguous(raw: Path, readings: Sequence[FolderReading]) -> str:
    width = max(len(reading.reader) for reading in readings)
    lines = []
    for reading in readings:
        line = f"  --format {reading.reader:<{width}}  {reading.holds}"
        if raw.is_dir() and len(reading.paths) == 1:
            line += f" (or give {printable(str(raw / reading.paths[0]))})"
        lines.append(line)
    return (
        f"{printable(str(raw))} can be read in several ways, and each would leave something out:\n"
        + "\n".join(lines)
        + "\nadd the one that is meant to the command, such as "
        f"--format {readings[-1].reader}; or move what is not meant elsewhere"
    )
