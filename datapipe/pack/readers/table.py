"""Tables with images, and a caption or turns, in each row: Parquet, CSV, JSONL, `imagefolder`.

The `Image` feature of Hugging Face `datasets` is a struct of `bytes` and `path`, and its
`imagefolder` is a folder of images with a `metadata.csv` or `metadata.jsonl` whose `file_name`
names them (https://huggingface.co/docs/datasets/image_dataset). What the columns mean is decided
in `records/fields/columns.py`, or said by `--map`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from datapipe.errors import PackError
from datapipe.pack.input.raw_sample import Input, RawSample, ReadOptions
from datapipe.pack.input.survey import Survey
from datapipe.pack.readers import caption_list, vqa
from datapipe.pack.readers.conversations import is_chat, is_preference
from datapipe.pack.records.fields.columns import image_sources, infer, is_table
from datapipe.pack.records.fields.field_map import FieldMap, parse_map
from datapipe.pack.records.fields.field_path import parse_source
from datapipe.pack.records.fields.refusals import listed
from datapipe.pack.records.fields.turns import refuse_bad_answer
from datapipe.pack.records.images.fields import elsewhere
from datapipe.pack.records.images.roots import PROBED, Images, find_images
from datapipe.pack.records.images.unused import unused_images
from datapipe.pack.records.join import Join, open_join
from datapipe.pack.records.reader import Record, each_record, with_captions
from datapipe.pack.records.streams.containers import first_records, kind_of
from datapipe.pack.records.streams.parquet_records import first_row, open_parquet
from datapipe.pack.records.streams.record_files import (
    Fits,
    RecordFiles,
    find_records,
    is_unreadable,
    key_of_record,
    open_records,
    plain,
)
from datapipe.pack.records.videos import field_of_videos, raw_pictures, take_videos, without_videos
from datapipe.text.conversation import conversation
from datapipe.text.videos import VIDEO_REMEDY

_RECORDS = 100
_FILES = 20
_NAMES = 3


def sample_columns(records: RecordFiles) -> dict[str, list[Any]]:
    """Return the values of the first records that are not empty, by column, in the files' order.

    Columns of Parquet that are null everywhere have a value that tells their type; those with
    images or bytes are read of one row alone, as they may be large.
    """
    columns: dict[str, list[Any]] = {}
    for number, path in enumerate(records.files):
        if number >= _FILES and any(columns.values()):
            break
        if is_parquet := kind_of(path) == "parquet":
            found = _parquet_columns(path)
        else:
            rows = list(first_records(path))
            names = dict.fromkeys(name for row in rows for name in row)
            found = {name: [row.get(name) for row in rows] for name in names}
        for name, values in found.items():
            kept = columns.setdefault(name, [])
            filled = [value for value in values if value not in (None, "", [])]
            kept += filled if is_parquet else filled[: max(_RECORDS - len(kept), 0)]
    return columns


def _parquet_columns(path: Path) -> dict[str, list[Any]]:
    row = first_row(path)
    if row is None:
        return {}
    columns = {name: [value] for name, value in row.items()}
    with open_parquet(path) as file:
        small = [field.name for field in file.schema_arrow if _is_small(field.type)]
        batches = file.iter_batches(batch_size=_RECORDS, columns=small, use_threads=False)
        for batch in islice(batches, 1) if small else ():
            columns |= batch.to_pydict()
    return columns


def _is_small(kind: pa.DataType) -> bool:
    """Return whether values of a type are texts and numbers, and not images."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_small(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_small(kind.field(i).type) for i in range(kind.num_fields))
    return not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


_OF_OTHERS = ("conversations", "messages", "texts")


class ImageTable(NamedTuple):
    """Files of rows, the meaning of their columns, and the rows that they are joined with."""

    records: RecordFiles
    fields: FieldMap
    join: Join | None = None

    @property
    def spooled(self) -> int:
        """Return the most bytes that reading copies to a temporary file."""
        return sum(path.stat().st_size for path in self.join.images.files) if self.join else 0


