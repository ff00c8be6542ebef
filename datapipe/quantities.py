"""Quantities as people write them: `512MB`, `1GiB`, `100k steps`, `1.5B tokens`, `10%`, `2x`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from datapipe.declared import Refused, Say

UNITS = {
    "B": 1,
    **{f"{prefix}B": 10 ** (3 * power) for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}IB": 2 ** (10 * power) for power, prefix in enumerate("KMGT", 1)},
}
THOUSANDS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
AmountUnit = Literal["samples", "steps", "tokens"]
_AMOUNT_UNITS: dict[str, AmountUnit] = {"sample": "samples", "step": "steps", "token": "tokens"}
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)\s*")


def split_quantity(text: str) -> tuple[str, str] | None:
    """Split a size into its number and its unit in upper case; None if it is no size."""
    match = _SIZE.fullmatch(text)
    return (match[1], match[2].upper()) if match else None


def take_bytes(value: int | str) -> int:
    """Convert `"256MB"`, `"1GiB"` or a number to bytes, for arguments declared as `Bytes`."""
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

_LEAST_ROOM = 1000  # bytes; no image with its text takes less
_UNIT_NEEDED = 10**6  # a text of a smaller number alone means gigabytes, or megabytes


def take_room(value: int | str) -> int:
    """Convert the size of a cache to bytes; refuse small numbers as text without a unit."""
    size = take_bytes(value)
    number, unit = split_quantity(value) or ("", "") if isinstance(value, str) else ("", "B")
    if not unit and 0 < size < _UNIT_NEEDED:
        raise Refused(f"a size with its unit, such as {number}MB or {number}GB")
    if size < _LEAST_ROOM:
        raise Refused(
            f"at least {_LEAST_ROOM:,} bytes, such as 8GB: nothing fits into less; None is no cache"
        )
    return size


Room = Annotated[int | str, take_room, Say("a size in bytes, such as 256MB or 1GiB")]


@dataclass(frozen=True)
class Amount:
    """An amount of training: samples, steps or tokens.

    Examples:
        >>> str(take_amount("1.5k steps"))
        '1500 steps'
    """

    number: int
    unit: AmountUnit

    def __str__(self) -> str:
        return f"{self.number} {self.unit}"


def take_amount(value: int | str | Amount) -> Amount:
    """Convert `"100k steps"`, `"2M samples"`, `"1.5B tokens"` or a number of samples."""
    if isinstance(value, Amount):
        return value
    if isinstance(value, int):
        number, unit = Fraction(value), "sample"
    else:
        written, _, unit = value.strip().rpartition(" ")
        digits, thousands = split_quantity(written) or ("", "")
        if not digits or thousands not in THOUSANDS:
            raise Refused
        number, unit = Fraction(digits) * THOUSANDS[thousands], unit.lower().removesuffix("s")
    if unit not in _AMOUNT_UNITS or number.denominator != 1 or not 0 <= number < 2**63:
        raise Refused
    return Amount(int(number), _AMOUNT_UNITS[unit])


def take_percent(text: str) -> Fraction:
    """Convert `"10%"` to a share, exactly."""
    return _before("%", text) / 100


def take_times(text: str) -> Fraction:
    """Convert `"2x"` or `"0.5x"` to a number, exactly."""
    return _before("x", text)


def _before(sign: str, text: str) -> Fraction:
    number, unit = split_quantity(text.strip().removesuffix(sign)) or ("", "")
    if not number or unit or not text.strip().endswith(sign):
        raise Refused
    return Fraction(number)
