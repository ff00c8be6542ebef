"""Values with places for the number of a sample, such as `{n}`, `{2n+1}` or `{n%3:04d}`."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from ..chats import messages, turns
from ..raw_files import Tagged
from .pictures import medium, pages, picture
from .raw import Raw
from .table import Has, N, Sample, captioned, chat

_NUMBER = re.compile(r"(?:(\d*)n)?(?:%(\d+))?\+?(\d+)?")
_PLACE = re.compile(r"\{(\d*n[%+\d]*)(?::(\w+))?\}")


NUMBER = Tagged("n", "n")


def cell(column: str, number: str = "n") -> Tagged:
    return Tagged("cell", f"{column} {number}")


def has(*words: str) -> Tagged:
    return Tagged("has", list(words))


def number_of(text: str | int, n: int) -> int:
    found = _NUMBER.fullmatch(str(text))
    assert found, text
    factor, modulus, plus = found.groups()
    value = 0 if factor is None else int(factor or 1) * n
    return (value % int(modulus) if modulus else value) + int(plus or 0)


def filled_text(template: str, n: int) -> str:
    return _PLACE.sub(lambda found: format(number_of(found[1], n), found[2] or ""), template)


def filled(template: Any, n: int, raw: Raw | None = None) -> Any:
    """Return a value for a number; `raw` counts the images that it holds."""
    match template:
        case str():
            return filled_text(template, n)
        case Tagged("each", rows):
            return each(*listed(rows), raw=raw)
        case Tagged():
            return _made(template.tag, template.value, n, raw)
        case list():
            values = [filled(item, n, raw) for item in template]
            return [
                one
                for item, value in zip(template, values, strict=True)
                for one in (value if isinstance(item, Tagged) and item.tag == "each" else [value])
            ]
        case dict():
            return {filled_text(key, n): filled(value, n, raw) for key, value in template.items()}
    return template


def _made(tag: str, value: Any, n: int, raw: Raw | None) -> Any:
    """Return what a tag stands for."""
    word, *numbers = value.split() if isinstance(value, str) and value else ("n",)
    number = number_of(numbers[0], n) if numbers else n
    match tag:
        case "n":
            return number_of(word, n)
        case "keys":
            return {k: v for n in N for k, v in filled(value, n, raw).items()}
        case "cell":
            return raw.cell(number, word) if raw else None
        case "image":
            return picture(number, word)
        case "base64":
            return b64encode(picture(number, word)).decode()
        case "pages":
            return pages([number_of(page, n) for page in numbers], word)
        case "medium":
            return medium(word, n)
    of_texts = {
        "llava": lambda texts: turns(*texts),
        "openai": lambda texts: messages(*texts),
        "has": lambda texts: Has(*texts),
        "tabbed": "\t".join,
        "json": json.dumps,
    }
    return of_texts[tag](filled(value, n, raw))


def each(*rows: Any, numbers: Iterable[int] = N, raw: Raw | None = None) -> list[Any]:
    """Return the rows for every number."""
    return [filled(row, n, raw) for n in numbers for row in rows]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def images(raw: Raw, *names: str, numbers: Iterable[int] = N) -> None:
    """Write an image for every number; the names take turns."""
    for n in numbers:
        raw.image(filled_text(names[n % len(names)], n), n)


def captions(*texts: Any, numbers: Iterable[int] = N) -> list[Sample]:
    return [captioned(n, text) for n in numbers for text in filled(list(texts), n)]


def chats(
    *texts: Any, shown: tuple[str, ...] = ("n",), numbers: Iterable[int] = N, system: str = ""
) -> list[Sample]:
    """Return a conversation for every number, about the images `shown`."""
    return [
        chat(tuple(number_of(s, n) for s in shown), *filled(list(texts), n), system=system)
        for n in numbers
    ]
