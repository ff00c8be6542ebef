"""Use of `--map` on samples with images: the fields of their JSON, and parts of their path."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from datapipe.errors import MissingMember
from datapipe.pack.records.fields.field_map import parse_map

_parsed = lru_cache(parse_map)


def apply_map(record: Any, map: str, source: str) -> tuple[Any, str | None]:
    """Return the record of a sample and its caption as `--map` makes them of its JSON.

    The map can name the fields of the JSON, and `folder` and `stem` of the sample's path.
    SampleError if a field is missing, empty, or holds something else.
    """
    fields, held = _parsed(map), fields_of_path(source)
    if isinstance(record, Mapping):
        held |= record
    elif fields.fields - held.keys():
        raise MissingMember("the sample has no JSON object, whose fields --map names")
    if (captions := fields.caption_of(held)) is not None:
        return record, "\n".join(captions) or None
    own = record if isinstance(record, Mapping) else {}
    return {**own, "messages": fields.messages_of(held)}, None


def fields_of_path(source: str) -> dict[str, Any]:
    """Return the folder and the stem of a file below the raw data, or of a member of a tar.

    Examples:
        >>> fields_of_path("train/cat/0.jpg")
        {'folder': 'cat', 'stem': '0'}
        >>> fields_of_path("shards/0.tar:cat/0")
        {'folder': 'cat', 'stem': '0'}
    """
    above, _, name = source.rpartition(".tar:")[2].rpartition("/")
    return {"folder": above.rpartition("/")[2] or None, "stem": name.rpartition(".")[0] or name}
