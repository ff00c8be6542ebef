"""MMC4: documents as sentences, and images that name the sentence they belong to.

Source of the layout: https://github.com/allenai/mmc4. Its images are addresses; a downloader keeps
them under their `image_name`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datapipe.errors import DecodeError, MissingMember, PackError
from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.input.survey import Survey
from datapipe.pack.readers.conversations import unpack_document
from datapipe.pack.records.images.roots import Images, find_images
from datapipe.pack.records.reader import Record, RecordReader
from datapipe.pack.records.streams.containers import first_records
from datapipe.pack.records.streams.record_files import RecordFiles, find_records

_PROBED = 500  # as few of them may have been downloaded
_WHAT = "`text_list` and `image_info`"


@dataclass(frozen=True, kw_only=True)
class Mmc4Reader(RecordReader):
    """`{text_list, image_info: [{image_name, matched_text_index}]}`, as `texts` and `images`.

    An image stands before the sentence it is matched to. One whose file is not there is left out of
    its document; a document that loses all of its images so is rejected.
    """

    def open(self, survey: Survey, options: ReadOptions) -> RecordFiles:
        files = find_records(survey, options, fits)
        files = files or super().open(survey, options).files  # which says what is wrong
        images = _find_images(files[0], survey.raw, options)
        records = super().open(survey, replace(options, image_root=images.folders[0]))
        return replace(records, images=images)

    def read(self, source: RecordFiles, options: ReadOptions) -> Iterator[RawSample | Reject]:
        missing = 0

        def unpack(record: Record) -> tuple[list[Any], Record]:
            nonlocal missing
            names = _names(record)
            images, kept = unpack_document(document(record, {*filter(source.images.has, names)}))
            missing += len(names) - len(images)
            return images, kept

        yield from RecordReader.read(replace(self, unpack=unpack), source, options)
        if missing:
            options.notes.decide(
                f"{missing:,} images that were not downloaded are left out of documents that "
                "have others"
            )


def fits(record: Record) -> bool:
    """Return whether a record has sentences, and images matched to them."""
    sentences, images = record.get("text_list"), record.get("image_info")
    are_lists = isinstance(sentences, list) and isinstance(images, list)
    return are_lists and all(isinstance(image, Mapping) for image in images or ())


def document(record: Record, there: set[str]) -> Record:
    """Return the record with `texts` and `images` in turn, as OBELICS has them.

    `there` are names of the images that are there. SampleError if none is, or on no such document.
    """
    if not fits(record):
        raise MissingMember(f"record has no {_WHAT} as lists")
    sentences, found = record["text_list"], list(record["image_info"])
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise DecodeError("`text_list` holds something else than texts")
    before: dict[int, list[str]] = {}
    for number, image in enumerate(found):
        name, index = image.get("image_name"), image.get("matched_text_index")
        if not isinstance(name, str) or not name:
            raise MissingMember(f"image {number} has no `image_name`")
        if type(index) is not int or not 0 <= index < len(sentences):
            raise DecodeError(
                f"image {number} has the `matched_text_index` {index!r} of {len(sentences)} texts"
            )
        if name in there:
            before.setdefault(index, []).append(name)
    if found and not before:
        raise MissingMember(f"none of its {len(found)} images was downloaded")
    texts: list[str | None] = []
    images: list[str | None] = []
    for index, sentence in enumerate(sentences):
        names = before.get(index, [])
        texts += [*(None for _ in names), sentence]
        images += [*names, None]
    rest = {name: value for name, value in record.items() if name != "text_list"}
    return {**rest, "texts": texts, "images": images}


def _find_images(path: Path, raw: Path, options: ReadOptions) -> Images:
    """Find the folder of the images; many may never have been downloaded."""
    names = [name for record in first_records(path) for name in _names(record)]
    try:
        return find_images(path, raw, options, names[:_PROBED], (str,))
    except PackError as error:
        raise PackError(
            f"{error}, or download them first: `raw_url` of each, as its `image_name`"
        ) from error


def _names(record: Record) -> list[str]:
    info = record.get("image_info")
    images = [i for i in info if isinstance(i, Mapping)] if isinstance(info, list) else []
    return [name for i in images if isinstance(name := i.get("image_name"), str) and name]


READER = Mmc4Reader(
    name="mmc4",
    summary="MMC4: documents of text_list and image_info, images under their image_name",
    what=_WHAT,
    fits=fits,
    unpack=unpack_document,
)
