"""Raw records that were given as the file of a mixture, told apart by their content."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import Any

from datapipe.errors import PlanError
from datapipe.index.images.header import is_image_name
from datapipe.index.manifest import MANIFEST
from datapipe.index.raw_data import pack_first

_LOOKED_AT = 20  # records
_WORDS = 3  # of a text that is no weight, repeat or amount
_OPTIONS = {"name", "path", "weight", "repeat", "limit", "where", "text", "image", "datasets"}
_OPTIONS_OF_ALL = {"weights", "epoch", "text", "image", "schedule", "validation"}


def refuse_records(path: str, value: Any) -> None:
    """Refuse a value that was read from a file, if it is raw records or a manifest.

    Raises:
        PlanError: it is one.
    """
    if isinstance(value, dict) and value.get("format") == "datapipe":
        folder = os.path.dirname(os.path.abspath(path))
        raise PlanError(f"{path} is the {MANIFEST} of a dataset; give its folder, {folder}")
    if holds_records(value):
        if not path.endswith(".json"):
            raise PlanError(
                f"{path}: these are records of raw data; save them as JSON, and pack that first: "
                "`datapipe pack FILE.json shards/`"
            )
        raise PlanError(pack_first(path, "records, and no mixture"))


def holds_records(value: Any) -> bool:
    """Return whether the content of a file is records of raw data, and cannot be a mixture.

    Examples:
        >>> holds_records([{"image": "0.jpg", "caption": "a cat"}])
        True
        >>> holds_records({"captions/": "70%", "chats/": {"weight": "30%"}})
        False
    """
    if isinstance(value, list):
        return any(map(_is_record, value[:_LOOKED_AT]))
    if not isinstance(value, dict) or "datasets" in value:
        return False
    return any(
        is_image_name(key)
        or (isinstance(item, str) and len(item.split()) >= _WORDS)
        or (isinstance(item, list) and holds_records(item))
        or (isinstance(item, dict) and _names_image(item))
        for key, item in islice(value.items(), _LOOKED_AT)
        if key not in _OPTIONS_OF_ALL
    )


def _is_record(item: Any) -> bool:
    if isinstance(item, str):
        return is_image_name(item)
    if isinstance(item, dict):
        return not item.keys() <= _OPTIONS or _names_image(item)
    return isinstance(item, list)


def _names_image(item: dict[str, Any]) -> bool:
    return any(isinstance(value, str) and is_image_name(value) for value in item.values())


def json_start(text: str) -> Any:
    """Return the value of a JSON text, or a list with the first record of a list or JSON Lines."""
    start = text.lstrip()
    is_list = start.startswith("[")
    try:
        first, end = json.JSONDecoder().raw_decode(start[is_list:].lstrip())
    except (ValueError, RecursionError):
        return None
    return [first] if is_list or start[end:].lstrip().startswith("{") else first