class TableReader:
    """Columns of images, of a caption or of turns; the other columns become the record."""

    name = "table"
    summary = "Parquet, CSV, TSV, JSONL: columns of images, captions, questions and answers (--map)"
    takes = frozenset(
        {
            *("image_root", "image_column", "text_column", "include", "key_from", "map"),
            *("join", "captions"),
        }
    )

    def recognises(self, survey: Survey, options: ReadOptions) -> bool:
        # Lists of captions and of questions by image have readers of their own.
        if options.map is None and (
            any(map(kind_of, caption_list.READER.find(survey, options)))
            or vqa.READER.recognises(survey, options)
        ):
            return False
        # Many a JSON file beside other data has a `description`; only a file that was named may
        # hold nothing but text.
        fits = _fits(options, text_is_enough=survey.is_file)
        named = (options.map, options.image_column, options.text_column)
        # Else a pair is columns that were named.
        may_be_pairs = any(option is not None for option in named)

        def is_meant(record: Mapping[str, Any]) -> bool:
            return fits(record) and (may_be_pairs or not is_preference(record))

        return bool(find_records(survey, options, is_meant)) or is_unreadable(survey, options)

    def open(self, survey: Survey, options: ReadOptions) -> ImageTable:
        if options.join is None:
            records, join = _open(survey, options), None
        else:
            records, join = open_join(survey, options)
        columns = sample_columns(records)
        if join is not None:
            columns = join.merged(sample_columns(join.images), columns)
        fields = _field_map(records, columns, options)
        return ImageTable(records, _named_classes(fields, records, options), join)

    def estimate(self, source: ImageTable, options: ReadOptions) -> int | None:
        return source.records.estimate()

    def read(self, source: ImageTable, options: ReadOptions) -> Iterator[Input]:
        for part in source.records.parts():
            images = part.images if source.join else _images(part, source.fields, options)

            def samples(name: str, record: Record, images: Images = images) -> Iterator[RawSample]:
                sample, texts = _sample(source.fields, images, options, name, record)
                return with_captions(sample, texts, options)

            rows = source.join.rows(part, options) if source.join else part
            yield from each_record(rows, samples)


def _open(survey: Survey, options: ReadOptions) -> RecordFiles:
    fits = _fits(options, text_is_enough=False)
    if not find_records(survey, options, fits):
        fits = _fits(options, text_is_enough=True)
    named = [name for name in (options.image_column, options.text_column) if name]
    what = "a column of images or of text (name them with --image-column and --text-column)"
    if options.map is not None:
        what = f"fields of --map {options.map!r}"
    elif named:
        what = f"column {' and '.join(map(repr, named))}"
    return open_records(survey, options, fits, what)


def _fits(options: ReadOptions, text_is_enough: bool) -> Fits:
    mapped = parse_map(options.map).fields if options.map is not None else frozenset()
    named: set[str] = set()
    for option in (options.image_column, options.text_column):
        if option:
            named.add(option)
            with suppress(PackError):  # a column may be called so
                named |= {*parse_source(option).fields}

    def fits(record: Mapping[str, Any]) -> bool:
        if mapped:
            return any(name in record for name in mapped)
        if is_chat(record) or any(isinstance(record.get(field), list) for field in _OF_OTHERS):
            return False
        if any(name in record for name in named):
            return True
        is_enough = text_is_enough or options.image_column == ""
        if options.videos and field_of_videos(record):
            is_enough = True
        return is_table(record, text_is_enough=is_enough)

    return fits


