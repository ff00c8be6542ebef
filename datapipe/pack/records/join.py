"""Two tables that a column joins: images are in the rows of one, texts in those of the other.

The rows of images are read once, in their order, which Parquet reads fast. They go to a temporary
file, as texts may name them in any order, and an index on disk says where each is.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from datapipe.errors import DecodeError, MissingMember, PackError, SampleError
from datapipe.named_counts import NamedCounts
from datapipe.pack.input.disk_join import Entries, Entry, disk_join, id_in
from datapipe.pack.input.raw_sample import ReadOptions, Reject
from datapipe.pack.input.rejected import rejected
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.images.fields import (
    columns_of_record,
    image_columns,
    is_image,
    is_image_struct,
)
from datapipe.pack.records.locate import RecordGroup, groups_of, levels, name_below, require_one
from datapipe.pack.records.streams.record_files import RecordFiles, first_of, with_images
from datapipe.progress import Progress

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Join:
    """Rows of images, and the columns by which rows of texts are joined with them."""

    text_key: str  # column of the texts
    image_key: str  # column of the images
    images: RecordFiles
    columns: tuple[str, ...]  # of the images' rows: those that hold or name the images

    def merged(self, row: Mapping[str, T], text: Mapping[str, T]) -> dict[str, T]:
        """Return the columns of both; of equal names the text's, but for the images themselves."""
        return {**row, **text, **{name: row[name] for name in self.columns if name in row}}

    def rows(
        self, texts: RecordFiles, options: ReadOptions
    ) -> Iterator[tuple[str, dict[str, Any] | Reject]]:
        """Yield every row of the texts, joined with its image, or a reject, with its source.

        Rows of images that cannot be read or have no id come before, as rejects.
        """
        for path in self.images.files:
            options.notes.use(path)
        with (
            disk_join(options.scratch, "image") as (index,),
            closing(_SpooledRows(options.scratch or Path(tempfile.gettempdir()))) as kept,
        ):
            total = self.images.estimate()
            with Progress("reading images to join", unit="row", total=total) as progress:
                for number, (source, row) in enumerate(self.images):
                    progress.advance()
                    try:
                        if isinstance(row, Reject):
                            yield source, row
                            continue
                        body = [source, kept.put(row)]
                        index.load([Entry(number, id_in(row, self.image_key), body)])
                    except (SampleError, RecursionError) as error:
                        yield source, rejected(source, error)
            for source, text in texts:
                if not isinstance(text, Reject):
                    try:
                        text = self.merged(self._image(text, index, kept), text)
                    except SampleError as error:
                        text = rejected(source, error)
                yield source, text
            unused = NamedCounts()
            for id in index.unclaimed():
                unused.add(f"whose `{self.image_key}` no text has", id)
            for line in unused.lines("left out: {count} of images {text} ({names})", "row"):
                options.notes.decide(line)

    def _image(self, text: Mapping[str, Any], index: Entries, kept: _SpooledRows) -> dict[str, Any]:
        id = id_in(text, self.text_key)
        found = [body for _, body in index.of(id)]
        if not found:
            raise MissingMember(f"no image has the `{self.image_key}` {id}")
        index.claim(id)
        (first, start), *others = found
        row = kept.at(start)
        for source, other in others:
            if self._held(kept.at(other)) != self._held(row):
                raise DecodeError(
                    f"{first} and {source} have the same `{self.image_key}` {id}, and different "
                    "images"
                )
        return row

    def _held(self, row: Mapping[str, Any]) -> list[Any]:
        values = map(row.get, self.columns)
        return [v.get("bytes") or v if isinstance(v, Mapping) else v for v in values]


class _SpooledRows:
    """Rows in a temporary file: pickles, as no other process can write to a file without a name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self._named_failure():
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def close(self) -> None:
        self._file.close()

    def put(self, row: Mapping[str, Any]) -> int:
        """Append a row; return what `at` takes."""
        with self._named_failure():
            start = self._file.tell()
            pickle.dump(row, self._file)
            return start

    def at(self, start: int) -> dict[str, Any]:
        with self._named_failure():
            self._file.seek(start)  # which writes what is buffered, too
            row: dict[str, Any] = pickle.load(self._file)
            return row

    @contextmanager
    def _named_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PackError(
                f"{self._folder}: the temporary file of the images that --join reads failed: "
                f"{os.strerror(error.errno or 0)}; make room there for all bytes of these images"
            ) from error


def open_join(survey: Survey, options: ReadOptions) -> tuple[RecordFiles, Join]:
    """Return the files of texts, and the rows that `options.join` joins them with.

    Files of images have its column and an image in their first row. If some hold bytes and others
    name files, those with bytes count. The other files with its column are texts, and
    `options.include` chooses among them. PackError if either are missing, or the texts are several
    datasets.
    """
    raw, given = survey.raw, options.join or ""
    text_key, equals, image_key = (part.strip() for part in given.partition("="))
    image_key = image_key if equals else text_key
    if not text_key or not image_key:
        raise PackError(
            f"--join {given!r} is neither a column such as image_id nor two such as "
            "image_id=id, of the texts and of the images"
        )
    if not survey.is_folder:
        raise PackError(f"--join joins tables of a folder, and {raw} is none; give their folder")
    found = {path: (group, record) for path, group, record in _groups(survey, None)}
    naming: list[tuple[RecordGroup, list[str]]] = []
    holding: list[tuple[RecordGroup, list[str]]] = []
    for group, record in found.values():
        names = image_columns(columns_of_record(record))
        if (named := options.image_column) is not None and named in record:
            names = [named]
        if image_key in record and names:
            values = map(record.get, names)
            holds = any(is_image(v) or isinstance(v, bytes) or is_image_struct(v) for v in values)
            (holding if holds else naming).append((group, names))
    images = holding or naming
    taken = {path for group, _ in images for path in group.files}
    texts = [
        group
        for _, group, record in _groups(survey, options.include)
        if text_key in record and taken.isdisjoint(group.files)
    ]
    for what, key, groups in (("images", image_key, images), ("texts", text_key, texts)):
        if not groups:
            seen = (
                f"{name}: {', '.join(map(repr, record))}" for name, (_, record) in found.items()
            )
            raise PackError(
                f"--join {given!r}: no file of {what} here has the column {key!r} "
                f"(found: {'; '.join(islice(seen, 5)) or survey.describe()})"
            )
    require_one(raw, options.include, texts)
    for group, _ in images:
        require_one(raw, None, [group])
    rows = with_images(raw, options, [group for group, _ in images])
    columns = tuple(dict.fromkeys(name for _, names in images for name in names))
    join = Join(text_key=text_key, image_key=image_key, images=rows, columns=columns)
    text_files = tuple(path for group in texts for path in group.files)
    options.notes.decide(
        f"{texts[0].pattern} is joined with the images of "
        f"{', '.join(group.pattern for group, _ in images)} ({text_key}={image_key})"
    )
    return RecordFiles(raw=raw, files=text_files, images=rows.images), join


def _groups(
    survey: Survey, include: str | None
) -> Iterator[tuple[str, RecordGroup, dict[str, Any]]]:
    """Yield the groups of files with the names of their first ones and their first records."""
    for level in levels(survey, include):
        for group in groups_of(survey.raw, level):
            try:
                record = first_of(survey, group.files)
            except PackError:
                if group.is_parquet:
                    raise
                continue  # such as a JSON object beside the tables
            if record is not None:
                yield name_below(survey.raw, group.files[0]), group, record
