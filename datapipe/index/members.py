"""Members of a sample that a batch needs, and their assembly to text and images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from datapipe.index.images.header import is_stored_image
from datapipe.index.rows import Member
from datapipe.text.sample_text import TEXT_EXTENSIONS, as_record, parse_json, parse_text

Kind = Literal["image", "text", "json", ""]


@cache
def member_kind(ext: str) -> Kind:
    """Return the kind of a member by its extension; "" for one that no batch has."""
    if is_stored_image(ext):
        return "image"
    ext = ext.lower()
    return "text" if ext in TEXT_EXTENSIONS else "json" if ext == "json" else ""


def wanted_members(members: Iterable[Member], images: int) -> list[Member]:
    """Return the members that are read: all texts, and the first `images` images."""
    wanted = []
    for member in members:
        kind = member_kind(member.ext)
        if kind == "image":
            if not images:
                continue
            images -= 1
        if kind:
            wanted.append(member)
    return wanted


@dataclass(slots=True)
class SampleParts:
    """Text and encoded images of one sample, assembled from its members."""

    caption: str | None = None  # of the first text member; None without one
    record: Any = None  # of the first JSON member; None without one
    # Members of images with their bytes, in order
    images: list[tuple[Member, memoryview]] = field(default_factory=list)

    def add(self, member: Member, data: memoryview) -> None:
        """Take the next member; raise `SampleError` for text or JSON that cannot be read.

        Of several texts or records the first counts.
        """
        kind = member_kind(member.ext)
        if kind == "image":
            self.images.append((member, data))
        elif kind:
            self.add_text(kind, data)

    def add_text(self, kind: Kind, data: memoryview) -> None:
        """Take the next member with text, of kind "text" or "json", as `add` does."""
        if kind == "text" and self.caption is None:
            self.caption = parse_text(bytes(data))
        elif kind == "json" and self.record is None:
            self.record = as_record(parse_json(bytes(data)))
