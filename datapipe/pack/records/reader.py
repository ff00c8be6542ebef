"""Functions that the readers of records with images share.

An image's bytes leave its record and become a member. In their place the record names the image: by
its path where it had one, else as `image:N`, where N counts the images of the sample from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from datapipe.errors import SampleError
from datapipe.pack.input.raw_sample import RawSample, ReadOptions, Reject
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.images.fields import rejected
from datapipe.pack.records.images.roots import Images
from datapipe.pack.records.images.unused import map_of_turns, note_unused
from datapipe.pack.records.streams.record_files import (
    Fits,
    RecordFiles,
    find_records,
    key_of_record,
    open_records,
    plain,
)
from datapipe.pack.records.videos import raw_pictures, take_videos, without_videos

T = TypeVar("T")
Made = TypeVar("Made")
Record = Mapping[str, Any]
Samples = Iterable[RawSample]


@dataclass(frozen=True, kw_only=True)
class RecordReader:
    """A `Reader` of files of records, whatever the files are."""

    name: str
    summary: str
    what: str  # the records it reads, for messages
    fits: Fits  # whether a record is one of them; must not raise
    # A record's images, in order, and the record without their bytes. Raises `SampleError` where it
    # makes no sense.
    unpack: Callable[[Record], tuple[list[Any], Record]]
    takes: frozenset[str] = frozenset({"image_root", "include", "key_from"})

    def recognises(self, survey: Survey, options: ReadOptions) -> bool:
        return bool(find_records(survey, options, self.fits))

    def open(self, survey: Survey, options: ReadOptions) -> RecordFiles:
        return open_records(survey, options, self.fits, self.what)

    def estimate(self, source: RecordFiles, options: ReadOptions) -> int | None:
        return source.estimate()

    def read(self, source: RecordFiles, options: ReadOptions) -> Iterator[RawSample | Reject]:
        for part in source.parts():

            def samples(source: str, record: Record, files: Images = part.images) -> Samples:
                record, videos = take_videos(record) if options.videos else (record, [])
                values, rest = self.unpack(record)
                fields = without_videos(record) if videos else record
                note_unused(fields, values, source, options.notes, map_of_turns(record, values))
                kept, others = plain(rest)
                key = key_of_record(record, options)
                pictures = raw_pictures(values, videos, files, source)
                return (RawSample(source, pictures, record=kept, others=others, key=key),)

            yield from each_record(part, samples)


def each_record(
    records: Iterable[tuple[str, T | Reject]], make: Callable[[str, T], Iterable[Made]]
) -> Iterator[Made | Reject]:
    """Yield what is made of each source and record; records that are refused as rejects."""
    for source, record in records:
        if isinstance(record, Reject):
            yield record
            continue
        try:
            yield from make(source, record)
        except SampleError as error:
            yield rejected(source, error)
        except RecursionError:
            yield Reject(source, "record is nested too deeply", "DecodeError")
