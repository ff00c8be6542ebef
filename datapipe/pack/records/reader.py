"""Readers of records and of annotation files with images, and functions that they share.

An image's bytes leave its record and become a member. In their place the record names the image: by
its path where it had one, else as `image:N`, where N counts the images of the sample from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from datapipe.errors import DecodeError, MissingMember, PackError, SampleError
from datapipe.pack.input.disk_join import Entry
from datapipe.pack.input.raw_sample import (
    Input,
    RawImage,
    RawInput,
    RawRecord,
    RawSample,
    ReadOptions,
    RecordSample,
    Reject,
)
from datapipe.pack.input.rejected import rejected
from datapipe.pack.input.survey import Survey
from datapipe.pack.records.images.fields import named_blob
from datapipe.pack.records.images.roots import Images, Spelled, find_images
from datapipe.pack.records.images.unused import map_of_turns, unused_images
from datapipe.pack.records.locate import LOOK, find_objects, only_one
from datapipe.pack.records.streams.containers import checked_record, kind_of
from datapipe.pack.records.streams.json_stream import JsonText, count_marks, read_member_arrays
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
Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RecordReader:
    """A `Reader` of files of records, whatever the files are."""

    name: str
    summary: str
    what: str  # the records it reads, for messages
    fits: Fits  # whether a record is one of them; must not raise
    # A record's images, in order, and the record without their bytes. Raises `SampleError` where it
    # makes no sense. Workers get it by pickle: a function of a module, or a `partial` of one.
    unpack: Callable[[Record], tuple[list[Any], Record]]
    takes: frozenset[str] = frozenset({"image_root", "include", "key_from"})

    def recognises(self, survey: Survey, options: ReadOptions) -> bool:
        return bool(find_records(survey, options, self.fits))

    def open(self, survey: Survey, options: ReadOptions) -> RecordFiles:
        return open_records(survey, options, self.fits, self.what)

    def estimate(self, source: RecordFiles, options: ReadOptions) -> int | None:
        return source.estimate()

    def read(self, source: RecordFiles, options: ReadOptions) -> Iterator[RawInput]:
        for part in source.parts():
            sample_of = partial(
                _sample_of, self.unpack, part.images, options.key_from, options.videos
            )
            # A video ends the chunk of a worker, so videos have to be known here.
            as_text = options.deferred and not options.videos
            are_json = all(kind_of(path) == "json" for path in part.files)
            for name, record in part.read(as_text=as_text and are_json):
                if isinstance(record, Reject):
                    yield record
                elif isinstance(record, JsonText):
                    yield RawRecord(name, record, len(record.text), sample_of)
                else:
                    sample, unused = sample_of(name, record)
                    for field, remedy in unused:
                        options.notes.pass_over(field, name, remedy)
                    yield sample


def _sample_of(
    unpack: Callable[[Record], tuple[list[Any], Record]],
    images: Images,
    key_from: str | None,
    wants_videos: bool,
    source: str,
    record: Record | JsonText,
) -> RecordSample:
    """Return the sample of a record that a reader unpacks, here or in a worker."""
    sample: Input
    unused: list[tuple[str, str]] = []  # those of a record that is refused count too
    try:
        if isinstance(record, JsonText):
            source, parsed = checked_record(source, record.parse())
            if isinstance(parsed, Reject):
                return RecordSample(parsed)
            record = parsed
        record, videos = take_videos(record) if wants_videos else (record, [])
        values, rest = unpack(record)
        fields = without_videos(record) if videos else record
        for field in unused_images(fields, values):
            unused.append((field, map_of_turns(record, values, field)))
        kept, others = plain(rest)
        key = key_of_record(record, key_from)
        pictures = raw_pictures(values, videos, images, source)
        sample = RawSample(source, pictures, record=kept, others=others, key=key)
    except (SampleError, RecursionError) as error:
        sample = rejected(source, error)
    return RecordSample(sample, tuple(unused))


def each_record(
    records: Iterable[tuple[str, T | Reject]], samples: Callable[[str, T], Iterable[RawSample]]
) -> Iterator[Input]:
    """Yield the samples of each source and record; records that are refused as rejects."""
    for source, record in records:
        if isinstance(record, Reject):
            yield record
            continue
        try:
            yield from samples(source, record)
        except (SampleError, RecursionError) as error:
            yield rejected(source, error)


def with_captions(
    sample: RawSample, captions: Sequence[str], options: ReadOptions
) -> Iterator[RawSample]:
    """Yield `sample` with its captions, as `Captions` says; without any it stays as it is.

    The source of the second sample of an image ends in `:1`, that of the third in `:2`.
    """
    notes = options.notes
    if len(captions) < 2:
        yield sample._replace(caption=captions[0] if captions else sample.caption)
    elif options.captions == "join":
        notes.decide("several captions of an image are one text, a line each (--captions join)")
        yield sample._replace(caption="\n".join(captions))
    elif options.captions == "first":
        notes.captions_unused += len(captions) - 1
        yield sample._replace(caption=captions[0])
    else:
        notes.decide(
            "an image with several captions is a sample for each (--captions first and "
            "--captions join keep one sample an image)"
        )
        notes.captions_repeat_images = bool(sample.images)
        for number, caption in enumerate(captions):
            source = f"{sample.source}:{number}" if number else sample.source
            yield sample._replace(source=source, caption=caption)


class Captioned(NamedTuple):
    """An image with its captions."""

    source: str  # where it came from
    image: Spelled
    # In order; blank ones do not count, and an image without any is rejected; None if the record
    # has the text
    captions: list[str] | None
    record: Mapping[str, Any]  # kept if it says more than `image`, the name of the image


CaptionFile = tuple[Path, Images]  # a file of captions, and the folders of its images


class CaptionReader:
    """Base of the readers of one file that names images and gives them captions.

    Attributes:
        what: content of such files, for messages.
        absent: error where no file fits; "" for the usual one.
        marks: text that stands once for each caption, and for each image; "" if there is none.
    """

    name = ""
    summary = ""
    takes = frozenset({"image_root", "include", "key_from", "captions"})
    what = absent = ""
    marks = ("", "")

    def fits(self, path: Path) -> bool:
        """Return whether a JSON file begins as this layout does; must not raise."""
        return False

    def entries(self, path: Path, options: ReadOptions) -> Iterator[Captioned | Reject]:
        """Yield the images of a file, in order."""
        raise NotImplementedError

    def first_images(self, path: Path) -> Sequence[Spelled]:
        """Return the first images that a file names, each once."""
        raise NotImplementedError

    def find(self, survey: Survey, options: ReadOptions) -> list[Path]:
        """Return the files that are meant; must be quick and not raise."""
        return find_objects(survey, options, self.fits)

    def choose(self, survey: Survey, options: ReadOptions) -> Path:
        """Return the one file that fits; PackError if none fits, or several do."""
        # Of files that fit without being meant, an error will say why.
        found = self.find(survey, options) or find_objects(survey, options, self.fits)
        return only_one(survey.raw, found, self.what, self.absent)

    def recognises(self, survey: Survey, options: ReadOptions) -> bool:
        return bool(self.find(survey, options))

    def open(self, survey: Survey, options: ReadOptions) -> CaptionFile:
        path = self.choose(survey, options)
        return path, find_images(path, survey.raw, options, self.first_images(path))

    def estimate(self, source: CaptionFile, options: ReadOptions) -> int | None:
        mark = self.marks[options.captions in ("first", "join")]
        return sum(count_marks(source[0], mark.encode())) if mark else None

    def read(self, source: CaptionFile, options: ReadOptions) -> Iterator[Input]:
        path, images = source
        return samples_of(self.entries(path, options), images, options)


def samples_of(
    items: Iterable[Captioned | Reject], images: Images, options: ReadOptions
) -> Iterator[Input]:
    """Yield the samples of images with captions, and the rejects among them."""

    def samples(source: str, item: Captioned) -> Iterator[RawSample]:
        captions = [caption for caption in item.captions or () if caption.strip()]
        if not captions and item.captions is not None:
            raise MissingMember("image has no caption")
        blob = named_blob(item.image, images, source)
        key = key_of_record(item.record, options.key_from)
        record = plain(item.record)[0] if item.record.keys() != {"image"} else None
        sample = RawSample(source, (RawImage(blob),), record=record, key=key)
        return with_captions(sample, captions, options)

    return each_record(((item.source, item) for item in items), samples)


def first_entries(entries: Generator[T], most: int) -> list[T]:
    """Return the first entries of a file, or as many as can be read."""
    found: list[T] = []
    with suppress(PackError), closing(entries):
        found.extend(islice(entries, most))
    return found


def first_entry(path: Path, *names: str, most: int = LOOK) -> tuple[str, dict[str, Any]]:
    """Return the first entry of some arrays, with its array; ("", {}) if it is no object."""
    for name, _, entry in first_entries(read_member_arrays(path, names, most=most), 1):
        if isinstance(entry, dict):
            return name, entry
    return "", {}


def first_objects(path: Path, name: str, most: int) -> list[dict[str, Any]]:
    """Return the objects among the first entries of an array."""
    with closing(read_member_arrays(path, {name})) as entries:
        return [entry for _, _, entry in islice(entries, most) if isinstance(entry, dict)]


def checked_object(value: Any) -> dict[str, Any]:
    """Return an entry of an array; raise a DecodeError if it is no object."""
    if not isinstance(value, dict):
        raise DecodeError(f"entry is a {type(value).__name__}, not an object")
    return value


def parsed_entries(
    entries: Iterable[tuple[Any, ...]], parse: Callable[..., tuple[str, Any]]
) -> Iterator[Entry]:
    """Yield entries for a join of (number, value, *what else `parse` takes), or their faults."""
    for number, value, *more in entries:
        try:
            yield Entry(number, *parse(checked_object(value), *more))
        except SampleError as error:
            yield Entry(number, None, None, error.reason, type(error).__name__)
