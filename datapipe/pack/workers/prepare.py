"""One raw sample, read and checked, into the bytes of its members and its row of the index.

This is the part of a pack that workers do; it knows nothing of shards and of other samples.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from datapipe.decode.foreign import PHOTO_QUALITY, convert
from datapipe.decode.image import MAX_PIXELS, check_image, check_size
from datapipe.decode.pages import count_pages, encode_pages
from datapipe.decode.shrink import ShrinkOptions, shrink
from datapipe.decode.video import VideoOptions, VideoReader
from datapipe.errors import DecodeError, SampleError
from datapipe.index.files.crc32 import crc32
from datapipe.index.images.formats import raw_format
from datapipe.index.images.header import ImageInfo, NeedMoreData, probe
from datapipe.index.media import START
from datapipe.index.rows import ImageSize, Member, Row
from datapipe.index.tar.contents import refuse_missing_image
from datapipe.pack.input.members import settle
from datapipe.pack.input.raw_sample import (
    Blob,
    NamedTexts,
    RawImage,
    RawSample,
    RawVideo,
    Reject,
    has_video,
)
from datapipe.pack.input.rejected import rejected
from datapipe.pack.input.texts import dump, read_caption, read_record
from datapipe.pack.records.fields.field_map import apply_map
from datapipe.pack.records.videos import in_order
from datapipe.pack.teaching import SampleLesson, look
from datapipe.pack.workers.library_messages import LibraryMessages
from datapipe.pack.workers.write_buffer import WriteBuffer
from datapipe.pack.writers.ustar import MAX_NAME
from datapipe.text.sample_text import encode, raw_text, sample_text
from datapipe.text.videos import Video, frame_extension, with_frames

Check = Literal["decode", "header"]
Pages = Literal["first", "all"]

_KEY_DIGITS = 9
_KEY_TEXT = 20  # characters of a user's key that stay readable
_MAX_KEY = 38
_MAX_EXT = MAX_NAME - _MAX_KEY - 1
_MAX_KIND = 12
_MAX_PATH = 4096
_HEAD = 4096  # bytes that hold the header of nearly every image
_UNSAFE = re.compile(r"[^a-z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Options of the preparation of samples."""

    # "decode" refuses what training could not decode, "header" reads headers
    check: Check = "decode"
    max_pixels: int = MAX_PIXELS  # images with more are rejected
    shrink: ShrinkOptions = field(default_factory=ShrinkOptions)  # how images are made smaller
    # "first" takes the first page or frame of an image file, "all" makes each an image
    pages: Pages = "first"
    videos: VideoOptions | None = None  # which frames of videos are taken
    key_salt: str = ""  # text hashed into named keys beside the source
    named_keys: bool = False  # whether keys are made of `RawSample.key` instead of ordinals
    # What `--map` makes of the JSON that samples have; None where the reader did that
    map: str | None = None


class Outcome(NamedTuple):
    """Result of an input that was accepted."""

    bytes: int  # size in the shard
    saved: int  # bytes by which shrinking made its images smaller
    seen: SampleLesson  # what it teaches
    notes: tuple[tuple[str, str], ...] = ()  # pairs of a text and a file's name, on its images
    # Pairs of a file's name and its number of pages, of images that have several
    pages: tuple[tuple[str, int], ...] = ()
    videos: tuple[Video, ...] = ()  # those that gave frames


def prepare(
    sample: RawSample, ordinal: int, options: PrepareOptions, buffer: WriteBuffer
) -> Reject | tuple[Row, int, Outcome]:
    """Read a sample's members, check its images, and lay it out in `buffer`.

    Return the row of the index, with offsets counted from the sample's first byte, the sample's
    offset in its segment, and the outcome.
    """
    buffer.begin()
    try:
        return _Sample(sample, _key(sample, ordinal, options), options, buffer).prepare()
    except SampleError as error:
        buffer.discard()
        reject = rejected(sample.source, error)
        if len(reject.file) > _MAX_PATH:  # an image itself, in a form that was taken for its path
            reject = reject._replace(file=f"{reject.file[:_KEY_TEXT]}...")
        return reject


def _key(sample: RawSample, ordinal: int, options: PrepareOptions) -> str:
    """Return the key of a sample: its ordinal, or its name with a hash that makes it unique."""
    if not options.named_keys:
        return str(ordinal).zfill(_KEY_DIGITS)
    hashed = f"{options.key_salt}\0{sample.source}".encode("utf-8", "surrogatepass")
    text = _UNSAFE.sub("_", sample.key.lower()).replace(".", "_")[:_KEY_TEXT].strip("-")
    return f"{text or 'x'}-{hashlib.sha256(hashed).hexdigest()[:16]}"


