"""Sizes as people write them: `512MB`, `1GiB`."""

from __future__ import annotations

import re
from typing import Annotated

from datapipe.declared import Refused, Say

UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*")


def split_quantity(text: str) -> tuple[str, str] | None:
    """Split a size into its number and its unit in upper case; None if it is no size."""
    match = _SIZE.fullmatch(text)
    return (match[1], match[2].upper()) if match else None


def take_bytes(value: int | str) -> int:
    """Convert `"256MB"`, `"1GiB"` or a number to bytes, for arguments declared as `Bytes`.

    Raises:
        Refused: it is no size.
    """
    if isinstance(value, int) and value >= 0:
        return value
    if isinstance(value, str):
        number, unit = split_quantity(value) or ("", "")
        if number and not unit and "." not in number:
            return int(number)
        if number and unit in UNITS and float(number) * UNITS[unit] < 2**63:
            return int(float(number) * UNITS[unit])
    raise Refused


Bytes = Annotated[int | str, take_bytes, Say("a size in bytes, such as 256MB or 1GiB")]
