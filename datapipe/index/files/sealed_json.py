"""JSON files with a checksum of their content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from datapipe.index.files.crc32 import crc32

_FIELD = "crc32"


def seal(document: Mapping[str, Any], *, indent: int | None = None) -> str:
    """Return a document as JSON with a checksum of its other fields as the last one.

    Examples:
        >>> seal({"version": 1})
        '{"version": 1, "crc32": 37714638}'
    """
    held = json.loads(json.dumps(document))  # as it will be read: tuples are lists then
    text = json.dumps({**held, _FIELD: sum_of(held)}, indent=indent, ensure_ascii=False)
    # Names that are not UTF-8 have lone surrogates, which stay escapes of JSON.
    return text.encode("utf-8", "backslashreplace").decode()


def parse_json(content: str | bytes) -> Any:
    """Parse JSON; raise ValueError also for what is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def unseal(content: str | bytes) -> dict[str, Any]:
    """Return the document that `seal` wrote, without its checksum.

    Raises ValueError if it is not JSON, no object, or not what was written.

    Examples:
        >>> unseal(seal({"version": 1}))
        {'version': 1}
    """
    return unsealed(parse_json(content))


def unsealed(held: Any) -> dict[str, Any]:
    """Return what `unseal` does of a document that was parsed, which loses its checksum."""
    if not isinstance(held, dict):
        raise ValueError("it is not a JSON object")
    if held.pop(_FIELD, None) != sum_of(held):
        raise ValueError("its checksum does not match its content")
    return held


def unseal_lines(content: bytes) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the documents of a file with one a line, and the offset where each line ends.

    They end at the first line that a crash tore or that is damaged.
    """
    held: list[dict[str, Any]] = []
    ends: list[int] = []
    with suppress(ValueError):
        for line in content.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            held.append(unseal(line))
            ends.append(len(line) + (ends[-1] if ends else 0))
    return held, ends


def sum_of(document: Mapping[str, Any]) -> int:
    """Return the checksum of a document, whatever the order of its fields."""
    return crc32(json.dumps(document, sort_keys=True, default=int).encode())
