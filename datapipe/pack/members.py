"""Samples out of members that others named: images, a caption, metadata, and what is left."""

from __future__ import annotations

import re
from collections.abc import Sequence

from datapipe.index.grouping import split_name
from datapipe.index.imageinfo import is_image_extension
from datapipe.index.text import TEXT_EXTENSIONS
from datapipe.pack.raw import Blob, RawImage, RawSample

_NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>\d+)")


def extension_of(name: str) -> str:
    """What stands behind the first dot of a member's name; empty where it has no key."""
    parts = split_name(name)
    return parts[1] if parts else ""


def sample_of_members(source: str, members: Sequence[tuple[str, Blob]]) -> RawSample:
    """Return the sample of members given as (extension, bytes).

    Images that are numbered alike, such as `image_0.jpg` and `image_1.jpg`, come in the order of
    their numbers, others in that of the members. Of several texts or JSON members the first counts,
    and one such as `json` before one such as `meta.json`; the others are kept as they are.
    """
    images: list[RawImage] = []
    others: list[tuple[str, Blob]] = []
    for ext, blob in members:
        prefix, _, kind = ext.rpartition(".")
        if is_image_extension(kind):
            images.append(RawImage(blob, prefix))
        else:
            others.append((ext, blob))
    caption = _take(others, TEXT_EXTENSIONS)
    record = _take(others, frozenset({"json"}))
    return RawSample(source, tuple(_in_order(images)), caption, record, tuple(others))


def _take(members: list[tuple[str, Blob]], kinds: frozenset[str]) -> Blob | None:
    """Take the first member of these kinds out of a list, preferably one without a prefix."""
    found = [entry for entry in members if entry[0].lower().rpartition(".")[2] in kinds]
    if not found:
        return None
    taken = min(found, key=lambda entry: "." in entry[0])
    members.remove(taken)
    return taken[1]


def _in_order(images: list[RawImage]) -> list[RawImage]:
    numbered = [_NUMBERED.fullmatch(image.prefix) for image in images]
    numbers = [int(found["number"]) for found in numbered if found]
    if len(numbers) < len(images) or len({found["stem"] for found in numbered if found}) > 1:
        return images
    return [image for _, image in sorted(zip(numbers, images, strict=True), key=lambda p: p[0])]
