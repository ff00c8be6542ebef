"""Images without texts, beside files that may be their texts: an error that names a remedy."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from datapipe.errors import PackError, SampleError
from datapipe.index.ignore import ignored_by
from datapipe.index.images.header import is_image_extension
from datapipe.index.media import is_text
from datapipe.pack.input.file_kinds import (
    TABLES,
    is_paper,
    kind_of_name,
    medium_of,
    split_extension,
)
from datapipe.pack.input.file_starts import (
    are_names_alone,
    seems_records,
    start_of_text,
    text_and_length,
)
from datapipe.pack.input.listing import Listing
from datapipe.pack.input.raw_sample import RawSample, Reject, printable
from datapipe.pack.input.survey import Survey
from datapipe.pack.recognition.unrecognized import describe
from datapipe.pack.records.streams.containers import kind_of
from datapipe.pack.teaching import fields_with_text, show
from datapipe.text.conversation import has_words

_IMAGE_NAME = re.compile(rb"[^\s\"'/]\.(jpe?g|png|webp|gif|bmp|tiff?)\b", re.IGNORECASE)
_LINES = 200
_ARRAY_OF_OBJECTS = re.compile(rb":\s*\[\s*\{")
_INPUTS = 5000  # of a folder, among which samples with text are looked for
_READ = 20  # of these are read
_PROBES = 50
_OF_A_KIND = 3  # files of one folder and extension that are looked into


def refuse_textless(
    survey: Survey,
    listings: Iterable[Listing],
    samples: Iterable[RawSample | Reject],
    ignore: Sequence[str] = (),
) -> None:
    """Refuse a survey, by its folders, in which images and texts are but no image has a text.

    Nothing is refused where one of the first `samples` has a text: then sidecars are what is meant.
    """
    raw = survey.raw
    unread: dict[str, Any] = {}
    first = (sample for sample in islice(samples, _INPUTS) if isinstance(sample, RawSample))
    texted = (sample for sample in first if (sample.caption, sample.record) != (None, None))
    for sample in islice(texted, _READ):
        try:
            if any(has_words(text) for _, text, _ in show(sample).turns):
                return
            unread |= fields_with_text(sample)
        except SampleError:
            return  # there is a text, and packing says what is wrong with it
    alone = "pack the images alone with --format folder"
    mapped = ""
    if unread:
        texts = {name: value for name, value in unread.items() if isinstance(value, str)}
        example = max(texts, key=lambda name: len(texts[name]), default="FIELD")
        mapped = f"--format folder --map {shlex.quote(f'caption={example}')}"
        alone = "pack the images and their JSON as they are with --format folder"
    fields = ", ".join(map(repr, unread))
    if lists := _texts_of_none(survey, listings, ignore):
        name = printable(lists[0].relative_to(raw).as_posix())
        name += f" (and {len(lists) - 1} more)" if len(lists) > 1 else ""
        beside = f"; or take a field of the JSON beside the images ({fields}): {mapped}"
        raise PackError(
            f"{raw} holds images, and {name} names images or tells of them but no format reads it: "
            f"{describe(lists[0], survey)}{beside if unread else ''}; or {alone}"
        )
    if unread:
        raise PackError(
            f"{raw} holds images with JSON, and no field of it is known as text; its fields "
            f"with text are {fields}. Say what is what, such as {mapped}, or {alone}"
        )


def _texts_of_none(
    survey: Survey, listings: Iterable[Listing], ignore: Sequence[str]
) -> list[Path]:
    """Return files that may be the texts of the images of a survey, though no reader takes them.

    These are texts of images' stems; else files that name images or hold records; else texts with
    about as many lines as there are images; else tables.
    """
    stems: set[str] = set()
    files: dict[tuple[str, str], list[Path]] = defaultdict(list)
    tables: list[Path] = []
    images = 0
    for listing in listings:
        for name in listing.files:
            there = f"{listing.folder}/{name}"
            if ignore and ignored_by(survey.below(there), ignore):
                continue
            stem, ext = split_extension(name)
            if is_image_extension(ext):
                images += 1
                stems |= {stem, name}
            elif ext in TABLES:
                tables.append(Path(there))
            elif not is_paper(name) and (kind_of_name(name) or not medium_of(name)):
                files[listing.folder, ext].append(Path(there))
    if ignore and not images:
        return []
    # JSON of an image's stem was read as its sidecar, and texts too unless they are elsewhere.
    alike = [
        [path for path in paths if ext != "json" or path.stem not in stems]
        for (_, ext), paths in files.items()
    ]
    naming, records = [], []
    worded: list[tuple[list[Path], list[Path]]] = []  # texts, and those of the same kind
    for paths in alike[:_PROBES]:
        texts = []
        for path in paths[:_OF_A_KIND]:
            start, kind = start_of_text(path), kind_of(path)
            # Records in another encoding are to be named too.
            if not start.strip() or not (kind or (is_text(start) and not are_names_alone(start))):
                continue
            if _IMAGE_NAME.search(start):
                naming.append(path)
            elif kind and (
                kind != "json" or seems_records(path) or _ARRAY_OF_OBJECTS.search(start)
            ):
                records.append(path)
            elif _has_words(start, stems):
                texts.append(path)
        if texts:
            worded.append((texts, paths))
    for texts, paths in worded:
        if all(path.stem in stems for path in texts):
            return paths
    if naming or records:
        return naming or records
    for texts, paths in worded:
        lines = sum(map(_count_lines, texts)) * len(paths) / len(texts)
        if lines >= 2 and lines * 2 >= images:
            return paths
    return tables


def _has_words(start: bytes, stems: set[str]) -> bool:
    """Return whether a text says something: more than numbers, and than which images there are."""
    lines = start.decode(errors="replace").splitlines()[:_LINES]
    words = (word for line in lines for word in line.split())
    return any(any(map(str.isalpha, w)) and w.rpartition("/")[2] not in stems for w in words)


def _count_lines(path: Path) -> float:
    """Estimate how many lines a text has, by its start; of JSON, how many objects are in it."""
    start, length = text_and_length(path)
    lines = sum(1 for line in start.splitlines() if line.strip())
    if kind_of(path) == "json":
        lines = max(start.count(b"{") - 1, 1)
    return lines * path.stat().st_size / max(length, 1)