def _field_map(
    records: RecordFiles, columns: dict[str, list[Any]], options: ReadOptions
) -> FieldMap:
    raw, files, held = records.raw, records.parts()[0].images, columns
    if options.videos:
        columns = without_videos(columns)
    image, text = options.image_column, options.text_column
    if options.map is None:
        return infer(columns, raw, options, files)
    fields = parse_map(options.map)
    if text is not None:
        raise PackError(
            f"--map says what the text is, so leave out --text-column; for a caption, --map "
            f"'{replace(fields, turns=(), messages=None, caption=parse_source(text or 'COLUMN'))}'"
        )
    if image is not None and (fields.images or fields.imageless):
        raise PackError("--map says what the images are, so leave out --image-column")
    for source in fields.sources:
        if source.fields and not any(name in held for name in source.fields):
            raise PackError(
                f"--map {str(source)!r}: {raw} has no such field; it has {listed(held)}"
            )
    if fields.videos and not options.videos:
        raise PackError(f"--map 'video={fields.videos[0]}' needs {VIDEO_REMEDY}")
    if fields.images or fields.imageless:
        return fields
    texts = {source.label for source in fields.sources if source.kind == "field"}
    others = {name: values for name, values in columns.items() if values and name not in texts}
    if image is None and fields.has_images_in_turns({n: v[0] for n, v in columns.items() if v}):
        return fields
    images = image_sources(others, raw, options, files)
    if images and image is None:
        names = ", ".join(map(str, images))
        options.notes.decide(
            f"images: {names} (recognised by name; `image=` in the map leaves them out)"
        )
    elif image is None and (addressed := elsewhere(others)):
        options.notes.decide(
            f"no column is known to hold images, so text alone is packed; {listed(addressed)} may "
            "name images by address or id"
        )
    return replace(fields, images=images, recognised=image is None)


def _named_classes(fields: FieldMap, records: RecordFiles, options: ReadOptions) -> FieldMap:
    """Return the map with the names of classes that Parquet has beside their numbers."""
    if kind_of(records.files[0]) != "parquet":
        return fields
    with open_parquet(records.files[0]) as file:
        found = _class_names(file.schema_arrow.metadata or {})
    texts = replace(fields, images=()).fields
    classes = {column: names for column, names in found.items() if column in texts}
    for column, names in classes.items():
        shown = ", ".join(names[:_NAMES]) + (", ..." if len(names) > _NAMES else "")
        options.notes.decide(f"`{column}` is written as the names of its classes ({shown})")
    return replace(fields, classes=classes)


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the names of the classes in each column of `datasets`' feature `ClassLabel`.

    The columns may be of lists of classes. The names are in the metadata of a Parquet file's
    schema, as JSON (https://huggingface.co/docs/datasets/about_dataset_features).
    """
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        found = {name: feature.get("feature", feature) for name, feature in features.items()}
        return {
            name: [str(label) for label in feature["names"]]
            for name, feature in found.items()
            if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list)
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _images(part: RecordFiles, fields: FieldMap, options: ReadOptions) -> Images:
    """Return where the images are; those of a user's template are looked for by their own names."""
    templates = [source for source in fields.images if source.kind == "text"]
    if not templates:
        return part.images
    paths = [path for path in map(templates[0].probe, first_records(part.files[0])) if path]
    return find_images(part.files[0], part.raw, options, paths[:PROBED], required=False)


def _sample(
    fields: FieldMap, files: Images, options: ReadOptions, source: str, record: Record
) -> tuple[RawSample, Sequence[str]]:
    """Return a row without its captions, and these."""
    record, videos = take_videos(fields.with_videos(record)) if options.videos else (record, [])
    mapped = fields.read(record, files)
    if fields.has_turns and options.map is None:
        refuse_bad_answer(record, fields.fields)
    read = {image.label for image in fields.images if image.kind == "field"}
    pictured = without_videos(record) if videos else record
    for field in unused_images(pictured, mapped.images):
        if mapped.in_turns:
            options.notes.pass_over(field, source, "")
        elif field not in read:
            options.notes.pass_over(field, source, fields.with_image(field))
    images = raw_pictures(mapped.images, videos, files, source)
    kept, others = plain(mapped.record)
    # Packing checks the record next, and media given as bytes have left it then.
    if fields.has_turns and others and not videos:
        conversation(mapped.record, images=len(images))
    # A record is kept where it says more than the images' names and the caption do.
    caption = fields.caption
    said = {f for image in fields.images if image.kind == "field" for f in image.fields}
    if caption and caption.kind == "field" and not isinstance(caption.get(record), list):
        said |= {*caption.fields}
    whole = kept if fields.has_turns or record.keys() - said else None
    sample = RawSample(source, images, None, whole, others, key_of_record(record, options.key_from))
    return sample, mapped.captions


READER = TableReader()
