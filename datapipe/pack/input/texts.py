"""Texts and records of a sample as the bytes of their members."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from datapipe.errors import DecodeError
from datapipe.pack.input.raw_sample import Blob, InlineBlob
from datapipe.text.sample_text import as_record, encode, parse_json, parse_text


def read_caption(caption: Blob | InlineBlob | str) -> tuple[str, bytes]:
    """Return a caption and the bytes of its member; SampleError if it cannot be read."""
    if isinstance(caption, str):
        return caption, encode(caption)
    text = parse_text(caption.read(), caption.label)
    text = text.rstrip("\r\n")  # which editors add, and no caption means
    return text, text.encode()


def read_record(record: Blob | InlineBlob | Mapping[str, Any]) -> tuple[Any, bytes]:
    """Return a record and the bytes of its member; SampleError if it cannot be read."""
    if not isinstance(record, Blob | InlineBlob):
        text = dump(record)
        return record, encode(text)
    data = record.read()
    held = parse_json(data, record.label)
    if isinstance(held, list):
        found = as_record(held)
        if found is held and any(isinstance(item, Mapping) and item for item in held):
            raise DecodeError(
                "its JSON is a list and no record of this sample; if it is a list of records, give "
                "that file itself",
                member=record.label,
            )
        if found is not held:
            return found, encode(dump(found))
    return held, data


def dump(record: Any) -> str:
    """Return a record's JSON, with null for NaN and infinity, which only Python reads."""
    options: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
    try:
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
