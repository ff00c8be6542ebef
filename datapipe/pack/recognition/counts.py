"""Counts of what a reading of a folder would give, and of its loose images, by a bounded look."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

from datapipe.errors import DatapipeError, SampleError
from datapipe.index.images.header import is_image_extension
from datapipe.index.tar.grouping import group_members
from datapipe.index.tar.headers import TarScanner
from datapipe.pack.input.archives import lies_beside
from datapipe.pack.input.file_kinds import split_extension
from datapipe.pack.input.file_starts import are_labels
from datapipe.pack.input.raw_sample import Blob, Input, ReadOptions, Reject, inline_bytes, printable
from datapipe.pack.input.real_paths import real_paths
from datapipe.pack.input.survey import Survey
from datapipe.pack.notes import Notes
from datapipe.pack.readers import RawReading
from datapipe.pack.readers.webdataset import tars_in
from datapipe.pack.teaching import show
from datapipe.report.table import counted
from datapipe.text.sample_text import TEXT_EXTENSIONS

_RECORDS = 2000
_BYTES = 64 << 20
_STATS = 200
_TARS = 4
_UNPACKED = 20  # more tars are not looked into
_MEMBERS = 20_000
_LOOSE = 50_000  # files among which loose images are counted


@dataclass(frozen=True, kw_only=True)
class LooseImages:
    """Images below a folder that are files of their own."""

    # Each image's path as `real_paths` spells it, with whether a text of the same stem is beside it
    paths: dict[str, bool] = field(default_factory=dict)
    complete: bool = True  # False where there were more files than were looked at

    @property
    def pairs(self) -> int:
        """Number of images with a text beside them."""
        return sum(self.paths.values())

    def describe(self) -> str:
        """Return the counts as text: `1,067 images, 12 of them with a text`."""
        more = "" if self.complete else " or more"
        texts = f"{self.pairs:,} of them" if self.pairs else "none"
        return f"{counted(len(self.paths), 'image')}{more}, {texts} with a text of the same stem"


def loose_images(survey: Survey) -> LooseImages:
    """Return the images of a survey, folder by folder in order, until enough files were seen."""
    paths: dict[str, bool] = {}
    seen = 0
    for listing in survey.walk():
        if seen >= _LOOSE:
            return LooseImages(paths=paths, complete=False)
        seen += len(listing.files)
        if not listing.images:
            continue
        parts = ((*split_extension(name), name) for name in listing.files)
        texts = {s: name for s, ext, name in parts if ext == "json" or ext in TEXT_EXTENSIONS}
        if texts and are_labels(f"{listing.folder}/{texts[stem]}" for stem in sorted(texts)):
            texts = {stem: name for stem, name in texts.items() if name.endswith(".json")}
        real = os.path.realpath(listing.folder)
        for name in listing.images:
            paths[f"{real}/{name}"] = name in texts or split_extension(name)[0] in texts
    return LooseImages(paths=paths)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Samples and images that a reading would give, as far as a bounded look tells."""

    holds: str  # what it would take, with counts
    images: int = 0  # how many images that are here it would pack; 0 if none
    paths: tuple[str, ...] = ()  # files that it takes, where they are few; relative to the folder
    # Images that the records looked at name and that are here, as `real_paths` spells them
    named: frozenset[str] = frozenset()
    exact: bool = False  # whether all records were looked at
    is_broken: bool = False  # whether it cannot be read as it stands
    missing: int = 0  # number of images that these records name and that are not here


def count(reading: RawReading, loose: LooseImages) -> Counts:
    """Return the counts of a reading, beside these loose images."""
    try:
        if reading.reader.name == "webdataset":
            return _of_tars(reading.survey, reading.options)
        return _of_records(reading, loose)
    except DatapipeError as error:
        holds = f"cannot be read as it stands: {str(error).splitlines()[0]}"
        return Counts(holds=holds, is_broken=True)


def are_unpacked(reading: RawReading) -> bool:
    """Return whether every tar of a reading lies beside the folder it was unpacked to."""
    tars = tars_in(reading.survey) if reading.reader.name == "webdataset" else []
    return 0 < len(tars) <= _UNPACKED and all(map(lies_beside, tars))


def _of_tars(survey: Survey, options: ReadOptions) -> Counts:
    tars = [path for path in tars_in(survey) if path.suffix == ".tar"] or [survey.raw]
    samples = images = size = 0
    for path in tars[:_TARS]:
        options.wait(path)
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
    return Counts(
        holds=f"{counted(len(tars), 'tar')} with {about}{counted(samples, 'sample')}, "
        f"{counted(images, 'image')}",
        images=images,
        paths=tuple(printable(path.name) for path in tars),
    )


def _of_records(reading: RawReading, loose: LooseImages) -> Counts:
    total = reading.estimate() or 0
    seen = held = missing = size = stats = 0
    named: set[str] = set()
    spell = real_paths()
    faults: Counter[str] = Counter()
    sources: dict[str, None] = {}
    with closing(cast(Generator[Input], reading.inputs(Notes()))) as samples:
        for sample in islice(samples, _RECORDS):
            seen += 1
            sources[sample.source.rpartition("#")[0]] = None
            fault = _fault(sample)
            if fault or isinstance(sample, Reject):
                faults[fault] += 1
                continue
            for blob in sample.pictures:
                if not isinstance(blob, Blob):
                    held += 1
                    continue
                path = spell(blob.path)
                is_here = path in loose.paths or path in named
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
    words = [counted(total, "record")]
    if held:
        words.append(f"{counted(round(held * scale), 'image')} inside")
    for paths, where in ((len(named), "here"), (missing, "missing")):
        if paths:
            number = round(paths * scale)
            verb = "is" if number == 1 else "are"
            words.append(f"{counted(number, 'named image')} {verb} {where}")
    if faults.total() < seen and not (held or named or missing):
        words.append("no images")
    if faults:
        words.append(_rejects(faults, seen, scale))
    files = tuple(source for source in sources if source)
    label = f"{files[0]}: " if len(files) == 1 else ""
    return Counts(
        holds=label + ("" if exact else "about ") + ", ".join(words),
        images=round((len(named) + held) * scale),
        paths=files,
        named=frozenset(named),
        missing=missing,
        exact=exact,
    )


def _fault(sample: Input) -> str:
    """Return why an input is rejected, or why packing would, of those without images; else ""."""
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
    count = faults.total()
    ((reason, most),) = faults.most_common(1)
    said = f"{round(count * scale):,} of them rejected"
    if count == seen:
        said = "all rejected" if count > 1 else "rejected"
    return f"{said}{'' if most == count else ', for example'}: {printable(reason)}"