class _Sample:
    """Sample that is being laid out."""

    def __init__(
        self, sample: RawSample, key: str, options: PrepareOptions, buffer: WriteBuffer
    ) -> None:
        self.sample = sample
        self.key = key
        self.options = options
        self.buffer = buffer
        self.members: list[Member] = []
        self.sizes: list[ImageSize] = []
        self.extensions: set[str] = set()
        self.saved = 0
        self.notes: list[tuple[str, str]] = []
        self.pages: list[tuple[str, int]] = []
        self.videos: list[Video] = []

    def prepare(self) -> tuple[Row, int, Outcome]:
        caption = record = None
        content = b""
        images: Sequence[RawImage | RawVideo] = self.sample.images
        if has_video(self.sample):  # its text says where videos are among the images
            if self.sample.record is not None:
                record, content = read_record(self.sample.record)
            record, images = in_order(record, images)
        for image in images:
            if isinstance(image, RawVideo):
                self.add_video(image)
            else:
                self.add_image(image)
        if record is None and self.sample.record is not None:
            record, content = read_record(self.sample.record)
        raw_caption, others = self.sample.caption, self.sample.others
        beside = ""  # text that is not learnt
        if isinstance(raw_caption, NamedTexts):
            raw_caption, settled, unused = settle(raw_caption, record, self.options.map)
            others = (*unused, *others)
            if unused and self.options.map is None:
                beside = f"a text `{unused[0][0]}` beside that of their JSON"
            if settled is not record:
                record, content = settled, encode(dump(settled))
        if self.options.map is not None:
            record, caption = apply_map(record, self.options.map, self.sample.source)
            content = encode(dump(record))
            if caption is not None:
                self.add("", "txt", self.buffer.put(encode(caption)))
            if raw_caption is not None:  # kept, but no longer the sample's text
                self.add("given", "txt", self.buffer.put(read_caption(raw_caption)[1]))
        elif raw_caption is not None:
            caption, text = read_caption(raw_caption)
            self.add("", "txt", self.buffer.put(text))
            second = raw_text(None, record).strip() if isinstance(self.sample.record, Blob) else ""
            if second and second != caption.strip():
                beside = "another text in the JSON beside their caption"
        if self.videos:
            record = with_frames(record, self.videos)
            content = encode(dump(record))
        if record is not None or self.sample.record is not None:
            self.add("", "json", self.buffer.put(content))
        for ext, blob in others:
            prefix, _, kind = ext.rpartition(".")
            self.add(prefix, _name_part(kind), self.buffer.read(blob))
        if not self.sizes and isinstance(self.sample.record, Blob):
            refuse_missing_image(record)
        seen = self.look(caption, record)
        if beside:
            seen = seen._replace(beside=beside)
        if not self.sizes and not seen.text:
            raise DecodeError("sample has neither image nor text")
        text_bytes = len(encode(sample_text(caption, record)))
        row = Row(self.key, self.members, self.sizes, text_bytes, self.sample.source)
        start, size = self.buffer.commit()
        notes, pages, videos = tuple(self.notes), tuple(self.pages), tuple(self.videos)
        return row, start, Outcome(size, self.saved, seen, notes, pages, videos)

    def look(self, caption: str | None, record: Any) -> SampleLesson:
        """Return what training sees of the texts; an error names `--pages` where it would help."""
        try:
            return look(caption, record, len(self.sizes))
        except DecodeError as error:
            if self.options.pages == "all" or not self.pages:
                raise
            further = sum(pages - 1 for _, pages in self.pages)
            with suppress(DecodeError):
                look(caption, record, len(self.sizes) + further)
                label, pages = self.pages[0]
                error = DecodeError(
                    f"{error.reason}; {label} has {pages} pages, and with --pages all, each is an "
                    "image"
                )
            raise error from None

    def add_video(self, video: RawVideo) -> None:
        """Take the frames of a video, each as an image, and note when they are shown."""
        options, number, first = self.options.videos, len(self.videos), len(self.sizes)
        assert options is not None
        if video.fps is not None:
            self.add_listed(video, video.fps, options)
            return
        (blob,) = video.blobs
        smaller, limit = self.options.shrink, self.options.max_pixels
        try:
            with (
                blob.file() as file,
                closing(VideoReader(file, options, smaller, max_pixels=limit)) as reader,
            ):
                for frame, (content, info) in enumerate(reader.encoded()):
                    self.add_encoded(_prefix(number, frame), info, self.buffer.put(content))
        except DecodeError as error:
            raise DecodeError(error.reason, member=error.member or blob.label) from error
        self.videos.append(Video(video.name, first, reader.times, reader.duration, reader.fps))

    def add_listed(self, video: RawVideo, fps: float, options: VideoOptions) -> None:
        """Take frames of a video that are images already."""
        first, last = len(self.sizes), len(video.blobs) - 1
        rate = fps or 1.0
        if not fps:
            said = "frames of a video without `fps`, taken as one a second"
            self.notes.append((said, video.name))
        count = options.choose(last / rate, last + 1)
        chosen = [last * n // max(count - 1, 1) for n in range(count)]
        sides = [side for side in (options.size, self.options.shrink.max_side) if side is not None]
        smaller = replace(self.options.shrink, max_side=min(sides, default=None))
        for frame, index in enumerate(chosen):
            prefix = _prefix(len(self.videos), frame)
            self.add_image(RawImage(video.blobs[index], prefix), smaller, is_frame=True)
        if len({(size.width, size.height) for size in self.sizes[first:]}) > 1:
            said = "frames of a video that differ in size, which some models (Qwen) do not take"
            self.notes.append((said, video.name))
        times = tuple(index / rate for index in chosen)
        self.videos.append(Video(video.name, first, times, (last + 1) / rate, rate))

    def add_image(
        self,
        image: RawImage,
        shrink_options: ShrinkOptions | None = None,
        *,
        is_frame: bool = False,
    ) -> None:
        """Read, check and maybe shrink an image; one that no loader reads is converted."""
        data = self.buffer.read(image.blob)
        messages = LibraryMessages(data)
        label, limit = image.blob.label, self.options.max_pixels
        shrink_options = shrink_options or self.options.shrink
        form = encoded = None
        try:
            try:
                info = _header(data)
            except DecodeError:
                form = raw_format(bytes(data[:START]), label) if data else None
                if form is None:
                    raise
                ext = label.rpartition(".")[2]
                content, info, codec = convert(
                    data, form, shrink_options, max_pixels=limit, ext=ext
                )
                encoded = (content, info)
            else:
                check_size(info, limit)
                if (pages := count_pages(data, info)) > 1:
                    self.pages.append((label, pages))
                    if self.options.pages == "all" and not is_frame:
                        self.add_pages(image, bytes(data), info, messages)
                        return
                if shrink_options.active:
                    encoded = shrink(data, info, shrink_options, max_pixels=limit)
                if encoded is None and self.options.check == "decode":
                    check_image(data, info, max_pixels=limit)
        except DecodeError as error:
            said = messages.pixels()
            reason = f"{error.reason} ({said[0]})" if said else error.reason
            raise DecodeError(reason, member=label) from error
        self.notes += [(text, label) for text in messages.notes()]
        if form:
            if codec == "JPEG" and shrink_options.image_format == "keep":
                codec = f"JPEG of quality {shrink_options.quality or PHOTO_QUALITY}"
            self.notes.append((f"{form.name} converted to {codec}", label))
        if encoded:
            content, info = encoded
            self.saved += 0 if form else len(data) - len(content)
            data = self.buffer.replace(content)
        self.add_encoded(image.prefix, info, data)

    def add_pages(
        self, image: RawImage, data: bytes, info: ImageInfo, messages: LibraryMessages
    ) -> None:
        """Add each page of an image that was read last as an image of its own."""
        pages = encode_pages(data, info, self.options.shrink, max_pixels=self.options.max_pixels)
        for number, (content, page) in enumerate(pages):
            view = self.buffer.put(content) if number else self.buffer.replace(content)
            self.add_encoded(image.prefix, page, view)
        self.notes += [(text, image.blob.label) for text in messages.notes()]

    def add_encoded(self, prefix: str, info: ImageInfo, data: memoryview) -> None:
        """Complete the member of an image that was laid out last."""
        self.sizes.append(ImageSize(*info.upright, info.orientation))
        self.add(prefix, info.format, data)

    def add(self, prefix: str, kind: str, data: memoryview) -> None:
        """Complete the member that was laid out last."""
        ext = self.free_extension(prefix, kind[-_MAX_KIND:])
        offset = self.buffer.close_member(f"{self.key}.{ext}", len(data))
        self.members.append(Member(ext, offset, len(data), crc32(data)))

    def free_extension(self, prefix: str, kind: str) -> str:
        """Return an extension of this kind that no other member of the sample has."""
        start = f"{_name_part(prefix)[: _MAX_EXT - _MAX_KIND - 6]}." if prefix else ""
        ext, number = f"{start}{kind}", 0
        while ext in self.extensions:
            number += 1
            ext = f"{start}{number}.{kind}"
        self.extensions.add(ext)
        return ext


def _prefix(video: int, frame: int) -> str:
    """Return what stands before the format in the extension of a frame."""
    return frame_extension(video, frame).rpartition(".")[0]


def _header(data: memoryview) -> ImageInfo:
    if not data:
        raise DecodeError("file is empty")
    try:
        return probe(bytes(data[:_HEAD]), complete=len(data) <= _HEAD)
    except NeedMoreData:
        return probe(data)


def _name_part(text: str) -> str:
    """Return a text as lower-case ASCII without spaces, as member names must be."""
    return _UNSAFE.sub("_", text.lower()).strip(".") or "bin"
