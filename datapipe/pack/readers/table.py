"""Tables with an image and a text in each row: Hugging Face Parquet, CSV, JSONL, `imagefolder`.

The `Image` feature of Hugging Face `datasets` is a struct of `bytes` and `path`, and its
`imagefolder` is a folder of images with a `metadata.csv` or `metadata.jsonl` whose `file_name`
names them (https://huggingface.co/docs/datasets/image_dataset).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from datapipe.errors import DecodeError, MissingMember, PackError, SampleError
from datapipe.index.imageinfo import is_image_extension
from datapipe.pack.raw import RawSample, ReadOptions, Reject
from datapipe.pack.records.fields import image_list, is_image_struct, raw_images, rejected
from datapipe.pack.records.files import (
    Fits,
    RecordFiles,
    find_records,
    is_unreadable,
    key_of_record,
    open_records,
    plain,
)
from datapipe.pack.records.reader import name_of_image

_IMAGE_COLUMNS = frozenset({"image", "images", "img", "jpg", "jpeg", "png", "webp", "image_path"})
_FILE_COLUMNS = frozenset({"file_name", "filename", "filepath", "path"})  # of any kind of file
_TEXT_COLUMNS = frozenset(
    {"text", "caption", "captions", "txt", "prompt", "description", "alt_text", "sentence"}
)
_URL_COLUMNS = frozenset({"url", "image_url", "img_url", "imageurl", "coco_url", "flickr_url"})
_OF_OTHER_FORMATS = ("conversations", "messages", "texts")


class TableReader:
    """One column of images, one of text, or both; the other columns become the record."""

    name = "table"
    summary = "Parquet, CSV, TSV, JSONL with an image and a text column; HF datasets, imagefolder"
    fallback = False
    takes = frozenset({"image_root", "image_column", "text_column", "include", "key_from"})

    def recognises(self, raw: Path, options: ReadOptions) -> bool:
        # Many a JSON file beside other data has a `description`; only a file that was named may
        # hold nothing but text.
        fits = _fits(options, text_is_enough=raw.is_file())
        return find_records(raw, options, fits) is not None or is_unreadable(raw, options)

    def estimate(self, raw: Path, options: ReadOptions) -> int | None:
        return _open(raw, options).estimate()

    def read(self, raw: Path, options: ReadOptions) -> Iterator[RawSample | Reject]:
        records = _open(raw, options)
        image, text = _choose_columns(raw, records.columns(), options)
        for part in records.parts():
            for source, record in part:
                if isinstance(record, Reject):
                    yield record
                    continue
                try:
                    yield _sample(source, record, image, text, part.root, options)
                except SampleError as error:
                    yield rejected(source, error)


def _open(raw: Path, options: ReadOptions) -> RecordFiles:
    fits = _fits(options, text_is_enough=False)
    if find_records(raw, options, fits) is None:
        fits = _fits(options, text_is_enough=True)
    named = [name for name in (options.image_column, options.text_column) if name]
    what = (
        f"column {' and '.join(map(repr, named))}"
        if named
        else "a column of images or of text (name them with --image-column and --text-column)"
    )
    return open_records(raw, options, fits, what)


def _fits(options: ReadOptions, text_is_enough: bool) -> Fits:
    def fits(record: Mapping[str, Any]) -> bool:
        if any(isinstance(record.get(field), list) for field in _OF_OTHER_FORMATS):
            return False
        if options.image_column is not None:
            return options.image_column in record
        return bool(
            options.text_column in record
            or _image_columns(record)
            or (text_is_enough and _text_columns(record))
        )

    return fits


def _choose_columns(
    raw: Path, columns: Mapping[str, Any], options: ReadOptions
) -> tuple[str | None, str | None]:
    """The column of images and that of texts; either may be missing.

    Raises:
        PackError: a column that was named is not there, or none or several could be meant.
    """
    listed = ", ".join(map(repr, columns))
    for option, name in (
        ("--image-column", options.image_column),
        ("--text-column", options.text_column),
    ):
        if name is not None and name not in columns:
            raise PackError(f"{option} {name!r}: {raw} has no such column; it has {listed}")
    images = [options.image_column] if options.image_column else _image_columns(columns)
    texts = [options.text_column] if options.text_column else _text_columns(columns)
    texts = [text for text in texts if text not in images]
    for option, found, what in (
        ("--image-column", images, "images"),
        ("--text-column", texts, "the text"),
    ):
        if len(found) > 1:
            raise PackError(
                f"{raw}: {what} may be in any of the columns {', '.join(map(repr, found))}; name "
                f"one with {option} (all columns: {listed})"
            )
    if not images and not texts:
        raise PackError(
            f"{raw}: no column is known to hold images or text (all columns: {listed}); name them "
            "with --image-column and --text-column"
        )
    if not images and options.text_column is None and (urls := _url_columns(columns)):
        raise PackError(
            f"{raw}: the images seem to be URLs (column {urls[0]!r}), which packing does not "
            "fetch; download first, for example with img2dataset, or pack the text alone with "
            f"--text-column {texts[0]!r}"
        )
    return (images[0] if images else None), (texts[0] if texts else None)


def _image_columns(columns: Mapping[str, Any]) -> list[str]:
    """Columns that hold images; where there are none, columns that name files of images."""
    held = [name for name, value in columns.items() if _holds_image(name, value)]
    return held or [name for name, value in columns.items() if _names_image(name, value)]


def _url_columns(columns: Mapping[str, Any]) -> list[str]:
    return [
        name
        for name, value in columns.items()
        if name.lower() in _URL_COLUMNS and isinstance(value, str) and "://" in value
    ]


def _holds_image(column: str, value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and _holds_image(column, value[0])
    if isinstance(value, bytes):
        return column.lower() in _IMAGE_COLUMNS
    return is_image_struct(value)


def _names_image(column: str, value: Any) -> bool:
    if isinstance(value, list) and value:
        return _names_image(column, value[0])
    if column.lower() in _IMAGE_COLUMNS:
        return value is None or isinstance(value, str | list)
    return (
        column.lower() in _FILE_COLUMNS
        and isinstance(value, str)
        and is_image_extension(value.rpartition(".")[2])
    )


def _text_columns(columns: Mapping[str, Any]) -> list[str]:
    def is_text(value: Any) -> bool:
        if isinstance(value, list):
            return all(isinstance(item, str) for item in value)
        return value is None or isinstance(value, str)

    return [n for n, value in columns.items() if n.lower() in _TEXT_COLUMNS and is_text(value)]


def _sample(
    source: str,
    record: dict[str, Any],
    image: str | None,
    text: str | None,
    root: Path,
    options: ReadOptions,
) -> RawSample:
    value = record.get(image) if image is not None else []
    if value is None or value == "":
        raise MissingMember(f"column `{image}` holds no image")
    images = raw_images(image_list(value), root, source)
    caption = _caption(record.get(text), text) if text is not None else None
    if image is not None:
        record = {**record, image: _names(value)}
    kept, others = plain(record, ())
    # Of a list of captions only the first is the caption, so the record keeps the others.
    whole = kept if record.keys() - {image, text} or _is_list(record, text) else None
    return RawSample(source, images, caption, whole, others, key_of_record(record, options))


def _names(value: Any) -> Any:
    if isinstance(value, list):
        return [name_of_image(item, number) for number, item in enumerate(value)]
    return name_of_image(value, 0)


def _is_list(record: Mapping[str, Any], text: str | None) -> bool:
    return text is not None and isinstance(record.get(text), list)


def _caption(value: Any, column: str) -> str | None:
    """The text of a cell, or the first of a list; None where it is null or empty."""
    if isinstance(value, list):
        value = value[0] if value else None
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise DecodeError(f"column `{column}` holds a {type(value).__name__}, not text")


READER = TableReader()
