"""Contents of the members of a tar, told by their names, or else by their first bytes.

Packing and indexing in place judge samples by the same functions, so that both read, refuse and
name the same members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from datapipe.errors import MissingMember
from datapipe.index.ignore import ignored_by, ignoring, why_ignored
from datapipe.index.images.field_names import FILE_FIELDS, IMAGE_FIELDS
from datapipe.index.images.formats import raw_format, stored_format, unsupported_image
from datapipe.index.images.header import is_image_extension, is_image_name, is_stored_image
from datapipe.index.media import START, image_of, unread_medium
from datapipe.index.members import Kind, member_kind
from datapipe.index.tar.grouping import ext_of
from datapipe.index.tar.headers import TarMember, TarScanner
from datapipe.text.videos import frame_of, frames_remedy

FURTHER_TEXT = "a text beside the one that is taken"
"""Argument `what` of `MemberCounts.keep` for a text or JSON that is not the text of its sample."""

_NOTHING = frozenset({"", "none", "null", "nan", "n/a", "na", "<na>", "nil", "false", "-"})
_LONGEST = 100  # characters of a path that a message shows


class Content(NamedTuple):
    """Content of one member."""

    ext: str  # everything behind the first dot of its name
    kind: Kind  # "image", "text" or "json"; "" if no loader reads it
    form: str = ""  # extension that an image of another name would have, such as "jpg"
    # "a video", "an image (TGA)" and the like, if no loader reads it; "" of a text with another
    # use, such as a class number
    medium: str = ""
    # True for an image that packing re-encodes, and that is not read in place
    converted: bool = False

    @property
    def indexed(self) -> str:
        """Extension for the index, where it tells the kind: `img.jpg` for a JPEG called `img`."""
        return f"{self.ext}.{self.form}" if self.form else self.ext


def kept_members(
    tar: TarScanner, ignore: Sequence[str], leave_out: Callable[[str, str], None]
) -> Iterator[TarMember]:
    """Yield the members of a tar, with the first bytes of those whose names tell nothing.

    `leave_out` gets the name of each that `ignore` names, and the reason. Links among them are
    removed from `tar.unread` at the end.
    """
    for member in tar:
        ext = ext_of(member.name)
        if pattern := ignored_by(member.name, ignore):
            leave_out(member.name, why_ignored(pattern))
        elif not ext or member_kind(ext):
            yield member
        else:
            yield replace(member, start=tar.read(member.offset, min(member.size, START)))
    for link in tuple(tar.unread):
        if pattern := ignored_by(link[0], ignore):
            leave_out(link[0], why_ignored(pattern))
            tar.unread.remove(link)


def content_of(ext: str, start: bytes) -> Content:
    r"""Return what a member of this extension, behind the first dot of its name, holds.

    Its first `START` bytes are looked at where the extension tells nothing.

    Examples:
        >>> content_of("img", b"\xff\xd8\xff\xe0" + bytes(60)).indexed
        'img.jpg'
        >>> content_of("mp4", b"\0\0\0\x18ftypisom").medium
        'a video'
    """
    if kind := member_kind(ext):
        return Content(ext, kind)
    form = stored_format(start)
    # Camera raws begin as TIFF does.
    if form and not (form == "tif" and unsupported_image(ext.rpartition(".")[2])):
        return Content(ext, "image", form)
    raw = raw_format(start, ext)
    if (raw and raw.becomes) or is_image_extension(ext):
        medium = image_of(raw, ext) if raw else "an image"
        return Content(ext, "", medium=medium, converted=True)
    return Content(ext, "", medium=unread_medium(start, ext))


def why_unread(contents: Iterable[Content]) -> str:
    """Return why a sample without a usable image is rejected for its media; "" without any.

    Texts with another use, such as class numbers, do not count.
    """
    for content in contents:
        if content.medium:
            return (
                f"`{content.ext}` is {content.medium}, and only images and text are read; to train "
                f"on the rest of its sample, add {ignoring(content.ext)} to `datapipe pack` or "
                f"`datapipe index`{frames_remedy(content.medium)}"
            )
    return ""


def companions(exts: Sequence[str]) -> list[str]:
    """Return which images of a sample have names of their own, as `seg.png`, next to the main one.

    The main one is the first that is called `jpg`, `png` and so on, else the first. Images that are
    numbered alike, such as `1.jpg` and `2.jpg`, are all main ones, and so are frames of videos.

    Examples:
        >>> companions(["jpg", "seg.png"]), companions(["jpg", "1.jpg", "2.jpg"])
        (['seg.png'], [])
    """
    exts = [ext for ext in exts if frame_of(ext) is None]
    if len(exts) < 2:
        return []
    prefixes = [ext.rpartition(".")[0] for ext in exts]
    stems = {prefix.rstrip("0123456789") for prefix in prefixes}
    if len(stems) == 1 and len(set(prefixes)) == len(prefixes):
        return []
    main = next((n for n, ext in enumerate(exts) if is_stored_image(ext) and "." not in ext), 0)
    return [ext for number, ext in enumerate(exts) if number != main]


def image_order(exts: Sequence[str]) -> list[int]:
    """Return the images of a sample in order: numbered alike, by their numbers, else as they are.

    One without a number comes first.

    Examples:
        >>> image_order(["1.jpg", "10.jpg", "2.jpg", "jpg"]), image_order(["b.jpg", "a.jpg"])
        ([3, 0, 2, 1], [0, 1])
    """
    prefixes = [ext.rpartition(".")[0] for ext in exts]
    stems = [prefix.rstrip("0123456789") for prefix in prefixes]
    if len(set(stems)) > 1:
        return list(range(len(exts)))

    def place(number: int) -> tuple[bool, int, str]:
        digits = prefixes[number][len(stems[number]) :]
        return bool(digits), len(digits.lstrip("0")), digits.lstrip("0")

    return sorted(range(len(exts)), key=place)


def named_image(record: Any) -> str:
    """Return the field of a record that names or holds an image; "" if none does.

    Addresses in other fields, such as `url`, are metadata.

    Examples:
        >>> named_image({"image": "cats/1.jpg"}), named_image({"image": None, "url": "http://x/1.jpg"})
        ('image', '')
        >>> named_image({"image": {"bytes": None, "path": None}, "img": "N/A"})
        ''
    """
    if not isinstance(record, Mapping):
        return ""
    for name, value in record.items():
        field = name.lower() if isinstance(name, str) else ""
        while isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, Mapping):
            is_named = any(item is not None for item in value.values())
        else:  # the path, address or base64 of an image, and not words
            is_named = isinstance(value, str) and value.strip().lower() not in _NOTHING
            is_named = is_named and (" " not in value or is_image_name(value))
        if field in IMAGE_FIELDS and is_named:
            return str(name)
        if field in FILE_FIELDS and isinstance(value, str) and is_image_name(value):
            return str(name)
    return ""


def refuse_missing_image(record: Any) -> None:
    """Raise MissingMember for the JSON of a sample without images if it names or holds one."""
    if field := named_image(record):
        value = record[field]
        raise MissingMember(
            f"its JSON has an image in `{field}`, and the sample holds none",
            member=value[:_LONGEST] if isinstance(value, str) else "",
        )
