"""Broken and odd inputs, each with what should become of it; made anew, always the same."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

PACKED = ""
"""The fate of an input that makes a sample."""

EITHER = "either"
"""The fate of an image that is packed if, and only if, `decode_rgb` takes it."""


class Case(NamedTuple):
    """One input.

    Attributes:
        content: the bytes of its file, or its line.
        fate: `PACKED`, `EITHER`, or words of the reason why it is rejected.
        in_header: whether looking at the image's header is enough to know.
    """

    content: bytes
    fate: str = PACKED
    in_header: bool = True


Cases = dict[str, Case]
"""Cases by the source that the index or a reject names."""


def read(name: str) -> Any:
    return yaml.safe_load((Path(__file__).parent / name).read_text("utf-8"))


def odd_names(kind: str) -> list[str]:
    return [name for row in read("names.yaml")[kind] for name in row]
