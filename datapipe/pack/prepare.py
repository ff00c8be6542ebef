"""One raw sample, read and checked, into the bytes of its members and its row of the index.

This is the part of a pack that workers do; it knows nothing of shards and of other samples.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from datapipe.decode.image import check_size, decode_rgb
from datapipe.errors import DecodeError, SampleError
from datapipe.index.checksum import crc32
from datapipe.index.imageinfo import probe
from datapipe.index.rows import ImageSize, Member, Row
from datapipe.index.text import parse_json, parse_text, sample_text
from datapipe.pack.raw import Blob, Inline, RawImage, RawSample, Reject
from datapipe.pack.ustar import BLOCK, MAX_NAME, member_header, padding

Check = Literal["decode", "header"]

KEY_DIGITS = 9
_MAX_EXT = 60
_UNSAFE = re.compile(r"[^a-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sample as it stands in a shard.

    Attributes:
        row: its line of the index, with offsets counted from the sample's first byte.
        parts: headers, data and padding, to be written one behind the other.
        bytes: their total size.
    """

    row: Row
    parts: list[bytes]
    bytes: int


def key_of(ordinal: int) -> str:
    """Key of the input with this number; a reject leaves a gap."""
    return str(ordinal).zfill(KEY_DIGITS)


def prepare(sample: RawSample | Reject, ordinal: int, check: Check) -> Prepared | Reject:
    """Read a sample's members, check its images, and lay it out for a shard."""
    if isinstance(sample, Reject):
        return sample
    try:
        return _prepare(sample, key_of(ordinal), check)
    except SampleError as error:
        file = error.member if error.member != sample.source else ""
        return Reject(sample.source, error.reason, type(error).__name__, file)


def _prepare(sample: RawSample, key: str, check: Check) -> Prepared:
    members: list[tuple[str, bytes]] = []
    sizes: list[ImageSize] = []
    taken: set[str] = set()
    for image in sample.images:
        data = image.blob.read()
        kind, size = _examine(image, data, check)
        sizes.append(size)
        members.append((_extension(image.prefix, kind, taken), data))
    caption = record = None
    if sample.caption is not None:
        caption, content = _caption(sample.caption)
        members.append((_extension("", "txt", taken), content))
    if sample.record is not None:
        record, content = _record(sample.record)
        members.append((_extension("", "json", taken), content))
    for ext, blob in sample.others:
        prefix, _, kind = ext.rpartition(".")
        members.append((_extension(prefix, _plain(kind), taken), blob.read()))
    if not members:
        raise DecodeError("sample has neither image nor text")

    parts: list[bytes] = []
    listed = []
    position = 0
    for ext, content in members:
        length = len(content)
        listed.append(Member(ext, position + BLOCK, length, crc32(content)))
        parts += (member_header(f"{key}.{ext}", length), content, padding(length))
        position += BLOCK + length + len(parts[-1])
    text = sample_text(caption, record)
    row = Row(key, tuple(listed), tuple(sizes), len(_encode(text)), sample.source)
    return Prepared(row, parts, position)


def _examine(image: RawImage, data: bytes, check: Check) -> tuple[str, ImageSize]:
    """Format and size of an image that passes the check."""
    try:
        if not data:
            raise DecodeError("file is empty")
        info = probe(data)
        check_size(info)
        if check == "decode":
            decode_rgb(data)
    except DecodeError as error:
        raise DecodeError(error.reason, member=image.blob.label) from error
    return info.format, ImageSize(*info.upright, info.orientation)


def _caption(caption: Blob | Inline | str) -> tuple[str, bytes]:
    if isinstance(caption, str):
        return caption, _encode(caption)
    data = caption.read()
    try:
        text = parse_text(data)
    except DecodeError as error:
        raise DecodeError(error.reason, member=caption.label) from error
    return text, text.encode()


def _record(record: Blob | Inline | Mapping[str, Any]) -> tuple[Any, bytes]:
    if not isinstance(record, Blob | Inline):
        text = _dump(record)
        return record, _encode(text)
    data = record.read()
    try:
        return parse_json(data), data
    except DecodeError as error:
        raise DecodeError(error.reason, member=record.label) from error


def _dump(record: Any) -> str:
    """JSON of a record, with null for NaN and infinity, which only Python takes for JSON."""
    options: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
    try:
        return json.dumps(record, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(record), **options)
    except RecursionError as error:
        raise DecodeError("record is nested too deeply to be written as JSON") from error


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # a lone surrogate, which JSON can spell
        raise DecodeError(f"text cannot be written as UTF-8: {error}") from error


def _plain(text: str) -> str:
    """Lower-case ASCII without spaces, as member names must be."""
    return _UNSAFE.sub("_", text.lower()).strip(".") or "bin"


def _extension(prefix: str, kind: str, taken: set[str]) -> str:
    """An extension of this kind that no other member of the sample has."""
    start = _plain(prefix)[:_MAX_EXT] if prefix else ""
    kind = kind[: MAX_NAME - KEY_DIGITS - _MAX_EXT]
    ext = f"{start}.{kind}" if start else kind
    number = 1
    while ext in taken:
        ext = f"{start}.{number}.{kind}" if start else f"{number}.{kind}"
        number += 1
    taken.add(ext)
    return ext
