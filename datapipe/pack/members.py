"""Samples out of members that others named: images, a caption, metadata, and what is left."""

from __future__ import annotations

from collections.abc import Sequence

from datapipe.index.grouping import split_name
from datapipe.index.imageinfo import is_image_extension
from datapipe.index.text import TEXT_EXTENSIONS
from datapipe.pack.raw import Blob, RawImage, RawSample


def extension_of(name: str) -> str:
    """What stands behind the first dot of a member's name; empty where it has no key."""
    parts = split_name(name)
    return parts[1] if parts else ""


def sample_of_members(source: str, members: Sequence[tuple[str, Blob]]) -> RawSample:
    """A sample of members given as (extension, bytes).

    Of several texts or JSON members the first counts; the others are kept as they are.
    """
    images: list[RawImage] = []
    others: list[tuple[str, Blob]] = []
    caption = record = None
    for ext, blob in members:
        prefix, _, kind = ext.rpartition(".")
        if is_image_extension(kind):
            images.append(RawImage(blob, prefix))
        elif ext.lower() in TEXT_EXTENSIONS and caption is None:
            caption = blob
        elif ext.lower() == "json" and record is None:
            record = blob
        else:
            others.append((ext, blob))
    return RawSample(source, tuple(images), caption, record, tuple(others))
